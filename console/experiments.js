// Policies compared on real sessions: what each experiment has shown, its intervals drawn, and the means to start, ramp and stop one.

import { call } from "./api.js";
import { field, h, options, say, setText, svg, table } from "./dom.js";
import { describe, policyForm } from "./policy_form.js";
import { every, get, on } from "./store.js";

const SECONDS = 3;
const ARMS_MAX = 8;
const BROKEN = "EXPERIMENT_DECISION_BROKEN_SAMPLE_RATIO";
const VERDICTS = {
  EXPERIMENT_DECISION_COLLECTING: "open", EXPERIMENT_DECISION_FAVOURS_ARM: "better", EXPERIMENT_DECISION_FAVOURS_CONTROL: "worse",
  EXPERIMENT_DECISION_NO_DIFFERENCE: "no difference", [BROKEN]: "–",
};
const METRICS = ["attention mass lost", "output error", "shadow kl", "shadow agreement", "reserved bytes", "time to first token", "inter token",
  "score", "thumbs"];
const [WIDTH, HEIGHT] = [220, 18]; // of a drawn interval

const idOf = ({ name }) => name.replace("experiments/", "");
const word = (metric) => metric.replace("EXPERIMENT_METRIC_", "").toLowerCase().replaceAll("_", " ");
const constant = (metric) => `EXPERIMENT_METRIC_${metric.toUpperCase().replaceAll(" ", "_")}`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const value = (metric, number) => (metric === constant("reserved bytes") ? `${(number / (1 << 20)).toPrecision(4)} MiB` : `${Number(number.toPrecision(4))}`);
const bounds = ({ low = 0, high = 0 }) => [low, high].map(Number);
const interval = (metric, proto) => (proto ? `[${bounds(proto).map((bound) => value(metric, bound)).join(", ")}]` : "–");
const stateOf = ({ state }) => (state === "EXPERIMENT_STATE_RUNNING" ? "running" : "stopped");

// In a sentence, without numbers: it is spoken when it changes.
function decision({ spec, results }) {
  const control = spec.arms[0].name;
  switch (results.decision) {
    case BROKEN: return "Units did not come to the arms in the shares of the weights: no difference means anything.";
    case "EXPERIMENT_DECISION_FAVOURS_ARM": return `${results.favouredArm} is better than ${control} in ${word(spec.metric)}.`;
    case "EXPERIMENT_DECISION_FAVOURS_CONTROL": return `${control} is better in ${word(spec.metric)}.`;
    case "EXPERIMENT_DECISION_NO_DIFFERENCE": return `The arms differ in ${word(spec.metric)} by no more than the margin.`;
    default: return `Nothing is decided in ${word(spec.metric)} yet.`;
  }
}

// Which side of 0 an interval is on, as its metric counts.
function side({ moreIsBetter = false }, [low, high]) {
  if (low <= 0 && high >= 0) return "open";
  return (low > 0) === moreIsBetter ? "better" : "worse";
}

