// The cache as a picture: a row for each lane (layer and KV head), the session's log from left to right. A cell is a live token;
// where nothing is drawn, the token has left. The picture is a canvas; who uses it says in words what is at a place.

import { eachFrame, h } from "./dom.js";

const FRESH_MS = 800; // how long those that just left are marked

// Ranks of the lane's scores in [0, 1], equal scores alike; 1 where there are none.
function ranks(scores, length) {
  const sorted = [...scores].sort((a, b) => a - b);
  const place = new Map(sorted.map((score, i) => [score, sorted.length > 1 ? i / (sorted.length - 1) : 1]));
  return scores.length ? scores.map((score) => place.get(score)) : Array(length).fill(1);
}

// DescribeCache's answer as lanes of parallel arrays, ascending by token.
export function lanesOf(answer) {
  return (answer.lanes ?? []).map((lane) => {
    const scores = (lane.scores ?? []).map(Number);
    const shares = ranks(scores, lane.length ?? 0);
    const entries = (lane.slots ?? []).map((slot, i) => ({
      slot, token: Number(lane.tokens[i]), position: lane.positions[i], score: scores[i], rank: shares[i],
    })).sort((a, b) => a.token - b.token);
    return { layer: lane.layer ?? 0, head: lane.head ?? 0, length: lane.length ?? 0, capacity: lane.capacity ?? 0, budget: lane.budget, entries };
  });
}

// The live token at or nearest below `token`; undefined if there is none.
export function atOrBefore(lane, token) {
  let [low, high] = [0, lane.entries.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.entries[middle].token <= token) low = middle + 1;
    else high = middle;
  }
  return lane.entries[low - 1];
}

// `onplace({ lane, token }, event)` when the pointer or the arrow keys come to a place; null when the pointer leaves.
export function heatMap(label, onplace) {
  const canvas = h("canvas", { tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-label": label });
  let shown = { lanes: [], tokens: 0, shade: "rank" };
  let place = null; // of the keyboard
  let left = []; // { layer, head, token, at } of those that just left
  let fading = 0;

  const colours = () => {
    const style = getComputedStyle(canvas);
    const read = (name) => style.getPropertyValue(name).trim();
    return { ramp: Array.from({ length: 8 }, (_, i) => read(`--heat-${i}`)), left: read("--heat-left"), line: read("--line"), place: read("--text") };
  };
  const value = (entry) => (shown.shade === "position" ? entry.position / Math.max(1, shown.positions) : shown.shade === "rank" ? entry.rank : 1);

  function paint() {
    const { lanes, tokens } = shown;
    const ratio = window.devicePixelRatio || 1;
    const height = Math.max(8, Math.min(16, Math.floor(480 / Math.max(1, lanes.length))));
    canvas.style.height = `${Math.max(1, lanes.length) * height}px`;
    const width = canvas.clientWidth;
    if (width === 0) return;
    canvas.width = width * ratio;
    canvas.height = Math.max(1, lanes.length) * height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    if (tokens === 0) return;
    const cell = width / tokens;
    const colour = colours();
    const row = new Map(lanes.map((lane, i) => [`${lane.layer}/${lane.head}`, i]));
    lanes.forEach((lane, i) => {
      for (const entry of lane.entries) {
        pen.fillStyle = colour.ramp[Math.min(7, Math.floor(value(entry) * 8))];
        pen.fillRect(entry.token * cell, i * height, Math.max(cell, 0.7), height - 1);
      }
      if (i > 0 && lane.head === 0) {
        pen.fillStyle = colour.line;
        pen.fillRect(0, i * height - 1, width, 1);
      }
    });
    const now = performance.now();
    left = left.filter(({ at }) => now - at < FRESH_MS);
    pen.fillStyle = colour.left;
    for (const { layer, head, token } of left) {
      pen.fillRect(token * cell, (row.get(`${layer}/${head}`) ?? -1) * height, Math.max(cell, 1.5), height - 1);
    }
    if (place) {
      pen.strokeStyle = colour.place;
      pen.lineWidth = 2;
      pen.strokeRect(place.token * cell - 1, place.row * height - 1, Math.max(cell, 2) + 2, height + 1);
    }
  }
  const repaint = eachFrame(paint);

  canvas.addEventListener("pointermove", (event) => {
    const { lanes, tokens } = shown;
    const lane = lanes[Math.floor(event.offsetY / canvas.clientHeight * lanes.length)];
    if (lane && tokens) onplace({ lane, token: Math.min(tokens - 1, Math.floor(event.offsetX / canvas.clientWidth * tokens)) }, event);
  });
  canvas.addEventListener("pointerleave", () => onplace(null));
  canvas.addEventListener("keydown", (event) => {
    const { lanes, tokens } = shown;
    const page = Math.max(1, Math.round(tokens / 10));
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [0, -page], PageDown: [0, page],
      Home: [0, -tokens], End: [0, tokens] };
    if (!moves[event.key] || !lanes.length || !tokens) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    const within = (number, end) => Math.max(0, Math.min(end - 1, number));
    const newest = { row: 0, token: event.key === "Home" ? 0 : tokens - 1 }; // where the first key leads
    place = place ? { row: within(place.row + down, lanes.length), token: within(place.token + right, tokens) } : newest;
    onplace({ lane: lanes[place.row], token: place.token }, event);
    repaint();
  });
  canvas.addEventListener("blur", () => {
    place = null;
    repaint();
  });
  new ResizeObserver(repaint).observe(canvas);

  return {
    element: canvas,
    // `lanes` of lanesOf; `tokens`: the log's length; `shade`: rank, position or kept.
    show(lanes, tokens, shade) {
      const positions = Math.max(0, ...lanes.flatMap(({ entries }) => entries.map(({ position }) => position)));
      shown = { lanes, tokens, shade, positions };
      repaint();
    },
    // Marks those of an eviction for a moment.
    leave(victims) {
      const at = performance.now();
      for (const { layer = 0, head = 0, tokens = [] } of victims) left.push(...tokens.map((token) => ({ layer, head, token: Number(token), at })));
      if (left.length > 5000) left = left.slice(-5000);
      clearTimeout(fading);
      fading = setTimeout(repaint, FRESH_MS + 50);
      repaint();
    },
    repaint,
  };
}
