// A conversation in a session of its own, past its budget; its policy is changed while it goes on.

import { call, stream } from "./api.js";
import { eachFrame, field, h, say, setText } from "./dom.js";
import { describe, policyForm } from "./policy_form.js";
import { get, on, set } from "./store.js";

const TTL = "3600s";
const SHOWN_MAX = 20_000; // characters of an answer; of a longer one the end
const BEGINNING = "It was a dark and stormy night, and the old man sat by the fire, thinking of";
const someId = () => `playground-${Math.random().toString(36).slice(2, 8)}`;
const number = (attributes) => h("input", { type: "number", ...attributes });

function mount(body) {
  let [session, leave] = [null, null];
  const policy = policyForm("Policy", "h2o", 96);
  const temperature = number({ min: 0, max: 10, step: 0.1, value: 0.8 });
  const seed = number({ min: 0, step: 1, value: 7 });
  const tokens = number({ min: 1, step: 1, value: 256 });
  const goOn = h("input", { type: "checkbox", id: "go-on", checked: true });
  const turns = h("ol", { class: "turns", tabindex: 0, "aria-label": "Conversation" });
  const meter = h("meter", { min: 0, max: 1, value: 0, "aria-label": "Tokens in the cache, of its slots" });
  const counts = h("p", { id: "counts" }, "No session yet: it is opened with the first words.");
  const change = h("p", { id: "change" });
  const text = h("textarea", { rows: 3, value: BEGINNING });
  const send = h("button", { type: "submit", class: "main" }, "Send");
  const stop = h("button", { type: "button", disabled: true, onclick: () => leave?.abort() }, "Stop");
  const swap = h("button", { type: "button", disabled: true }, "Put this policy in force");
  const fresh = h("button", { type: "button" }, "New session");

  const tally = ({ length, capacity, logged, evicted }) => {
    meter.max = capacity;
    meter.value = Math.min(length, capacity);
    setText(counts, `${logged} tokens in the log, ${length} in the cache of ${capacity} slots, ${evicted} have left`);
  };
  const busy = (is) => {
    [send.disabled, stop.disabled, fresh.disabled] = [is, !is, is];
    turns.setAttribute("aria-busy", `${is}`);
  };
  const turn = (who, words) => {
    const said = h("p", {}, words);
    turns.append(h("li", { class: who }, h("h3", {}, who === "you" ? "You" : get("model") ?? "Model"), said));
    turns.scrollTop = turns.scrollHeight;
    return said;
  };

  const open = async () => {
    session = await call("SessionService/CreateSession", { sessionId: someId(), model: get("model"), policy: policy.spec(), ttl: TTL });
    set("selected", session);
    set("sessions", [...get("sessions"), session]);
    swap.disabled = false;
    setText(change, `${session.name.replace("sessions/", "")} has ${describe(session.policy, get("policies").scorers)}`);
  };
  const answer = async (words) => {
    leave = new AbortController();
    if (!session) await open();
    turn("you", words);
    const said = turn("model", "");
    const state = { length: 0, capacity: session.cacheCapacity, logged: Number(session.tokens ?? 0), evicted: Number(session.evictedTokens ?? 0) };
    const request = {
      session: session.name,
      prompt: { chat: { messages: [{ role: "user", content: words }] } },
      sampling: { temperature: Number(temperature.value), seed: Number(seed.value) },
      stopping: { maxTokens: Number(tokens.value), ignoreEos: goOn.checked },
    };
    const before = state.logged;
    let heard = "";
    const show = () => {
      const atEnd = turns.scrollTop + turns.clientHeight > turns.scrollHeight - 40;
      setText(said, heard);
      if (atEnd) turns.scrollTop = turns.scrollHeight;
      tally(state);
    };
    const showSoon = eachFrame(show);
    try {
      for await (const { prefill, decode } of stream("InferenceService/Generate", request, leave.signal)) {
        const part = prefill ?? decode;
        state.length = part.cacheLength ?? 0;
        state.evicted += part.evictedTokens ?? 0;
        if (prefill) state.logged = before + (prefill.tokensDone ?? 0);
        if (decode) state.logged += decode.tokens?.length ?? 0;
        if (part.usage) state.logged = Number(part.usage.sessionTokens);
        if (decode?.text) heard = (heard + decode.text).slice(-SHOWN_MAX);
        showSoon();
      }
    } finally {
      show();
    }
    say(`The answer is there: ${counts.textContent}.`);
  };
  const form = h("form", {}, field("Say", text), h("div", { class: "bar" }, send, stop, fresh));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const words = text.value.trim();
    if (!words || send.disabled) return;
    busy(true);
    text.value = "";
    try {
      await answer(words);
    } catch (error) {
      turns.append(h("li", { class: "note" }, h("p", {}, error.name === "AbortError" ? "Stopped." : error.message)));
    }
    if (session) session = await call("SessionService/GetSession", { name: session.name }).catch(() => null);
    swap.disabled = !session;
    busy(false);
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  swap.addEventListener("click", async () => {
    try {
      const { changes: [done] } = await call("EvictionService/SetPolicy", { session: session.name, policy: policy.spec() });
      const start = (done.state ?? "STATE_ORIGIN_NONE").replace("STATE_ORIGIN_", "").toLowerCase().replaceAll("_", " ");
      const sentence = `${describe(done.policy, get("policies").scorers)} is in force; it starts from: ${start}; ` +
        `${Number(done.slotsEvicted ?? 0)} slots left at once`;
      turns.append(h("li", { class: "note" }, h("p", {}, sentence)));
      setText(change, sentence);
      say(sentence);
    } catch (error) {
      say(error.message);
      setText(change, error.message);
    }
  });
  fresh.addEventListener("click", async () => {
    const { name } = session ?? {};
    session = null;
    if (name) {
      set("sessions", get("sessions").filter((one) => one.name !== name)); // nobody is to ask for it from now on
      if (get("selected")?.name === name) set("selected", null);
      await call("SessionService/DeleteSession", { name }).catch(() => {});
    }
    swap.disabled = true;
    turns.replaceChildren();
    setText(counts, "No session yet: it is opened with the first words.");
    setText(change, "");
    meter.value = 0;
  });

  on("model", (model) => { // what runs goes on to its end, in its model
    if (session && session.model !== model) fresh.click();
  });
  body.append(turns, h("div", { class: "bar" }, meter, counts), form,
    h("div", { class: "bar" }, policy.element), h("div", { class: "bar" }, swap, change),
    h("details", {}, h("summary", {}, "Sampling"), h("div", { class: "bar" }, field("Temperature", temperature), field("Seed", seed),
      field("Most tokens", tokens), h("div", { class: "field" }, h("label", { for: "go-on" }, "Go on past the end token"), goOn))));
}

export const playground = { id: "playground", title: "Playground", mount };
