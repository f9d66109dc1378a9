// What leaves, while it leaves: one WatchEvictions for the page, whose events other panels hear as "eviction".

import { stream } from "./api.js";
import { h, setText, table } from "./dom.js";
import { every, get, on, set } from "./store.js";

const SHOWN = 100;
const COLUMNS = ["Time", "Session", "Policy", "Cause", "Log", "Lane before", "After", "Attention lost", "Output moved"];
const share = (value) => (value === undefined ? "–" : value.toExponential(1));

function row({ eviction }) {
  const cause = eviction.cause.replace("EVICTION_CAUSE_", "").toLowerCase().replaceAll("_", " ");
  return [new Date(eviction.time).toLocaleTimeString(), eviction.session.replace("sessions/", ""), eviction.policy, cause,
    eviction.sessionTokens, eviction.lengthBefore, eviction.lengthAfter, share(eviction.attentionMass), share(eviction.outputError)];
}

function mount(body) {
  const recent = [];
  const totals = { events: 0, tokens: 0, lost: 0 };
  let [paused, fresh, leave] = [false, true, null];
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  const summary = h("p", { id: "evictions-summary" });
  const list = table("The newest evictions, the last one first", COLUMNS);
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", `${paused}`);
  });
  body.append(h("div", { class: "bar" }, pause, summary),
    h("div", { class: "scroll short", tabindex: 0, role: "group", "aria-label": "Evictions, a table that scrolls" }, list.element));

  const take = (message) => {
    totals.lost += Number(message.eventsLost ?? 0);
    if (!message.eviction) return;
    totals.events += 1;
    totals.tokens += message.eviction.evictedTokens ?? 0;
    recent.unshift(message);
    recent.length = Math.min(recent.length, SHOWN);
    fresh = true;
    set("eviction", message.eviction);
  };
  const show = () => { // events may come by the hundred a second; eyes take four
    setText(summary, `${totals.events} evictions, ${totals.tokens} tokens${totals.lost ? `, ${totals.lost} events lost` : ""}`);
    if (fresh && !paused) list.fill(recent.map(row));
    fresh = paused && fresh;
  };
  every(0.25, show);

  const watch = async () => {
    do { // again at once where it was left for another caller or model
      leave = new AbortController();
      try {
        for await (const message of stream("EvictionService/WatchEvictions", { model: get("model"), listVictims: true }, leave.signal)) take(message);
      } catch (error) {
        if (error.name !== "AbortError") throw error;
      }
    } while (leave.signal.aborted);
  };
  every(2, watch, (error) => setText(summary, error.message));
  for (const key of ["caller", "model"]) on(key, () => leave?.abort());
}

export const evictions = { id: "evictions", title: "Evictions", wide: true, mount };
