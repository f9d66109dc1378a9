// What TypeScript makes of the Node package's public names: client_types_test.py compiles this strictly, then runs it against a server.
// The line behind an @ts-expect-error is wrong: the compiler fails where it does not see that.

import {
  Answer, Client, EbbError, NotResumable, Session, assistant, grpc, policy, system, user,
  type ClientOptions, type Message, type Options, type Policy, type PolicyOptions, type Prompt, type Retry, type Turn,
} from "ebb-client";

const retry: Retry = { attempts: 2, first: 0.1, most: 1, patience: 60 };
const how: ClientOptions = {
  tenant: "default", metadata: { "x-other": "1" }, timeout: 60, retry, resume: retry, follow: [], keepalive: 60, credentials: grpc.credentials.createInsecure(),
};
const choices: PolicyOptions = {
  budget: 256, slack: 8, sinks: 4, recent: 16, modifier: "caote", scope: "layer", positions: "original", allocation: { pyramid: { beta: 4 } },
};
const chosen: Policy = policy("h2o", choices);
const greedy: Options = {
  temperature: 0, topK: 0, topP: 1, minP: 0, typicalP: 1, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, penaltyWindow: 64,
  logitBias: { 3: -1 }, seed: 7, maxTokens: 4, stop: ["@@"], stopTokens: [], ignoreEos: true, logprobs: 1, ngram: true, draftTokensMax: 2,
};
const turns: Turn[] = [system("Be short."), user("Hello."), assistant("Hello.")];
const prompts: Prompt[] = ["Once", turns, [5, 6], { text: "Once" }];

function equal(got: unknown, wanted: unknown): void {
  if (got !== wanted) throw new Error(`${String(got)} is not ${String(wanted)}`);
}

async function converse(client: Client): Promise<void> {
  const session: Session = await client.createSession(chosen, { id: "typed", ttl: 60, sampling: { temperature: 0 }, blockSize: 8, endUser: "me" });
  equal(session.name, "sessions/typed");
  for (const prompt of prompts) await session.prefill(prompt, { blockSize: 8 });
  const answer: Answer = session.generate("Once", { ...greedy, blockSize: 8 });
  let text = "";
  for await (const piece of answer) text += piece;
  equal(text, answer.text);
  equal(answer.tokens.length, 4);
  equal(answer.breaks, 0);
  equal(answer.finishReason, "MAX_TOKENS");
  const usage: Message | undefined = answer.usage;
  equal(usage?.completionTokens, 4);
  for await (const message of session.decode({ maxTokens: 1 }).messages()) equal(typeof message.cacheLength, "number");
  equal(typeof (await session.decode({ maxTokens: 1 }).read()), "string");
  await session.decode({ maxTokens: 1 }).close();

  const ids: number[] = await client.tokenize("Once upon");
  equal(typeof (await client.detokenize(ids)), "string");
  await session.verify(ids, { mode: "manual" });
  await session.accept(0);
  const { generation }: Message = await session.info();
  await session.edit([{ start: 1, end: 2, text: " nine" }, { start: 3, end: 4, tokens: { ids: [5] } }, { start: 5, end: 6 }],
                     { mode: "recompute_tail", expectedGeneration: generation });
  await session.setPolicy("tova", { dryRun: true });
  await session.evict({ keep: { count: 40 }, listVictims: true });
  equal((await session.describe({ layer: 0, head: 0, stride: 1 })).lanes.length, 1);
  const branch = await session.fork(undefined, { id: "branch", sampling: { seed: 1 } });
  await branch.save("typed");
  await branch.delete();
  const restored = await client.restore("typed", { id: "again" });
  await client.session(restored.name).delete();

  equal((await client.call("ListSessions", {}, { repeatable: true })).sessions.length, 1);
  equal((await client.once("GetSession", { name: session.name })).name, session.name);
  for await (const message of client.stream("Decode", { session: session.name, stopping: { maxTokens: 1 } })) equal(typeof message.text, "string");
  await session.delete();

  const gone = await session.info().catch((error: unknown) => error);
  if (!(gone instanceof EbbError)) throw new Error("a refusal is an EbbError");
  const { code, number, reason, field, metadata, retryDelay, cause } = gone;
  equal([code, number, reason, field].join(), ["NOT_FOUND", grpc.status.NOT_FOUND, "UNKNOWN_SESSION", ""].join());
  equal([typeof metadata, retryDelay, cause].join(), "object,,");
  equal(gone instanceof NotResumable, false);
}

async function wrong(client: Client, session: Session): Promise<void> {
  // @ts-expect-error: an option that there is not
  session.generate("Once", { maxToken: 8 });
  // @ts-expect-error: one of another type
  session.generate("Once", { maxTokens: "8" });
  // @ts-expect-error: no prompt
  session.generate(8);
  // @ts-expect-error: what says who a session is stays
  session.name = "sessions/other";
  // @ts-expect-error: no such way to reach a server
  new Client("", { token: "t" });
  // @ts-expect-error: a method that there is not
  await client.tokenise("Once");
}
void wrong;

const client = new Client(process.env.EBB_ADDR, how);
converse(client).then(() => console.log("done"), (error) => {
  console.error(error);
  process.exitCode = 1;
}).finally(() => client.close());
