// Lines on standard input (corpus.py packs them) to the tokens of Hugging Face's own tokenizers on standard output: of each line how
// many, then their ids, 4 bytes each. `node reference.mjs tokenizer.json node_modules`
import { readFileSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
const { Tokenizer } = createRequire(process.argv[3] + '/')('tokenizers');

const tokenizer = Tokenizer.fromFile(process.argv[2]);
const input = readFileSync(0);
const lines = [];
for (let at = 0; at < input.length; ) {
  const size = input.readUInt32LE(at);
  lines.push(input.toString('utf8', at + 4, at + 4 + size));
  at += 4 + size;
}
const write = (bytes) => {
  for (let done = 0; done < bytes.length; ) {
    try {
      done += writeSync(1, bytes, done);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
};
for (let first = 0; first < lines.length; first += 1000) {
  const encoded = await tokenizer.encodeBatch(lines.slice(first, first + 1000), { addSpecialTokens: true });
  for (const one of encoded) {
    const ids = one.getIds();
    write(Buffer.from(Uint32Array.from([ids.length, ...ids]).buffer));
  }
}
