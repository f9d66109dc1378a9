// Throughput and latency, of all tenants together: what /metrics counts, between two looks at it.

import { metricsPage } from "./api.js";
import { h, setText } from "./dom.js";
import { parse, quantile, sum } from "./metrics.js";
import { plot } from "./plot.js";
import { every } from "./store.js";

const SECONDS = 2;
const rate = (value) => (value < 10 ? value.toFixed(1) : `${Math.round(value)}`) + "/s";
const time = (value) => (value < 1 ? `${(value * 1000).toPrecision(3)} ms` : `${value.toPrecision(3)} s`);
const bytes = (value) => (value < 1 << 20 ? `${Math.round(value / 1024)} KiB` : `${(value / (1 << 20)).toPrecision(3)} MiB`);
const count = (value) => `${Math.round(value)}`;

function mount(body) {
  const wrong = h("p", { class: "hint" });
  const tokens = plot("Tokens a second", ["generated", "prompt", "evicted"], rate);
  const between = plot("Time between two tokens", ["median", "95 %"], time);
  const first = plot("Time to first token", ["median", "95 %"], time);
  const memory = plot("Memory for K and V", ["reserved", "used"], bytes);
  const queue = plot("Requests", ["running", "waiting"], count);
  const steps = plot("Time of a step", ["median", "95 %"], time);
  body.append(wrong, h("div", { class: "plots" }, [tokens, between, first, steps, queue, memory].map(({ element }) => element)));

  let before = null;
  every(SECONDS, async () => {
    const now = { page: parse(await metricsPage()), at: performance.now() };
    setText(wrong, "");
    if (before) {
      const seconds = (now.at - before.at) / 1000;
      const speed = (name) => Math.max(0, sum(now.page, name) - sum(before.page, name)) / seconds;
      const times = (name) => [0.5, 0.95].map((q) => quantile(before.page, now.page, name, q));
      tokens.add([speed("ebb_completion_tokens_total"), speed("ebb_prompt_tokens_total"), speed("ebb_evicted_tokens_total")]);
      between.add(times("ebb_inter_token_seconds"));
      first.add(times("ebb_ttft_seconds"));
      steps.add(times("ebb_step_seconds"));
      const held = (state) => sum(now.page, "ebb_cache_bytes", { state });
      memory.add([held("reserved"), held("used")]);
      queue.add([sum(now.page, "ebb_requests_running"), sum(now.page, "ebb_queue_depth")]);
    }
    before = now;
  }, () => setText(wrong, "/metrics does not answer."));
}

export const load = { id: "load", title: "Throughput and latency", wide: true, mount };
