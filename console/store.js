// What several panels show: set("selected", session) tells everybody who asked with on("selected", show).

const values = new Map();
const listeners = new Map();

export const get = (key) => values.get(key);

export function set(key, value) {
  values.set(key, value);
  for (const listener of listeners.get(key) ?? []) listener(value);
}

// Called now, if there is a value, and with each that follows.
export function on(key, listener) {
  if (!listeners.has(key)) listeners.set(key, []);
  listeners.get(key).push(listener);
  if (values.has(key)) listener(values.get(key));
}

// Runs `work` every `seconds` while the page is looked at, one run at a time. What it throws is handed to `failed`.
export function every(seconds, work, failed = () => {}) {
  const run = async () => {
    try {
      if (!document.hidden) await work();
    } catch (error) {
      failed(error);
    }
    setTimeout(run, seconds * 1000);
  };
  run();
}
