"use strict";
// Client of Ebb for Node; index.d.ts says what everything is.

const { randomUUID } = require("node:crypto");
const { readFileSync } = require("node:fs");
const { setTimeout: sleep } = require("node:timers/promises");
const { EbbError, NotResumable, fromRpc } = require("./errors.js");
const { Homes } = require("./homes.js");
const { Progress } = require("./progress.js");
const { fieldsOf, grpc, methods } = require("./protocol.js");

const SIGN_WITHIN_MAX = 20; // seconds
const CHANNEL = { "grpc.max_receive_message_length": -1, "grpc.initial_reconnect_backoff_ms": 100, "grpc.max_reconnect_backoff_ms": 2000 };
const PARTS = { sampling: fieldsOf("Sampling"), stopping: fieldsOf("Stopping"), speculation: fieldsOf("Speculation") };
const POLICY = { trigger: fieldsOf("Trigger"), protect: fieldsOf("Protection"), schedule: fieldsOf("Schedule"), cache: fieldsOf("CacheFormat") };

const nameOf = (kind, name) => (name.startsWith(`${kind}/`) ? name : `${kind}/${name}`);
const user = (content) => ({ role: "user", content });
const system = (content) => ({ role: "system", content });
const assistant = (content) => ({ role: "assistant", content });

function toPrompt(prompt) {
  if (typeof prompt === "string") return { text: prompt };
  if (!Array.isArray(prompt)) return prompt;
  return typeof prompt[0] === "object" ? { chat: { messages: prompt } } : { tokens: { ids: prompt } };
}

// MODIFIER_CAOTE for caote; the whole name is taken, too.
function enumValue(field, value) {
  const names = field.resolve().resolvedType?.values; // undefined for what is no enum
  if (!names || typeof value !== "string") return value;
  const prefix = Object.keys(names)[0].replace(/UNSPECIFIED$/, "");
  const found = Object.keys(names).find((name) => [name, name.slice(name.startsWith(prefix) ? prefix.length : 0)].includes(value.toUpperCase()));
  if (!found) throw new TypeError(`${field.name}: no ${value}; there are ${Object.keys(names).join(", ")}`);
  return found;
}

// Puts each field where it belongs: into the part that has it, else into the request itself.
function sorted(request, given, parts, type) {
  for (const [name, value] of Object.entries(given)) {
    const part = Object.keys(parts).find((each) => parts[each][name]);
    const field = (part ? parts[part] : fieldsOf(type))[name];
    if (!field) throw new TypeError(`${type} has no ${name}`);
    if (part) request[part] = { ...request[part], [name]: enumValue(field, value) };
    else request[name] = enumValue(field, value);
  }
  return request;
}

function policy(scorer, { allocation, ...choices } = {}) {
  const fields = fieldsOf("PolicySpec");
  const spec = { [scorer]: {} };
  if (fields[scorer]?.partOf?.name !== "scorer") throw new TypeError(`no scorer ${scorer}`);
  if (typeof allocation === "string") spec[allocation] = {};
  else Object.assign(spec, allocation);
  return sorted(spec, choices, { [scorer]: fields[scorer].resolve().resolvedType.fields, ...POLICY }, "PolicySpec");
}

const toPolicy = (given) => (typeof given === "string" ? policy(given) : given);

const RETRY = { attempts: 4, first: 0.1, most: 5, patience: 60 };
const doubling = (retry, attempt) => Math.min(retry.first * 2 ** (attempt - 2), retry.most);

// Of a call that failed so: whether it changed nothing.
const isUndone = (error) => error instanceof EbbError && (error.reason !== "" || !error.wasSent);

// The tries of one call, so far. As client/python/ebb/retry.py.
class Tries {
  #attempt = 1; // that the server answered
  #away = 1; // since it has been away
  #since = 0;

