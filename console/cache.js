// The cache of the session that is chosen: heat map, what is under the pointer, and the same as a table.

import { call } from "./api.js";
import { field, h, options, setText, table } from "./dom.js";
import { atOrBefore, heatMap, lanesOf } from "./heat_map.js";
import { every, get, on } from "./store.js";

const CELLS_MAX = 200_000; // of one picture; longer caches are looked at in strides
const ROWS_MAX = 500;
const SHADES = { rank: "keep score, by rank in its lane", position: "RoPE position", kept: "kept or not" };
const name = (lane) => `layer ${lane.layer}, head ${lane.head}`;

// A place in words; of a token that is gone, what the lane knows.
function words({ lane, token }, stride) {
  const near = atOrBefore(lane, token);
  const where = `Layer ${lane.layer}, head ${lane.head}`;
  if (!near || token - near.token >= stride) return `${where}: token ${token} has left`;
  const score = near.score === undefined ? "no keep score" : `keep score ${near.score.toPrecision(4)}, above ${Math.round(near.rank * 100)} % of its lane`;
  return `${where}: token ${near.token} is in slot ${near.slot}, position ${near.position}, ${score}`;
}

function mount(body) {
  let [answer, lanes, stride, seen] = [{}, [], 1, ""]; // seen: what the picture was made of; empty: it is old
  const title = h("p", { id: "cache-about" });
  const told = h("output", { id: "cache-place", "aria-live": "polite" });
  const tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
  const shade = h("select", {}, Object.entries(SHADES).map(([key, text]) => h("option", { value: key }, text)));
  const map = heatMap("Cache of the session: arrow keys go from token to token and from lane to lane", (place, event) => {
    tip.hidden = !place || event.type === "keydown";
    if (!place) return;
    const text = words(place, stride);
    if (event.type === "keydown") {
      setText(told, text);
    } else {
      setText(tip, text);
      tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${event.clientY + 18}px`;
    }
  });
  const legend = h("p", { class: "ramp", "aria-hidden": "true" }, "low ", Array.from({ length: 8 }, (_, i) => h("i", { class: `heat-${i}` })),
    " high ", h("i", { class: "heat-left" }), " just left");

  const lane = h("select");
  const list = table("Live tokens of the lane", ["Token", "Slot", "Position", "Keep score"]);
  const sizes = table("Lanes", ["Lane", "Live", "Slots", "Budget"]);
  const fold = h("details", {}, h("summary", {}, "As a table"), field("Lane", lane),
    h("div", { class: "pair" }, h("div", { class: "scroll short", tabindex: 0, role: "group", "aria-label": "Tokens, a table that scrolls" }, list.element),
      h("div", { class: "scroll short", tabindex: 0, role: "group", "aria-label": "Lanes, a table that scrolls" }, sizes.element)));
  body.append(h("div", { class: "bar" }, title, field("Shade", shade)), map.element, legend, told, tip, fold);

  const fill = () => {
    if (!fold.open) return;
    const chosen = lanes.find((one) => name(one) === lane.value) ?? lanes[0];
    list.fill((chosen?.entries ?? []).slice(0, ROWS_MAX).map(({ token, slot, position, score }) =>
      [token, slot, position, score === undefined ? "–" : score.toPrecision(4)]));
    sizes.fill(lanes.map((one) => [name(one), one.length, one.capacity, one.budget ?? "–"]));
  };
  const show = () => {
    const names = lanes.map(name);
    if (lane.options.length !== names.length) lane.replaceChildren(...options(names));
    map.show(lanes, Number(answer.sessionTokens ?? 0), shade.value);
    fill();
  };
  const clear = (text) => {
    [answer, lanes, seen] = [{}, [], ""];
    setText(title, text);
    show();
  };
  const look = async () => {
    const session = get("selected");
    if (!session) return clear("No session is chosen.");
    if (session.swapped) return clear(`${session.name.replace("sessions/", "")} is swapped out, and stays so until it is called.`);
    const version = `${session.name} ${session.generation} ${session.tokens} ${session.evictedTokens}`;
    if (version === seen) return undefined;
    const slots = Number(session.cacheLength ?? 0) * Math.max(1, lanes.length);
    stride = Math.max(1, Math.ceil(slots / CELLS_MAX));
    answer = await call("EvictionService/DescribeCache", { session: session.name, stride });
    seen = version;
    lanes = lanesOf(answer);
    const live = Math.max(0, ...lanes.map(({ length }) => length));
    setText(title, `${session.name.replace("sessions/", "")}: ${answer.sessionTokens ?? 0} tokens so far, ` +
      `${live} live in the longest of ${lanes.length} lanes${stride > 1 ? `; every ${stride}th is shown` : ""}`);
    return show();
  };
  every(0.5, look, (error) => clear(error.message));
  shade.addEventListener("change", show);
  lane.addEventListener("change", fill);
  fold.addEventListener("toggle", fill);
  on("theme", () => map.repaint());
  on("eviction", (eviction) => {
    if (eviction.session !== get("selected")?.name) return;
    seen = "";
    map.leave(eviction.victims ?? []);
  });
}

export const cache = { id: "cache", title: "Cache", mount };
