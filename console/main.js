// Begins the page: panels, theme, whose calls they are, and what several panels look at.

import { EbbError, call, caller, events } from "./api.js";
import { h, options, setText } from "./dom.js";
import { panels } from "./panels.js";
import { PAGE_SIZE } from "./sessions.js";
import { every, get, on, set } from "./store.js";

const at = (id) => document.getElementById(id);

function mount(panel) {
  const body = h("div", { class: "body" });
  at("main").append(h("section", { id: panel.id, class: panel.wide ? "wide" : null, "aria-labelledby": `${panel.id}-title` },
    h("h2", { id: `${panel.id}-title`, tabindex: -1 }, panel.title), body));
  at("links").append(h("li", {}, h("a", { href: `#${panel.id}-title` }, panel.title)));
  panel.mount(body);
}

function chooseTheme() {
  const theme = at("theme");
  const show = () => {
    if (theme.value) document.documentElement.dataset.theme = theme.value;
    else delete document.documentElement.dataset.theme;
    set("theme", theme.value);
  };
  theme.value = localStorage.getItem("ebb-theme") ?? "";
  theme.addEventListener("change", () => {
    localStorage.setItem("ebb-theme", theme.value);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}

// Asks once for the token, however many calls lacked it.
function askWho() {
  const dialog = at("ask");
  events.addEventListener("unauthenticated", ({ detail }) => {
    if (dialog.open) return;
    setText(at("ask-why"), caller.token ? detail : "Calls need an admin’s token (auth.mode).");
    at("token").value = "";
    dialog.showModal();
  });
  dialog.addEventListener("close", () => {
    caller.token = at("token").value.trim();
    at("token").value = "";
    set("caller", caller);
  });
  at("tenant").addEventListener("change", () => {
    caller.tenant = at("tenant").value.trim();
    set("selected", null);
    set("caller", caller);
  });
}

async function describeServer() {
  const [status, { models }] = await Promise.all([call("AdminService/GetStatus"), call("AdminService/ListModels")]);
  const serving = models.filter(({ state }) => state === "MODEL_STATE_SERVING").map((model) => model.status);
  set("version", status.version);
  set("models", serving);
  at("model").replaceChildren(...options(serving.map(({ name }) => name), status.model.name));
  at("model-of").hidden = serving.length < 2;
  await chooseModel();
}

// What the playground, the comparison and the evictions are of from now on.
async function chooseModel() {
  const { name, layers, kvHeads, context } = get("models").find((model) => model.name === at("model").value);
  const policies = await call("AdminService/ListPolicies", { model: name });
  setText(at("server"), `ebbd ${get("version")} serves ${name}: ${layers} layers of ${kvHeads} KV heads, trained for ${context} tokens`);
  set("model", name);
  set("policies", policies);
}

// As it is now; null when it is gone.
async function seeAgain(name) {
  try {
    return await call("SessionService/GetSession", { name });
  } catch (error) {
    if (error.code === "NOT_FOUND") return null;
    throw error;
  }
}

// A page of the tenant's sessions, and the one that is shown, on whichever page it is: the first there is until somebody chooses.
async function look() {
  if (at("ask").open) return;
  if (!get("policies")) await describeServer();
  const pages = get("pages");
  const { sessions = [], nextPageToken } = await call("SessionService/ListSessions", { pageSize: PAGE_SIZE, pageToken: pages.at(-1) });
  if (get("pages") !== pages) return undefined; // another page was asked for meanwhile
  if (sessions.length === 0 && pages.length > 1) {
    set("pages", pages.slice(0, -1));
    return look();
  }
  set("next", nextPageToken);
  set("sessions", sessions);
  const chosen = get("selected");
  const found = chosen && (sessions.find(({ name }) => name === chosen.name) ?? await seeAgain(chosen.name));
  if (get("selected") === chosen) set("selected", found ?? sessions[0] ?? null);
  return undefined;
}

function tell(error) {
  setText(at("server"), error instanceof EbbError ? `${error.code}: ${error.message}` : "The server does not answer.");
}

set("sessions", []);
set("pages", [""]);
chooseTheme();
askWho();
panels.forEach(mount);
every(2, look, tell);
const lookNow = () => look().catch(tell);
on("pages", () => get("policies") && lookNow()); // before that the first look is under way
at("model").addEventListener("change", () => chooseModel().catch(tell));
on("caller", () => {
  set("pages", [""]);
  if (!get("policies")) lookNow();
});