// A difference and its interval on an axis from -scale to scale; the line in the middle is no difference.
function drawn(metric, scale) {
  const range = bounds(metric.differenceInterval);
  const x = (number) => (WIDTH / 2 + (WIDTH / 2 - 4) * number / (scale || 1)).toFixed(1);
  const y = HEIGHT / 2;
  const tick = (number) => svg("line", { x1: x(number), x2: x(number), y1: y - 4, y2: y + 4 });
  return svg("svg", { class: `interval ${side(metric, range)}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
    svg("line", { class: "axis", x1: WIDTH / 2, x2: WIDTH / 2, y1: 0, y2: HEIGHT }),
    svg("g", { class: "span" }, svg("line", { x1: x(range[0]), x2: x(range[1]), y1: y, y2: y }), range.map(tick),
      svg("circle", { cx: x(Number(metric.difference)), cy: y, r: 3 })));
}

// Rows of one metric, an arm each, on one scale.
function metricRows({ spec, results }, name) {
  const found = results.arms.map((arm) => ({ arm, metric: (arm.metrics ?? []).find(({ metric }) => metric === name) })).filter(({ metric }) => metric);
  const scale = Math.max(0, ...found.flatMap(({ metric }) => (metric.differenceInterval ? bounds(metric.differenceInterval).map(Math.abs) : [])));
  return found.map(({ arm, metric }) => {
    const about = [name === spec.metric && "decides", metric.confounded && "confounded"].filter(Boolean).join(", ");
    const told = metric.differenceInterval;
    return [`${word(name)}${about && ` (${about})`}`, arm.arm, Number(metric.units ?? 0), value(name, Number(metric.estimate ?? 0)), interval(name, metric.interval),
      told ? value(name, Number(metric.difference)) : "–", interval(name, told), told ? drawn(metric, scale) : "",
      told ? side(metric, bounds(told)) : arm.arm === spec.arms[0].name ? "control" : "too few units"];
  });
}

// The form for a new one; `started` when the server has taken it.
function starter(started) {
  const name = h("input", { required: true, pattern: "[a-z0-9][a-z0-9._\\-]{0,62}", autocomplete: "off", spellcheck: "false" });
  const tenant = h("input", { placeholder: "all", autocomplete: "off", spellcheck: "false" });
  const metric = h("select", {}, options(METRICS, METRICS[0]));
  const number = (attributes) => h("input", { type: "number", step: "any", ...attributes });
  const ramp = number({ min: 0, max: 1, value: 1 });
  const margin = number({ min: 0, value: 0 });
  const units = number({ min: 20, max: 1000000, step: 1, value: 100 });
  const told = h("p", { id: "experiment-refused" });
  const list = h("div", { class: "columns" });
  const arms = [];
  const more = h("button", { type: "button" }, "Another arm");
  const add = (called, scorer, budget) => {
    const arm = { name: h("input", { required: true, value: called, autocomplete: "off", spellcheck: "false" }),
      weight: number({ min: 1, max: 1000, step: 1, value: 1 }), policy: policyForm(`Policy of arm ${arms.length + 1}`, scorer, budget) };
    arms.push(arm);
    list.append(h("div", {}, h("div", { class: "bar" }, field("Arm", arm.name), field("Weight", arm.weight)), arm.policy.element));
    more.disabled = arms.length === ARMS_MAX;
  };
  add("control", "streaming", 96);
  add("h2o", "h2o", 96);
  more.addEventListener("click", () => add(`arm-${arms.length + 1}`, "h2o", 96));

  const form = h("form", {}, h("div", { class: "bar" }, field("Name", name), field("Tenant", tenant), field("Metric that decides", metric),
    field("Ramp", ramp), field("Margin", margin), field("Units of each arm", units)), list,
  h("div", { class: "bar" }, more, h("button", { type: "submit", class: "main" }, "Start")), told);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const experiment = {
      name: name.value, tenant: tenant.value, metric: constant(metric.value), ramp: Number(ramp.value), margin: Number(margin.value),
      unitsMin: Number(units.value),
      arms: arms.map((arm) => ({ name: arm.name.value, weight: Number(arm.weight.value), policy: arm.policy.spec() })),
    };
    try {
      const answer = await call("AdminService/StartExperiment", { experiment });
      setText(told, "");
      name.value = "";
      say(`${idOf(answer)} runs.`);
      started(answer);
    } catch (error) {
      setText(told, error.message);
      say(error.message);
    }
  });
  return h("details", {}, h("summary", {}, "Start an experiment"), form);
}

function mount(body) {
  let [known, chosen, shown, seen] = [[], "", null, ""]; // seen: what the tables were made of
  const none = h("p", { class: "hint" }, "No experiments.");
  const which = h("select");
  const about = h("p");
  const verdict = h("output", { id: "experiment-decision", "aria-live": "polite" });
  const ratio = h("p", { id: "experiment-ratio" });
  const ramp = h("input", { type: "number", min: 0, max: 1, step: "any" });
  const setRamp = h("button", { type: "submit" }, "Set the ramp");
  const stop = h("button", { type: "button" }, "Stop it");
  const wrong = h("p", { class: "hint" });
  const armTable = table("Arms, the control first", ["Arm", "Policy", "Weight", "Share due", "Units", "Share that came", "Sessions", "Says"]);
  const metricTable = table("Metrics, with intervals that hold at every look at once",
    ["Metric", "Arm", "Units", "Estimate", "Its interval", "From control", "Its interval", "Drawn", "Says"]);
  const scroll = (label, { element }) => h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, element);
  const control = h("form", { class: "bar" }, field("Ramp", ramp), setRamp, stop);
  const results = h("div", { hidden: true }, about, verdict, ratio, scroll("Arms, a table that scrolls", armTable),
    scroll("Metrics, a table that scrolls", metricTable), control);
  const choice = h("div", { class: "bar", hidden: true }, field("Experiment", which));
  body.append(none, choice, results, wrong);

  const show = () => {
    const names = known.map(idOf);
    if (!names.includes(chosen)) chosen = idOf(known.find((one) => stateOf(one) === "running") ?? known[0] ?? { name: "" });
    const titles = known.map((one) => `${idOf(one)}: ${stateOf(one)}`);
    if (titles.join() !== [...which.options].map(({ text }) => text).join()) {
      which.replaceChildren(...known.map((one, i) => h("option", { value: names[i], selected: names[i] === chosen }, titles[i])));
    }
    which.value = chosen;
    const one = known.find((each) => idOf(each) === chosen);
    [none.hidden, choice.hidden, results.hidden] = [Boolean(one), !one, !one];
    const version = JSON.stringify([one, Boolean(get("policies"))]);
    if (!one || version === seen) return;
    seen = version;
    const { spec, results: found } = one;
    const total = found.arms.reduce((sum, { units = 0 }) => sum + Number(units), 0);
    setText(about, `Sessions of ${spec.tenant || "every tenant"}, ${percent(spec.ramp ?? 0)} of the units, since ` +
      `${new Date(one.startTime).toLocaleString()}${one.stopTime ? ` until ${new Date(one.stopTime).toLocaleString()}` : ""}.`);
    setText(verdict, decision(one));
    const turned = Number(found.sessionsTurnedAway ?? 0);
    setText(ratio, `Sample ratio ${found.decision === BROKEN ? "broken" : "as it should be"} (p ${Number(found.sampleRatioP ?? 0).toPrecision(3)})` +
      `${turned ? `; ${turned} sessions found no room` : ""}.`);
    armTable.fill(found.arms.map((arm, i) => [arm.arm, describe(spec.arms[i].policy, get("policies")?.scorers ?? []), spec.arms[i].weight,
      percent(arm.expectedShare ?? 0), Number(arm.units ?? 0), total ? percent(Number(arm.units ?? 0) / total) : "–", Number(arm.sessions ?? 0),
      i === 0 ? "control" : VERDICTS[arm.decision] ?? "–"]));
    metricTable.fill(METRICS.map(constant).flatMap((metric) => metricRows(one, metric)));
    if (shown !== chosen) ramp.value = spec.ramp ?? 0; // what somebody is typing stays
    shown = chosen;
    for (const element of [ramp, setRamp, stop]) element.disabled = stateOf(one) !== "running";
  };
  const look = async () => {
    known = (await call("AdminService/ListExperiments")).experiments ?? [];
    setText(wrong, "");
    show();
  };
  // Asks for one thing, says how it went, and looks at once.
  const act = async (method, request, done) => {
    try {
      await call(method, request);
      say(done);
      await look();
    } catch (error) {
      setText(wrong, error.message);
      say(error.message);
    }
  };
  which.addEventListener("change", () => {
    chosen = which.value;
    show();
  });
  control.addEventListener("submit", (event) => {
    event.preventDefault();
    const share = Number(ramp.value);
    act("AdminService/RampExperiment", { name: `experiments/${chosen}`, ramp: share }, `${chosen} has ${percent(share)} of the units.`);
  });
  stop.addEventListener("click", () => act("AdminService/StopExperiment", { name: `experiments/${chosen}` }, `${chosen} is stopped.`));
  body.append(starter((experiment) => {
    chosen = idOf(experiment);
    look().catch(() => {});
  }));
  on("policies", show);
  every(SECONDS, look, (error) => setText(wrong, error.message));
}

export const experiments = { id: "experiments", title: "Experiments", wide: true, mount };
