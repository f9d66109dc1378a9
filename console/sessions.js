// Live sessions of the tenant, a page of them.

import { call } from "./api.js";
import { h, say, setText } from "./dom.js";
import { describe } from "./policy_form.js";
import { get, on, set } from "./store.js";

export const PAGE_SIZE = 100;
const COLUMNS = ["Session", "State", "Policy", "Tokens", "Live", "Evicted", "Memory", ""];
const bytes = (count) => (count < 1 << 20 ? `${Math.round(count / 1024)} KiB` : `${(count / (1 << 20)).toFixed(1)} MiB`);

function cells(session) {
  const state = session.swapped ? "swapped" : session.state === "SESSION_STATE_BUSY" ? "busy" : "idle";
  const model = get("models")?.length > 1 ? `${session.model}: ` : "";
  return [state, model + describe(session.policy, get("policies")?.scorers ?? []), `${session.tokens ?? 0}`,
    `${session.cacheLength ?? 0} of ${session.cacheCapacity ?? 0}`, `${session.evictedTokens ?? 0}`,
    `${bytes(Number(session.usedBytes ?? 0))} of ${bytes(Number(session.reservedBytes ?? 0))}`];
}

function mount(body) {
  const rows = new Map();
  let [shown, first] = [new Map(), 1]; // sessions by name; which of all the first is
  const list = h("tbody");
  const none = h("p", { class: "hint" }, "No sessions. Say something in the playground.");
  const back = h("button", { type: "button", onclick: () => set("pages", get("pages").slice(0, -1)) }, "Back");
  const onward = h("button", { type: "button", onclick: () => set("pages", [...get("pages"), get("next")]) }, "More");
  const which = h("p", { id: "sessions-page" });
  const bar = h("div", { class: "bar", hidden: true }, which, back, onward);
  body.append(bar, h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Sessions, a table that scrolls" },
    h("table", {}, h("caption", { class: "unseen" }, "Live sessions"),
      h("thead", {}, h("tr", {}, COLUMNS.map((name) => h("th", { scope: "col" }, name || h("span", { class: "unseen" }, "Delete"))))),
      list)), none);

  const remove = async (name) => {
    try {
      await call("SessionService/DeleteSession", { name });
      if (get("selected")?.name === name) set("selected", null);
      say(`${name} is deleted.`);
    } catch (error) {
      say(error.message);
    }
  };
  const add = (name) => {
    const id = name.replace("sessions/", "");
    const choose = h("input", { type: "radio", name: "session", value: name, onchange: () => set("selected", shown.get(name)) });
    const row = h("tr", {}, h("th", { scope: "row" }, h("label", {}, choose, ` ${id}`)),
      COLUMNS.slice(1, -1).map(() => h("td")),
      h("td", {}, h("button", { type: "button", class: "small", onclick: () => remove(name), "aria-label": `Delete ${id}` }, "✕")));
    list.append(row);
    rows.set(name, row);
    return row;
  };

  const check = () => {
    const chosen = get("selected")?.name;
    for (const [name, row] of rows) row.querySelector("input").checked = name === chosen;
    const elsewhere = chosen && !rows.has(chosen) ? `; ${chosen.replace("sessions/", "")}, which is shown, is on another page` : "";
    setText(which, `Sessions ${first} to ${first + shown.size - 1}${get("next") ? ", and there are more" : ""}${elsewhere}`);
  };
  on("sessions", (sessions) => {
    none.hidden = sessions.length > 0;
    shown = new Map(sessions.map((session) => [session.name, session]));
    const before = get("pages").length - 1;
    first = 1 + PAGE_SIZE * before;
    [back.disabled, onward.disabled] = [before === 0, !get("next")];
    bar.hidden = back.disabled && onward.disabled;
    for (const [name, row] of rows) {
      if (shown.has(name)) continue;
      row.remove();
      rows.delete(name);
    }
    for (const session of sessions) {
      const row = rows.get(session.name) ?? add(session.name);
      cells(session).forEach((text, i) => setText(row.cells[i + 1], text));
    }
    check();
  });
  on("selected", check);
}

export const sessions = { id: "sessions", title: "Sessions", wide: true, mount };
