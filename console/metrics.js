// Numbers out of a page of Prometheus text.

// {"ebb_sessions": [{ labels: { tenant: "default" }, value: 3 }], ...}
export function parse(text) {
  const series = new Map();
  for (const line of text.split("\n")) {
    const found = /^([a-z_0-9]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const [, name, written = "", number] = found;
    const labels = Object.fromEntries([...written.matchAll(/([a-z_0-9]+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, value]) => [key, value]));
    if (!series.has(name)) series.set(name, []);
    series.get(name).push({ labels, value: number === "+Inf" ? Infinity : Number(number) });
  }
  return series;
}

// Of all series of that name that have these labels.
export function sum(page, name, labels = {}) {
  const wanted = Object.entries(labels);
  return (page.get(name) ?? []).filter((one) => wanted.every(([key, value]) => one.labels[key] === value))
    .reduce((total, one) => total + one.value, 0);
}

// [upper bound, count up to it], all tenants together, ascending.
function buckets(page, name) {
  const counts = new Map();
  for (const { labels, value } of page.get(`${name}_bucket`) ?? []) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return [...counts].sort(([a], [b]) => a - b);
}

// What `share` of the observations between two pages lie below, as histogram_quantile of Prometheus has it; null without any.
export function quantile(before, after, name, share) {
  const earlier = new Map(buckets(before, name));
  const counts = buckets(after, name).map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let [low, passed] = [0, 0];
  for (const [bound, count] of counts) {
    if (count >= share * total) return bound === Infinity ? low : low + (bound - low) * (share * total - passed) / (count - passed);
    [low, passed] = [bound, count];
  }
  return null;
}
