// Client of Ebb for Node. Names are those of ebb.v1 in camelCase; docs/reference/api.md says what each means, with unit and default.
// Enums may be given by their short names ("reposition", "caote"); answers have them whole ("EDIT_EXACTNESS_EXACT").

import type { ChannelCredentials } from "@grpc/grpc-js";
export * as grpc from "@grpc/grpc-js";

/** A message of ebb.v1. */
export type Message = Record<string, any>;
export type Turn = { role: "system" | "user" | "assistant"; content: string };
/** Text, a chat, token ids, or a Prompt message. */
export type Prompt = string | Turn[] | number[] | Message;
/** A scorer's name, or what `policy` makes. */
export type Policy = string | Message;

export function user(text: string): Turn;
export function system(text: string): Turn;
export function assistant(text: string): Turn;

export interface PolicyOptions {
  budget?: number; budgetRatio?: number; overflow?: number; slack?: number; maxDrop?: number; sinks?: number; recent?: number;
  when?: string; everyN?: number; then?: string; growMax?: number; modifier?: string; positions?: string; scope?: string; reduction?: string;
  kvDtype?: string; ropeCache?: string;
  /** A name, or an object of one: { pyramid: { beta: 4 } }. */
  allocation?: string | Message;
  /** What the scorer itself takes. */
  [parameter: string]: unknown;
}
/** policy("h2o", { budget: 256, sinks: 4 }) */
export function policy(scorer: string, options?: PolicyOptions): Message;

/** How an answer is made: Sampling, Stopping and Speculation. */
export interface Options {
  temperature?: number; topK?: number; topP?: number; minP?: number; typicalP?: number; repetitionPenalty?: number;
  presencePenalty?: number; frequencyPenalty?: number; penaltyWindow?: number; logitBias?: Record<number, number>; seed?: number | string;
  maxTokens?: number; stop?: string[]; stopTokens?: number[]; ignoreEos?: boolean; logprobs?: number;
  ngram?: boolean; draftModel?: string; draftTokensMax?: number; expectedGeneration?: number;
}

/**
 * Attempts in all, 1: none is repeated; seconds before the second and at most, where the server's RetryInfo names none; and seconds during
 * which a server that has answered before and is away, as while it is restarted, is tried again, however often: none of the attempts.
 * Default: 60.
 */
export interface Retry { attempts?: number; first?: number; most?: number; patience?: number }

export interface ClientOptions {
  /** Sent as x-ebb-tenant. */
  tenant?: string;
  /** File whose one line is sent as a bearer's token. */
  tokenFile?: string;
  /** Speak TLS; so does each of the next three. Default: plain HTTP/2. */
  tls?: boolean;
  /** PEM file of who signed the server's certificate. Default: whom Node trusts. */
  ca?: string;
  /** PEM files of a certificate of yours and its key, for a server that asks for one. */
  cert?: string;
  key?: string;
  /** Instead of these four. */
  credentials?: ChannelCredentials;
  metadata?: Record<string, string>;
  /** Of one try of a unary call, in seconds. Default 60. */
  timeout?: number;
  /** Of unary calls, and of answers while nothing has come. Default: 4 attempts. */
  retry?: Retry;
  /** Of answers that broke; false: a break is an error, and `retry` holds until something has come. Default: 10 attempts. */
  resume?: Retry | false;
  /**
   * Other servers that a call may go to, with your token, when its session has moved there: `host:port`, or `*.domain:port` for all of a
   * domain. Default: none, and the move is an EbbError (UNAVAILABLE, SESSION_MOVED).
   */
  follow?: string[];
  /**
   * Seconds of silence after which a server that owes an answer is asked for a sign, which it has to give within as long again, 20 s at most:
   * else the connection is broken. A server ends one that asks more often than every 30 s. Default 60.
   */
  keepalive?: number;
}

