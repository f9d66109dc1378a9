// Uses the console as a person would, in Debian's chromium: node drive.mjs SCENARIO URL [ARGUMENT...]
// Prints what it saw as one JSON object; fails at the first thing that does not come, and at any complaint of the browser.

import axe from "axe-core";
import { chromium } from "playwright-core";

const [scenario, url, ...rest] = process.argv.slice(2);
const PATIENCE = 60_000;

async function main() {
  // Tests run as root and in containers, where chromium has no sandbox of its own; the only page is ours.
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  try {
    console.log(JSON.stringify(await scenarios[scenario](browser)));
  } finally {
    await browser.close();
  }
}

async function open(browser, { expected = /^$/, ...how } = {}) {
  const page = await (await browser.newContext({ viewport: { width: 1360, height: 1000 }, ...how })).newPage();
  page.setDefaultTimeout(PATIENCE);
  page.complaints = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type()) && !expected.test(message.text())) page.complaints.push(message.text());
  });
  page.on("pageerror", (error) => page.complaints.push(error.message));
  page.on("request", (request) => new URL(request.url()).origin === new URL(url).origin || page.complaints.push(request.url()));
  await page.goto(`${url}/console`);
  return page;
}

const ready = (page) => page.getByText("serves ebb-tiny").waitFor();
const comes = (page, selector, hasText) => page.locator(selector, { hasText }).first().waitFor();
const panel = (page, name) => page.getByRole("region", { name, exact: true });
const answered = (page) => comes(page, "#status", /The answer is there/);

// Until the page has asked for its sessions so many times more.
async function looks(page, count) {
  for (let i = 0; i < count; ++i) await page.waitForResponse((response) => response.url().endsWith("ListSessions"));
}

async function converse(page, words = "") {
  const talk = panel(page, "Playground");
  await page.evaluate(() => (document.getElementById("status").textContent = "")); // what `answered` then finds is of this answer
  if (words) await talk.getByLabel("Say").fill(words);
  await talk.getByRole("button", { name: "Send" }).click();
}

// Ratio of contrast of every text with what is behind it, the least first; in the page.
function contrasts() {
  const numbers = (colour) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (numbers(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) || element.matches("input, textarea, select");
    if (!says || !element.checkVisibility() || element.matches("option, noscript")) continue;
    const text = element.textContent.trim().slice(0, 30);
    found.push({ ratio: ratio(getComputedStyle(element).color, behind(element)), text, element: element.tagName });
  }
  for (const line of document.querySelectorAll(".line, .span")) { // of graphics 3:1 is asked
    found.push({ ratio: ratio(getComputedStyle(line).stroke, behind(line)) * 1.5, text: line.getAttribute("class"), element: "path" });
  }
  return found.sort((a, b) => a.ratio - b.ratio);
}

// What a screen reader needs and cannot have otherwise; in the page.
function faults() {
  const wrong = [];
  const name = (element) => element.getAttribute("aria-label") || [...(element.labels ?? [])].map((label) => label.textContent.trim()).join() ||
    document.getElementById(element.getAttribute("aria-labelledby"))?.textContent || (element.matches("button, a, summary") && element.textContent.trim());
  const all = (selector) => [...document.querySelectorAll(selector)];
  for (const element of all("button, a[href], input, select, textarea, meter, canvas, summary, section, nav, dialog, [tabindex='0']")) {
    if (!name(element)) wrong.push(`no name: ${element.outerHTML.slice(0, 120)}`);
  }
  for (const [landmark, count] of [["body > header", 1], ["nav", 1], ["main", 1], ["body > footer", 1], ["h1", 1], ["html[lang]", 1], ["title", 1], ["[role=status]", 1]]) {
    if (all(landmark).length !== count) wrong.push(`${all(landmark).length} of ${landmark}`);
  }
  for (const element of all("table")) {
    if (!element.caption?.textContent) wrong.push("a table without a caption");
    if (element.querySelector("th:not([scope])")) wrong.push(`no scope: ${element.caption?.textContent}`);
  }
  const ids = all("[id]").map(({ id }) => id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) => wrong.push(`two of id ${id}`));
  for (const key of ["aria-labelledby", "aria-describedby", "for"]) {
    all(`[${key}]`).filter((one) => !ids.includes(one.getAttribute(key))).forEach((one) => wrong.push(`${key} of nothing: ${one.outerHTML.slice(0, 120)}`));
  }
  const levels = all("h1, h2, h3").filter((one) => one.checkVisibility()).map(({ tagName }) => Number(tagName[1]));
  levels.forEach((level, i) => i && level > levels[i - 1] + 1 && wrong.push(`a heading of level ${level} behind one of ${levels[i - 1]}`));
  all("[tabindex]").filter((one) => one.tabIndex > 0).forEach((one) => wrong.push(`tabindex ${one.tabIndex}`));
  all("[aria-live]:not(output), [role=log], [role=alert]").forEach((one) => wrong.push(`it talks too much: ${one.outerHTML.slice(0, 120)}`));
  return wrong;
}

