#!/usr/bin/env node
// A conversation that outlives its cache. Each argument is a turn.
const ebb = require("..");

async function main(turns) {
  const client = new ebb.Client(process.env.EBB_ADDR);
  try {
    const session = await client.createSession(ebb.policy("h2o", { budget: 256 }));
    for (const turn of turns) {
      console.log(">", turn);
      const answer = session.generate([ebb.user(turn)], { temperature: 0, maxTokens: 48 });
      for await (const text of answer) process.stdout.write(text);
      console.log(`\n[cache ${answer.usage.cacheLength} of ${answer.usage.sessionTokens} tokens seen]`);
    }
    await session.delete();
  } catch (error) {
    console.error(`chat.js: ${error.message}`);
    process.exitCode = 1;
  } finally {
    client.close();
  }
}

const turns = process.argv.slice(2);
main(turns.length ? turns : ["The lamp is in the cellar. Where is the lamp?"]);
