// Begins the page: panels, theme, whose calls they are, and what several panels look at.

import { EbbError, call, caller, events } from "./api.js";
import { h, setText } from "./dom.js";
import { panels } from "./panels.js";
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
  const [status, policies] = await Promise.all([call("AdminService/GetStatus"), call("AdminService/ListPolicies")]);
  const { model } = status;
  setText(at("server"), `ebbd ${status.version} serves ${model.name}: ${model.layers} layers of ${model.kvHeads} KV heads, ` +
    `trained for ${model.context} tokens`);
  set("model", model.name);
  set("policies", policies);
}

// Sessions of the tenant, and which one is shown: the first there is until somebody chooses.
async function look() {
  if (at("ask").open) return;
  if (!get("policies")) await describeServer();
  const { sessions = [] } = await call("SessionService/ListSessions", { pageSize: 100 });
  set("sessions", sessions);
  const names = sessions.map(({ name }) => name);
  if (!names.includes(get("selected"))) set("selected", names[0] ?? null);
}

function tell(error) {
  setText(at("server"), error instanceof EbbError ? `${error.code}: ${error.message}` : "The server does not answer.");
}

set("sessions", []);
chooseTheme();
askWho();
panels.forEach(mount);
every(2, look, tell);
on("caller", () => look().catch(tell));