// What axe-core finds against WCAG 2.2 A and AA and good practice. Given through the debugger, so that the page's policy stays in force.
async function violations(page) {
  await page.evaluate(axe.source);
  const { violations: found, passes } = await page.evaluate(() => window.axe.run());
  if (passes.length < 20) throw new Error(`axe looked at little: ${passes.length} rules`);
  return found.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 120)).join(" ; ")}`);
}

// One call without the page.
async function rpc(method, request) {
  const response = await fetch(`${url}/console/api/${method}`, { method: "POST", headers: { "X-Ebb-Console": "1" }, body: JSON.stringify(request) });
  const text = await response.text();
  if (!response.ok || text.includes('{"error"')) throw new Error(`${method}: ${text}`);
  return response.headers.get("content-type").includes("ndjson") ? text : JSON.parse(text);
}

// A session each for the numbers below `count`, past every budget of an experiment; their names decide their arms.
async function traffic(count) {
  const one = async (number) => {
    const session = await rpc("SessionService/CreateSession", { sessionId: `unit-${number}` });
    await rpc("InferenceService/Generate", { session: session.name, prompt: { text: "Once upon a time there was an old man who lived by the sea." },
      sampling: { temperature: 1, seed: number }, stopping: { maxTokens: 72, ignoreEos: true } });
    await rpc("SessionService/DeleteSession", { name: session.name });
  };
  let next = 0;
  await Promise.all(Array.from({ length: 6 }, async () => {
    while (next < count) await one(next++);
  }));
}

async function startExperiment(page, name, arms, budget, units) {
  const part = panel(page, "Experiments");
  await part.getByLabel("Name", { exact: true }).fill(name);
  for (const [i, arm] of arms.entries()) {
    await part.getByLabel("Arm", { exact: true }).nth(i).fill(arm);
    await part.getByLabel("Budget").nth(i).fill(`${budget}`);
  }
  await part.getByLabel("Units of each arm").fill(`${units}`);
  await part.getByRole("button", { name: "Start", exact: true }).click();
}

const scenarios = {
  // Past the budget with h2o, then on with another policy while an answer comes, which is then stopped.
  async conversation(browser) {
    // Who watches a session may ask for it once more while it is being deleted.
    const page = await open(browser, { expected: /status of 404/ });
    await ready(page);
    await converse(page);
    await answered(page);
    const counts = await page.locator("#counts").textContent();
    const [, first] = (await page.locator(".turns p").allTextContents());
    await comes(page, "#evictions td", "decode");
    await comes(page, "#sessions td", "h2o, budget 96");
    await page.getByRole("radio").first().waitFor();
    const cache = panel(page, "Cache");
    await comes(page, "#cache-about", "96 live in the longest of 24 lanes");
    const map = await cache.locator("canvas").boundingBox();
    const places = [];
    for (const x of [0.3, 0.99]) { // in the middle who left, at the end who is recent
      await page.mouse.move(map.x + map.width * x, map.y + map.height / 2);
      places.push(await page.locator(".tip").textContent());
    }
    const drawn = await cache.locator("canvas").evaluate((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return new Set(Array.from({ length: data.length / 4 }, (_, i) => data.slice(4 * i, 4 * i + 3).join())).size;
    });
    await cache.getByText("As a table").click();
    const rows = cache.getByRole("table", { name: "Live tokens of the lane" }).getByRole("row");
    await rows.nth(96).waitFor();
    const table = await rows.count();

    const talk = panel(page, "Playground");
    await talk.getByText("Sampling").click();
    await talk.getByLabel("Most tokens").fill("1000000");
    await converse(page, "Go on");
    await comes(page, "#sessions td", "busy");
    await talk.getByLabel("Scorer").selectOption("streaming");
    await talk.getByLabel("Budget").fill("48");
    await talk.getByRole("button", { name: "Put this policy in force" }).click();
    await comes(page, "#change", /^streaming, budget 48 is in force/);
    const change = await page.locator("#change").textContent();
    await comes(page, "#evictions td", "streaming");
    await comes(page, "#sessions td", "48 of");
    await talk.getByRole("button", { name: "Stop" }).click();
    await comes(page, ".turns .note", "Stopped.");
    await comes(page, "#sessions td", "idle");
    await talk.getByRole("button", { name: "New session" }).click();
    await page.getByText("No sessions.").waitFor();
    await page.locator(".line-0[d*='L']").first().waitFor({ state: "attached" });
    const lines = await page.locator(".line-0[d*='L']").count();
    return { counts, answer: first.length, places, drawn, table, change, lines, complaints: page.complaints };
  },

  // 120 sessions, and then the playground's own, whose name is behind theirs: what is shown stays so, and each session can be come to.
  async crowd(browser) {
    for (let i = 0; i < 120; ++i) await rpc("SessionService/CreateSession", { sessionId: `crowd-${100 + i}`, policy: { trigger: { budget: 32 }, streaming: {} } });
    const page = await open(browser);
    await ready(page);
    const table = panel(page, "Sessions");
    const which = page.locator("#sessions-page");
    await comes(page, "#sessions-page", "and there are more");
    await converse(page);
    await answered(page);
    const seen = () => Promise.all([which.textContent(), table.getByRole("radio").count(), page.locator("#cache-about").textContent(),
      table.locator("input:checked").evaluateAll((chosen) => chosen.map(({ value }) => value))]);
    await comes(page, "#cache-about", "96 live");
    await looks(page, 3);
    const first = await seen();
    await table.getByRole("button", { name: "More" }).click();
    await comes(page, "#sessions-page", "Sessions 101 to 121");
    await looks(page, 2);
    const second = await seen();
    await table.getByLabel("crowd-219", { exact: true }).check();
    await comes(page, "#cache-about", "crowd-219");
    await table.getByRole("button", { name: "Back" }).click();
    await comes(page, "#sessions-page", "Sessions 1 to 100");
    await looks(page, 2);
    const back = await seen();
    return { first, second, back, complaints: page.complaints };
  },

  // Of the two sessions that there are the first is in a file, and chosen since it is the first.
  async swapped(browser) {
    const page = await open(browser);
    await ready(page);
    await comes(page, "#cache-about", "swapped out");
    await looks(page, 2);
    const about = await page.locator("#cache-about").textContent();
    const states = await panel(page, "Sessions").getByRole("row").locator("td:nth-of-type(1)").allTextContents();
    const { sessions } = await rpc("SessionService/ListSessions", {});
    await panel(page, "Sessions").getByLabel("here", { exact: true }).check();
    await comes(page, "#cache-about", "here: ");
    return { about, states, swapped: sessions.map((session) => Boolean(session.swapped)), complaints: page.complaints };
  },

  // Two models: a conversation with each, and what the other panels then are of.
  async models(browser) {
    const page = await open(browser, { expected: /status of 404/ });
    await page.getByText("serves main").waitFor();
    await converse(page);
    await answered(page);
    await page.getByLabel("Model").selectOption("other");
    await page.getByText("serves other").waitFor();
    await comes(page, "#counts", "No session yet");
    await converse(page, "Once upon a time there was an old man");
    await answered(page);
    await comes(page, "#evictions td", "decode");
    await comes(page, "#sessions td", "other: h2o, budget 96");
    const { sessions } = await rpc("SessionService/ListSessions", {});
    const side = panel(page, "Policies side by side");
    await side.getByLabel("Tokens").fill("16");
    const asked = page.waitForRequest((request) => request.url().endsWith("Generate"));
    await side.getByRole("button", { name: "Compare" }).click();
    const { model } = (await asked).postDataJSON();
    await comes(page, "#status", "The answers are there.");
    const seen = { models: sessions.map((session) => session.model), compared: model, turns: await page.locator(".turns h3").allTextContents() };
    return { ...seen, faults: [...await page.evaluate(faults), ...await violations(page)], complaints: page.complaints };
  },

  async compare(browser) {
    const page = await open(browser);
    await ready(page);
    const side = panel(page, "Policies side by side");
    await side.getByLabel("Tokens").fill("96");
    await side.getByRole("button", { name: "Compare" }).click();
    await comes(page, "#status", "The answers are there.");
    const facts = await side.locator(".column > .hint").allTextContents();
    const answers = await side.locator(".answer").allTextContents();
    return { facts, answers, marks: await side.locator("mark").count(), complaints: page.complaints };
  },

  // One that is refused, one that runs; what its sessions show, as text and drawn; then another ramp, and its end.
  async experiments(browser) {
    const page = await open(browser, { expected: /status of 40[04]/ }); // what is refused, and who looks at a session that has just gone
    await ready(page);
    const part = panel(page, "Experiments");
    await part.getByText("No experiments.").waitFor();
    await part.getByText("Start an experiment").click();
    await startExperiment(page, "h2o-at-32", ["control", "control"], 32, 20);
    await comes(page, "#experiment-refused", "another arm");
    const refused = await page.locator("#experiment-refused").textContent();
    await startExperiment(page, "h2o-at-32", ["control", "h2o"], 32, 20);
    await comes(page, "#experiment-decision", "Nothing is decided");
    await part.getByLabel("Experiment").selectOption({ label: "h2o-at-32: running" });
    await traffic(72);
    const { experiments: [now] } = await rpc("AdminService/ListExperiments", {});
    const row = part.getByRole("row", { name: /attention mass lost \(decides\) h2o/ });
    const told = now.results.arms[1].metrics.find(({ metric }) => metric === now.spec.metric);
    await row.getByText(`${Number(told.difference.toPrecision(4))}`, { exact: true }).waitFor(); // the page has what the server has
    const drawn = await row.locator(".interval .span").evaluate((span) => ({
      bar: ["x1", "x2"].map((key) => Number(span.querySelector("line").getAttribute(key))), dot: Number(span.querySelector("circle").getAttribute("cx")),
      side: span.parentElement.getAttribute("class"), middle: span.parentElement.viewBox.baseVal.width / 2 }));
    const seen = { refused, drawn, told, arms: await part.getByRole("table", { name: /Arms/ }).getByRole("row").allTextContents(),
      cells: await row.getByRole("cell").allTextContents(), ratio: await page.locator("#experiment-ratio").textContent(),
      decision: await page.locator("#experiment-decision").textContent(), results: now.results };
    seen.faults = [...await page.evaluate(faults), ...await violations(page)];
    seen.contrast = (await page.evaluate(contrasts)).slice(0, 3);

    await part.getByLabel("Ramp").first().fill("0.5");
    await part.getByRole("button", { name: "Set the ramp" }).click();
    await part.getByText("50.0 % of the units").waitFor();
    await part.getByRole("button", { name: "Stop it" }).click();
    await part.getByLabel("Experiment").locator("option", { hasText: "h2o-at-32: stopped" }).waitFor({ state: "attached" });
    seen.stop = await part.getByRole("button", { name: "Stop it" }).isDisabled();
    return { ...seen, complaints: page.complaints };
  },

  // No mouse: the skip link, words and Enter, the map by arrow keys; where the focus is, it shows.
  async keyboard(browser) {
    const page = await open(browser);
    await ready(page);
    const focused = () => page.evaluate(() => {
      const one = document.activeElement;
      return { tag: one.tagName, text: one.textContent.slice(0, 40), outline: getComputedStyle(one).outlineStyle, seen: one.checkVisibility() };
    });
    await page.keyboard.press("Tab");
    const skip = await focused();
    await page.keyboard.press("Enter");
    const tabTo = async (tag) => {
      const path = [];
      for (let i = 0; i < 60; ++i) {
        await page.keyboard.press("Tab");
        path.push(await focused());
        if (path.at(-1).tag === tag) return path;
      }
      throw new Error(`Tab does not come to ${tag}: ${JSON.stringify(path)}`);
    };
    const path = await tabTo("TEXTAREA");
    await page.keyboard.press("Enter");
    await answered(page);
    await comes(page, "#cache-about", "96 live");
    path.push(...await tabTo("CANVAS"));
    await page.keyboard.press("End");
    const last = await page.locator("#cache-place").textContent();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowLeft");
    const next = await page.locator("#cache-place").textContent();
    return { skip, path, last, next, complaints: page.complaints };
  },

  async reader(browser) {
    const seen = {};
    for (const colorScheme of ["light", "dark"]) {
      const page = await open(browser, { colorScheme });
      await ready(page);
      await converse(page);
      await answered(page);
      await comes(page, "#evictions td", "decode");
      for (const fold of await page.locator("summary").all()) await fold.click();
      await comes(page, "#cache td", "96");
      seen[colorScheme] = { contrast: (await page.evaluate(contrasts)).slice(0, 3), faults: [...await page.evaluate(faults), ...await violations(page)],
        page: await page.evaluate(() => getComputedStyle(document.body).backgroundColor) };
      const other = colorScheme === "light" ? "dark" : "light";
      await page.getByLabel("Theme").selectOption(other);
      seen[colorScheme].chosen = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      await page.reload();
      await ready(page);
      seen[colorScheme].kept = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      seen[colorScheme].complaints = page.complaints;
    }
    return seen;
  },

  // ARGUMENTS: a wrong token, a tenant's, an admin's.
  async token(browser) {
    const page = await open(browser, { expected: /status of 40[13]/ });
    const dialog = page.getByRole("dialog", { name: "This server asks who you are" });
    const why = [];
    await dialog.waitFor();
    why.push(await page.locator("#ask-why").textContent());
    const give = async (token) => {
      await dialog.getByLabel("An admin’s token").fill(token);
      await page.keyboard.press("Enter");
    };
    await give(rest[0]);
    await comes(page, "#ask-why", "not a valid one");
    why.push(await page.locator("#ask-why").textContent());
    await give(rest[1]);
    await comes(page, "#server", "admin");
    why.push(await page.locator("#server").textContent());
    await page.reload();
    await dialog.waitFor(); // it was in that page's memory alone
    await give(rest[2]);
    await ready(page);
    await converse(page);
    await answered(page);
    const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
    return { why, kept, complaints: page.complaints };
  },

  // ARGUMENT: the URL of a page of another origin, which tries to call.
  async foreign(browser) {
    const page = await browser.newPage();
    await page.goto(rest[0]);
    return page.evaluate((target) => Promise.all([{ "X-Ebb-Console": "1" }, {}].map((headers) =>
      fetch(`${target}/console/api/SessionService/CreateSession`, { method: "POST", headers, body: "{}" })
        .then((response) => response.status, (error) => error.name))), url);
  },

  // ARGUMENT: a folder. What the documentation shows.
  async pictures(browser) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await open(browser, { colorScheme, viewport: { width: 1180, height: 570 } });
      await ready(page);
      await converse(page);
      await answered(page);
      await comes(page, "#cache-about", "96 live");
      await page.evaluate(() => scrollTo(0, 0));
      const map = await page.locator("canvas").boundingBox();
      await page.mouse.move(map.x + map.width * 0.83, map.y + map.height * 0.4);
      await page.locator(".tip", { hasText: "token" }).waitFor();
      await page.waitForTimeout(1000); // the marks of those who just left fade
      await page.screenshot({ path: `${rest[0]}/console-${colorScheme}.png` });
      if (colorScheme === "dark") continue;
      const side = panel(page, "Policies side by side");
      await side.getByLabel("Tokens").fill("64");
      await side.getByRole("button", { name: "Compare" }).click();
      await comes(page, "#status", "The answers are there.");
      await side.screenshot({ path: `${rest[0]}/console-side-by-side.png` });
      const part = panel(page, "Experiments");
      await part.getByText("Start an experiment").click();
      await startExperiment(page, "h2o-at-32", ["control", "h2o"], 32, 20);
      await comes(page, "#experiment-decision", "Nothing is decided");
      await part.getByText("Start an experiment").click();
      await traffic(120);
      const { experiments: [{ results }] } = await rpc("AdminService/ListExperiments", {});
      for (const { sessions } of results.arms) await part.getByRole("cell", { name: sessions, exact: true }).first().waitFor();
      await page.setViewportSize({ width: 1420, height: 800 }); // its widest table, whole
      await part.screenshot({ path: `${rest[0]}/console-experiments.png` });
    }
    return {};
  },
};

await main();
