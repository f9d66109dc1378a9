"use strict";
// What of an answer has come, and what to ask for after its stream broke: as client/python/ebb/progress.py, which says why.

const { NotResumable } = require("./errors.js");

class Progress {
  constructor(method, asked) {
    Object.assign(this, { method, asked, tokens: [], text: "", read: undefined, last: undefined, breaks: 0 });
    this.total = method === "Decode" ? 0 : asked.prompt.tokens?.ids.length; // tokens of the prompt, where that is known
    this.done = 0; // of these, in the session before the stream that runs now
    this.tokenAt = this.textAt = this.sequence = 0;
  }

  // The last message has come: whatever becomes of the stream, there is nothing more to say.
  get isWhole() {
    if (this.method === "Prefill") return this.read !== undefined && this.read.tokensDone === this.read.tokensTotal;
    return this.last !== undefined;
  }

  // The first call, tied to the session as it stands: so it is known where the answer begins.
  begin(before) {
    this.before = before;
    return this.#again(before);
  }

  // What is new in a message; undefined when nothing is.
  take(given) {
    const message = given.prefill ?? given.decode ?? given;
    if (message.tokensTotal !== undefined) {
      this.total = this.done + message.tokensTotal;
      this.read = { ...message, tokensDone: this.done + message.tokensDone, tokensTotal: this.total };
      return this.read;
    }
    const old = this.tokens.slice(this.tokenAt, this.tokenAt + message.tokens.length);
    if (old.some((token, i) => token !== message.tokens[i])) {
      throw this.#stop("the session holds other tokens than those that came before the break");
    }
    const text = message.text.slice(Math.max(0, this.text.length - this.textAt));
    const tokens = message.tokens.slice(old.length);
    this.tokenAt += message.tokens.length;
    this.textAt += message.text.length;
    this.tokens.push(...tokens);
    this.text += text;
    const fresh = { ...message, tokens, text, sequence: this.sequence };
    const ends = message.finishReason !== "FINISH_REASON_UNSPECIFIED";
    if (ends) this.last = fresh;
    if (!ends && tokens.length === 0 && text === "" && !message.evictedTokens) return undefined;
    this.sequence += 1;
    return fresh;
  }

  // [method, request] to go on with, the session being as `now`; undefined when nothing is left.
  afterBreak(error, now) {
    this.error = error;
    const read = now.promptTokens - this.before.promptTokens;
    const made = now.tokens - this.before.tokens - read;
    const decodes = this.method !== "Prefill";
    const whole = this.total ?? read;
    const alone = now.generation <= this.generation + 1; // a call raises it once, however much it appends
    const fits = this.done <= read && read <= whole && made >= this.tokens.length && (made === 0 || (decodes && read === whole));
    if (!fits || (this.total === undefined && !alone)) throw this.#stop(`${now.name} was changed by others after the stream broke`);
    if (made > 0 || this.#promptIsIn(read, now)) {
      if (decodes) return this.#restOfAnswer(now, this.before.tokens + read, made);
      const usage = { promptTokens: read, cacheLength: now.cacheLength, sessionTokens: now.tokens };
      this.read = { tokensDone: read, tokensTotal: read, cacheLength: now.cacheLength, generation: now.generation, usage };
      return undefined;
    }
    if (read === 0) return this.#again(now);
    const ids = this.asked.prompt.tokens?.ids;
    if (!ids) throw this.#stop(`${read} tokens of the prompt are in ${now.name}; which are missing is known only of prompts of token ids`);
    this.done = read;
    this.generation = now.generation;
    return [this.method, { ...this.asked, prompt: { tokens: { ids: ids.slice(read) } }, expectedGeneration: now.generation }];
  }

  // Only a prompt's last block is shorter than the others.
  #promptIsIn(read, now) {
    return this.total === undefined ? read % (this.asked.blockSize || now.blockSize) !== 0 : read === this.total;
  }

  #restOfAnswer(now, start, made) {
    if (this.asked.stopping?.logprobs !== undefined && made > 0) throw this.#stop("log-probabilities of tokens that were sent are not kept");
    this.tokenAt = this.textAt = 0;
    this.generation = now.generation;
    const { sampling, stopping, speculation } = this.asked;
    return ["Decode", { session: now.name, resumeFrom: start, expectedGeneration: now.generation, sampling, stopping, speculation }];
  }

  #again(session) {
    this.generation = session.generation;
    return [this.method, { expectedGeneration: session.generation, ...this.asked }];
  }

  #stop(why) {
    return new NotResumable(this.error.number, `${why} (the stream broke with ${this.error.message})`);
  }
}

module.exports = { Progress };
