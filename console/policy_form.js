// The policy picker: what ListPolicies describes, as a form. A server that learns a scorer shows it here with no change.

import { field, h, options, setText } from "./dom.js";
import { on } from "./store.js";

// { element, spec(), title() }. `chosen` is the scorer to begin with, `budget` its budget; empty: the model's context.
export function policyForm(legend, chosen, budget) {
  const scorer = h("select");
  const size = h("input", { type: "number", min: 1, step: 1, inputmode: "numeric", placeholder: "context", value: budget });
  const modifier = h("select");
  const allocation = h("select");
  const summary = h("p", { class: "hint" });
  let known = { scorers: [], modifiers: [], allocations: [] };

  const refresh = () => {
    const described = known.scorers.find(({ name }) => name === scorer.value);
    setText(summary, described ? described.summary.replaceAll("`", "") : "");
    modifier.disabled = !described?.takesModifiers;
    if (modifier.disabled) modifier.value = "none";
  };
  on("policies", (policies) => {
    known = policies;
    scorer.replaceChildren(...options(policies.scorers.map(({ name }) => name), chosen));
    modifier.replaceChildren(...options(["none", ...policies.modifiers.map(({ name }) => name).filter((name) => name !== "none")], "none"));
    allocation.replaceChildren(...options(policies.allocations.map(({ name }) => name), "uniform"));
    refresh();
  });
  scorer.addEventListener("change", refresh);

  const element = h("fieldset", {}, h("legend", {}, legend),
    field("Scorer", scorer), field("Budget", size, "tokens per lane"), field("Modifier", modifier), field("Allocation", allocation), summary);
  const spec = () => ({
    ...(size.value && { trigger: { budget: Number(size.value) } }),
    [scorer.value]: {},
    ...(modifier.value !== "none" && { modifier: `MODIFIER_${modifier.value.toUpperCase()}` }),
    ...(allocation.value !== "uniform" && { [allocation.value]: {} }),
  });
  const title = () => `${scorer.value} ${size.value}`.trim();
  return { element, spec, title };
}

// "h2o, budget 96" of a PolicySpec whose every field is filled in.
export function describe(spec, scorers) {
  if (!spec) return "";
  const camel = (name) => name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase());
  const name = scorers.map((scorer) => scorer.name).find((known) => camel(known) in spec) ?? "streaming";
  const size = spec.trigger?.budget ? `budget ${spec.trigger.budget}` : `ratio ${spec.trigger?.budgetRatio}`;
  const modifier = spec.modifier && spec.modifier !== "MODIFIER_NONE" ? ` + ${spec.modifier.slice(9).toLowerCase()}` : "";
  return `${name}${modifier}, ${size}`;
}
