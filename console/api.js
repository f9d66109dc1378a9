// The server's RPCs: call("SessionService/ListSessions", {}) is one answer, stream("InferenceService/Generate", request) many.
// Requests and answers are proto3 JSON of ebb.v1, so int64 come as strings: Number() them.

const API = new URL("../api/", import.meta.url);
const PAGE = new URL("../../", import.meta.url);
const CODES = ["OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
  "UNAUTHENTICATED"];

// Whose calls they are. In memory alone: a page that is reloaded asks again.
export const caller = { token: "", tenant: "" };

// "unauthenticated" when a token is missing or wrong, its detail the sentence that says which.
export const events = new EventTarget();

export class EbbError extends Error {
  // `error`: google.rpc.Status with its details.
  constructor(error) {
    super(error.message || "the server gave no reason");
    this.code = CODES[error.code] ?? "UNKNOWN";
    for (const detail of error.details ?? []) {
      if (detail.reason) this.reason = detail.reason;
      if (detail.retryDelay) this.retrySeconds = parseFloat(detail.retryDelay);
    }
  }
}

async function post(method, request, signal) {
  const headers = { "Content-Type": "application/json", "X-Ebb-Console": "1" };
  if (caller.token) headers.Authorization = `Bearer ${caller.token}`;
  if (caller.tenant) headers["X-Ebb-Tenant"] = caller.tenant;
  const response = await fetch(new URL(method, API), { method: "POST", headers, body: JSON.stringify(request), signal });
  if (response.ok) return response;
  const text = await response.text();
  let error = { code: 2, message: `HTTP ${response.status}: ${text.slice(0, 200)}` };
  if (text.startsWith("{")) ({ error } = JSON.parse(text));
  const refused = new EbbError(error);
  if (refused.code === "UNAUTHENTICATED") events.dispatchEvent(new CustomEvent("unauthenticated", { detail: refused.message }));
  throw refused;
}

export async function call(method, request = {}, signal = undefined) {
  return (await post(method, request, signal)).json();
}

// Yields each message; ends by throwing where the call failed. Leaving the loop, or `signal`, cancels the call.
export async function* stream(method, request = {}, signal = undefined) {
  const leave = new AbortController();
  signal?.addEventListener("abort", () => leave.abort(), { once: true });
  if (signal?.aborted) leave.abort();
  try {
    const response = await post(method, request, leave.signal);
    const lines = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await lines.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) {
        if (part === "") continue; // the server only shows that it is there
        const line = JSON.parse(part);
        if (line.error) throw new EbbError(line.error);
        yield line.result;
      }
    }
  } finally {
    leave.abort();
  }
}

export async function metricsPage() {
  const response = await fetch(new URL("metrics", PAGE));
  if (!response.ok) throw new Error(`/metrics answers ${response.status}`);
  return response.text();
}
