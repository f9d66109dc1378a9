// One prompt, one seed, several policies: their answers side by side, and from where on each is another than the first.

import { stream } from "./api.js";
import { field, h, say, setText } from "./dom.js";
import { policyForm } from "./policy_form.js";
import { get } from "./store.js";

// A browser has six connections to a server: these, the evictions, the playground, and one for the rest.
const CHOICES = [["full", ""], ["h2o", 64], ["streaming", 64]];
const PROMPT = "Once upon a time there was an old man who lived by the sea with his three daughters. The eldest was proud, the second was " +
  "idle, and the youngest was kind. One night, when the wind was loud and the lamps were low, there came a knock at the door, and";

// Tokens that two answers have alike from the start.
const alike = (a, b) => {
  const first = b.findIndex((token, i) => token !== a[i]);
  return first < 0 ? b.length : first;
};

function column([scorer, budget], number) {
  const policy = policyForm(`Policy ${number}`, scorer, budget);
  const text = h("p", { class: "answer", tabindex: 0, role: "region", "aria-label": `Answer ${number}` });
  const facts = h("p", { class: "hint" });
  const element = h("div", { class: "column" }, policy.element, facts, text);
  let pieces = [];

  const run = async (request, signal) => {
    pieces = [];
    text.replaceChildren();
    setText(facts, "…");
    const began = performance.now();
    let [first, evicted, length] = [null, 0, 0];
    for await (const { prefill, decode } of stream("InferenceService/Generate", { ...request, policy: policy.spec() }, signal)) {
      evicted += (prefill ?? decode).evictedTokens ?? 0;
      length = (prefill ?? decode).cacheLength ?? 0;
      if (!decode) continue;
      first ??= performance.now() - began;
      (decode.tokens ?? []).forEach((token, i) => pieces.push({ token, text: i === 0 ? decode.text ?? "" : "" }));
      text.append(decode.text ?? "");
    }
    const seconds = (performance.now() - began - first) / 1000;
    return `${length} live, ${evicted} left, first after ${Math.round(first)} ms, then ${Math.round(pieces.length / seconds)} a second`;
  };
  const tokens = () => pieces.map(({ token }) => token);
  // Marks what follows the first `same` tokens.
  const mark = (same, told) => {
    const words = (from, to) => pieces.slice(from, to).map((piece) => piece.text).join("");
    text.replaceChildren(words(0, same), same < pieces.length ? h("mark", {}, words(same)) : "");
    setText(facts, told);
  };
  return { element, run, tokens, mark, title: policy.title, fail: (error) => setText(facts, error.message) };
}

function mount(body) {
  let leave = null;
  const prompt = h("textarea", { rows: 3, value: PROMPT });
  const most = h("input", { type: "number", min: 1, max: 4096, step: 1, value: 160 });
  const seed = h("input", { type: "number", min: 0, step: 1, value: 7 });
  const temperature = h("input", { type: "number", min: 0, max: 10, step: 0.1, value: 0.7 });
  const run = h("button", { type: "submit", class: "main" }, "Compare");
  const stop = h("button", { type: "button", disabled: true, onclick: () => leave?.abort() }, "Stop");
  const columns = CHOICES.map((choice, i) => column(choice, i + 1));
  const form = h("form", {}, field("Prompt", prompt), h("div", { class: "bar" }, field("Tokens", most), field("Seed", seed),
    field("Temperature", temperature), run, stop));
  body.append(form, h("div", { class: "columns" }, columns.map(({ element }) => element)));

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (run.disabled) return;
    [run.disabled, stop.disabled] = [true, false];
    leave = new AbortController();
    const request = {
      model: get("model"),
      prompt: { text: prompt.value },
      sampling: { temperature: Number(temperature.value), seed: Number(seed.value) },
      stopping: { maxTokens: Number(most.value), ignoreEos: true },
    };
    const done = await Promise.all(columns.map((one) => one.run(request, leave.signal).catch((error) => {
      one.fail(error.name === "AbortError" ? new Error("Stopped.") : error);
      return null;
    })));
    const base = columns[0].tokens();
    columns.forEach((one, i) => {
      if (done[i] === null) return;
      const same = alike(base, one.tokens());
      one.mark(same, i === 0 ? done[i] : `${done[i]}; the first ${same} of ${one.tokens().length} tokens are those of policy 1`);
    });
    [run.disabled, stop.disabled] = [false, true];
    say("The answers are there.");
  });
}

export const compare = { id: "compare", title: "Policies side by side", wide: true, mount };