  // Seconds to wait after this one; undefined: it was the last.
  delay(retry, error) {
    if (!error.isAway) {
      this.#away = 1;
      if (++this.#attempt > retry.attempts) return undefined;
      if (error.code === "ABORTED" || error.code === "RESOURCE_EXHAUSTED") return error.retryDelay;
      return error.code === "UNAVAILABLE" ? error.retryDelay ?? doubling(retry, this.#attempt) : undefined;
    }
    const now = performance.now() / 1000;
    if (this.#away === 1) this.#since = now;
    ++this.#away;
    const delay = error.retryDelay ?? doubling(retry, this.#away);
    if (retry.attempts <= 1 || now - this.#since + delay > retry.patience) return undefined;
    return delay * (1 + Math.random() / 4); // those who wait for one server do not come back at once
  }

  backoff(retry) {
    return this.#attempt > retry.attempts ? undefined : doubling(retry, this.#attempt);
  }
}

function credentialsOf({ tls = false, ca, cert, key }) {
  if (!cert !== !key) throw new TypeError("a client's certificate and its key go together: give both, or none");
  if (!(tls || ca || cert)) return grpc.credentials.createInsecure();
  const read = (path) => (path ? readFileSync(path) : null);
  return grpc.credentials.createSsl(read(ca), read(key), read(cert));
}

function tokenIn(file) {
  const token = readFileSync(file, "utf8").trim();
  if (!/^[\x21-\x7e]+$/.test(token)) throw new TypeError(`${file} does not hold one line with a token`);
  return token;
}

class Client {
  constructor(address = "127.0.0.1:7700", options = {}) {
    const { tenant, tokenFile, credentials = credentialsOf(options), metadata = {}, timeout = 60, retry = {}, resume = {}, follow = [], keepalive = 60 } = options;
    this.retry = { ...RETRY, ...retry };
    this.resume = resume && { ...RETRY, attempts: 10, ...resume };
    this.timeout = timeout;
    this.metadata = new grpc.Metadata();
    const own = { ...(tenant && { "x-ebb-tenant": tenant }), ...(tokenFile && { authorization: `Bearer ${tokenIn(tokenFile)}` }) };
    for (const [key, value] of Object.entries({ ...own, ...metadata })) this.metadata.set(key, value);
    this.homes = new Homes(address, follow);
    this.credentials = credentials;
    const milliseconds = { "grpc.keepalive_time_ms": 1000 * keepalive, "grpc.keepalive_timeout_ms": 1000 * Math.min(keepalive, SIGN_WITHIN_MAX) };
    this.options = { ...CHANNEL, ...milliseconds };
    this.channels = new Map(); // by address, each from its first call on
    this.#channelTo(address);
  }

  close() {
    for (const channel of this.channels.values()) channel.close();
  }

  #channelTo(address) {
    if (!this.channels.has(address)) this.channels.set(address, new grpc.Client(address, this.credentials, this.options));
    return this.channels.get(address);
  }

  async createSession(spec = undefined, { id = "", ttl = undefined, ...fields } = {}) {
    const request = sorted({ sessionId: id, policy: toPolicy(spec), requestId: randomUUID() }, fields, {}, "CreateSessionRequest");
    if (ttl !== undefined) request.ttl = { seconds: Math.floor(ttl), nanos: Math.round((ttl % 1) * 1e9) };
    return new Session(this, (await this.call("CreateSession", request)).name);
  }

  session(name) {
    return new Session(this, nameOf("sessions", name));
  }

  async restore(snapshot, { id = "" } = {}) {
    const request = { snapshot: nameOf("snapshots", snapshot), sessionId: id, requestId: randomUUID() };
    return new Session(this, (await this.call("RestoreSession", request)).name);
  }

  async tokenize(prompt) {
    return (await this.call("Tokenize", { prompt: toPrompt(prompt) })).ids;
  }

  async detokenize(ids) {
    return (await this.call("Detokenize", { ids })).text;
  }

  // Any unary method of ebb.v1 by its name, tried again as `retry` says. One that is not `repeatable` only after a refusal, or where nobody
  // got it: where the connection broke, the server may have done it.
  async call(method, request, { repeatable = true } = {}) {
    for (const tries = new Tries(); ; ) {
      try {
        return await this.once(method, request);
      } catch (error) {
        const delay = repeatable || isUndone(error) ? tries.delay(this.retry, error) : undefined;
        if (delay === undefined) throw error;
        await sleep(1000 * delay);
      }
    }
  }

  // One try of a unary method.
  once(method, request) {
    const { path, serialize, deserialize } = methods[method];
    const deadline = Date.now() + 1000 * this.timeout;
    const address = this.homes.of(request);
    return new Promise((resolve, reject) => {
      this.#channelTo(address).makeUnaryRequest(path, serialize, deserialize, request, this.metadata, { deadline }, (failure, response) => {
        if (failure) return reject(this.homes.heed(request, address, fromRpc(failure)));
        this.homes.heard(address);
        resolve(response);
      });
    });
  }

  // The messages of any stream of ebb.v1 by its name, until it ends or fails; left, it is cancelled.
  async *stream(method, request) {
    const { path, serialize, deserialize } = methods[method];
    const address = this.homes.of(request);
    const call = this.#channelTo(address).makeServerStreamRequest(path, serialize, deserialize, request, this.metadata);
    try {
      for await (const message of call) {
        this.homes.heard(address);
        yield message;
      }
    } catch (failure) {
      throw failure.code === undefined ? failure : this.homes.heed(request, address, fromRpc(failure));
    } finally {
      call.on("error", () => {}); // its own cancellation
      call.cancel();
    }
  }
}

class Session {
  constructor(client, name) {
    this.client = client;
    this.name = name;
  }

  info() {
    return this.client.call("GetSession", { name: this.name });
  }

  async delete() {
    await this.client.call("DeleteSession", { name: this.name });
  }

  async fork(spec = undefined, { id = "", ...fields } = {}) {
    const request = { session: this.name, sessionId: id, policy: toPolicy(spec), requestId: randomUUID() };
    return new Session(this.client, (await this.client.call("ForkSession", sorted(request, fields, {}, "ForkSessionRequest"))).name);
  }

  async save(snapshot = "") {
    return (await this.client.call("SaveSession", { session: this.name, snapshotId: snapshot })).snapshot;
  }

  async prefill(prompt, fields = {}) {
    const answer = this.#answer("Prefill", sorted({ session: this.name, prompt: toPrompt(prompt) }, fields, {}, "PrefillRequest"));
    await answer.read();
    return answer.progress.read;
  }

  generate(prompt, options = {}) {
    return this.#answer("Generate", sorted({ session: this.name, prompt: toPrompt(prompt) }, options, PARTS, "GenerateRequest"));
  }

  decode(options = {}) {
    return this.#answer("Decode", sorted({ session: this.name }, options, PARTS, "DecodeRequest"));
  }

  verify(draftTokens, options = {}) {
    const request = sorted({ session: this.name, draftTokens }, options, { sampling: PARTS.sampling }, "VerifyRequest");
    return this.client.call("Verify", request, { repeatable: false });
  }

  accept(count) {
    return this.client.call("Accept", { session: this.name, count }, { repeatable: false });
  }

  edit(spans, fields = {}) {
    const request = sorted({ session: this.name, spans }, fields, {}, "EditRequest");
    return this.client.call("Edit", request, { repeatable: false });
  }

  async setPolicy(spec, fields = {}) {
    const request = sorted({ session: this.name, policy: toPolicy(spec) }, fields, {}, "SetPolicyRequest");
    return (await this.client.call("SetPolicy", request)).changes[0];
  }

  evict(fields) {
    return this.client.call("Evict", sorted({ session: this.name }, fields, {}, "EvictRequest"), { repeatable: false });
  }

  describe(fields = {}) {
    return this.client.call("DescribeCache", sorted({ session: this.name }, fields, {}, "DescribeCacheRequest"));
  }

  #answer(method, request) {
    if (request.n > 1) throw new TypeError("an Answer is one: for several, fork the session");
    return new Answer(this.client, new Progress(method, request));
  }
}

class Answer {
  #stream; // one for all who read: each goes on where the one before stopped