export class Client {
  constructor(address?: string, options?: ClientOptions);
  close(): void;
  /** `ttl` in seconds. */
  createSession(policy?: Policy, options?: { id?: string; ttl?: number; model?: string; sampling?: Options; blockSize?: number; endUser?: string }): Promise<Session>;
  /** One that exists, by name or id. */
  session(name: string): Session;
  restore(snapshot: string, options?: { id?: string }): Promise<Session>;
  tokenize(prompt: Prompt): Promise<number[]>;
  detokenize(ids: number[]): Promise<string>;
  /** Any unary method of ebb.v1 by its name, tried again as `retry` says; not `repeatable`: only after a refusal. */
  call(method: string, request: Message, options?: { repeatable?: boolean }): Promise<Message>;
  /** One try of it. */
  once(method: string, request: Message): Promise<Message>;
  /** The messages of any stream of ebb.v1 by its name; never repeated. */
  stream(method: string, request: Message): AsyncGenerator<Message>;
}

export class Session {
  private constructor();
  readonly name: string;
  info(): Promise<Message>;
  delete(): Promise<void>;
  fork(policy?: Policy, options?: { id?: string; sampling?: Options; expectedGeneration?: number; reserveCopies?: boolean }): Promise<Session>;
  save(snapshot?: string): Promise<Message>;
  /** Appends a prompt; the last PrefillResponse. */
  prefill(prompt: Prompt, options?: { blockSize?: number; expectedGeneration?: number }): Promise<Message>;
  /** Appends a prompt and answers it. The call begins when the answer is read. */
  generate(prompt: Prompt, options?: Options & { blockSize?: number }): Answer;
  /** Goes on from the end of the session's log. */
  decode(options?: Options): Answer;
  verify(draft: number[], options?: Options & { mode?: string }): Promise<Message>;
  accept(count: number): Promise<Message>;
  edit(spans: { start: number; end: number; text?: string; tokens?: { ids: number[] } }[],
       options?: { mode?: string; window?: number; restore?: boolean; requireExact?: boolean; expectedGeneration?: number }): Promise<Message>;
  setPolicy(policy: Policy, options?: { dryRun?: boolean; expectedGeneration?: number }): Promise<Message>;
  /** One of range, keep, olderThan, slots; and dryRun, listVictims, expectedGeneration. */
  evict(what: Message): Promise<Message>;
  describe(options?: { layer?: number; head?: number; stride?: number }): Promise<Message>;
}

/**
 * An answer while it is made, its text piece by piece. After a break of the connection it goes on by itself, with the same tokens.
 * There is one call, whoever reads: reading on after a `break` goes on where it stopped, and `close` ends it.
 */
export class Answer implements AsyncIterable<string> {
  private constructor();
  [Symbol.asyncIterator](): AsyncGenerator<string>;
  /** DecodeResponse messages: tokens, log-probabilities and cache lengths beside the text. */
  messages(): AsyncGenerator<Message>;
  /** Reads to the end: the whole text, with what was read before. */
  read(): Promise<string>;
  /** Ends the call, once the message has come that somebody waits for. What was done until then is in the session. */
  close(): Promise<void>;
  readonly text: string;
  readonly tokens: number[];
  /** How often the stream broke and went on. */
  readonly breaks: number;
  /** Such as MAX_TOKENS; empty before the end. */
  readonly finishReason: string;
  readonly usage: Message | undefined;
}

/** A call that the server refused, or that did not reach it. */
export class EbbError extends Error {
  constructor(number: number, message: string,
              told?: { reason?: string; field?: string; metadata?: Record<string, string>; retryDelay?: number; cause?: unknown });
  /** Such as UNAVAILABLE. */
  readonly code: string;
  readonly number: number;
  /** Such as NO_PAGES; empty where the server did not speak. */
  readonly reason: string;
  /** Path of the offending field; may be empty. */
  readonly field: string;
  readonly metadata: Record<string, string>;
  /** Seconds after which the server asks to be tried again. */
  readonly retryDelay: number | undefined;
  /** Whether there was a server and is none, as far as can be told, or it goes: another may come in its place. */
  readonly isAway: boolean;
  /** False where no server has ever answered the client. */
  readonly known: boolean;
  /** False where a server cannot have got the call. */
  readonly wasSent: boolean;
  /** Why the server's details, of which reason, field, metadata and delay are, could not be read; most often nothing. */
  readonly cause?: unknown;
}

/** A stream broke, and going on where it stopped is impossible. */
export class NotResumable extends EbbError {}