  constructor(client, progress) {
    this.client = client;
    this.progress = progress;
  }

  get text() {
    return this.progress.text;
  }

  get tokens() {
    return this.progress.tokens;
  }

  get breaks() {
    return this.progress.breaks;
  }

  get finishReason() {
    return this.progress.last?.finishReason.slice("FINISH_REASON_".length) ?? "";
  }

  get usage() {
    return this.progress.last?.usage;
  }

  async *[Symbol.asyncIterator]() {
    for await (const message of this.messages()) if (message.text) yield message.text;
  }

  async read() {
    for await (const _ of this.messages());
    return this.text;
  }

  async *messages() {
    for (;;) {
      const { value, done } = await this.#opened().next(); // `for await` would end the call where its reader leaves
      if (done) return;
      yield value;
    }
  }

  async close() {
    await this.#opened().return();
  }

  #opened() {
    this.#stream ??= this.client.resume ? this.#resuming() : this.#once();
    return this.#stream;
  }

  // A break is an error: tried again only while nothing has come, and only where nothing was done. As `stream` of client/python/ebb/flow.py.
  async *#once() {
    const { client, progress } = this;
    let begun = false;
    for (const tries = new Tries(); ; ) {
      try {
        for await (const message of client.stream(progress.method, progress.asked)) {
          begun = true;
          const fresh = progress.take(message);
          if (fresh?.tokens) yield fresh;
        }
        return;
      } catch (error) {
        const delay = !begun && isUndone(error) ? tries.delay(client.retry, error) : undefined;
        if (delay === undefined) throw error;
        await sleep(1000 * delay);
      }
    }
  }

  // As `resuming` of client/python/ebb/flow.py.
  async *#resuming() {
    const { client, progress } = this;
    let tries = new Tries();
    let begun = false; // a message has come
    let broken; // how the last stream ended that may have changed the session
    for (;;) {
      let opened = false;
      let came = false;
      let failure;
      try {
        const now = await client.once("GetSession", { name: progress.asked.session });
        if (broken && now.state === "SESSION_STATE_BUSY") {
          throw new EbbError(grpc.status.ABORTED, `${now.name} is written to by another call`, { reason: "SESSION_BUSY" });
        }
        const next = broken ? progress.afterBreak(broken, now) : progress.begin(now);
        if (!next) return;
        opened = true;
        for await (const message of client.stream(...next)) {
          begun = came = true;
          const fresh = progress.take(message);
          if (fresh) tries = new Tries();
          if (fresh?.tokens) yield fresh;
        }
        return;
      } catch (error) {
        failure = error;
      }
      const delay = this.#delay(failure, tries, begun, broken);
      if (delay === undefined) throw failure;
      if (progress.isWhole) return;
      if (opened && !["GENERATION_MISMATCH", "SESSION_BUSY"].includes(failure.reason)) {
        broken = failure;
        progress.breaks += came || !failure.reason ? 1 : 0;
      }
      await sleep(1000 * delay);
    }
  }

  #delay(error, tries, begun, broken) {
    const { client, progress } = this;
    if (!(error instanceof EbbError) || error instanceof NotResumable) return undefined;
    const retry = begun ? client.resume : client.retry;
    const delay = tries.delay(retry, error);
    if (delay !== undefined) return delay;
    const looked = broken || progress.asked.expectedGeneration === undefined;
    const passing = ["SLOW_READER", ...(looked ? ["GENERATION_MISMATCH"] : []), ...(broken ? ["SESSION_BUSY"] : [])];
    return passing.includes(error.reason) ? tries.backoff(retry) : undefined;
  }
}

module.exports = { Answer, Client, EbbError, NotResumable, Session, assistant, grpc, policy, system, user };
