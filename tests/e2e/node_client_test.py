#!/usr/bin/env python3
"""The Node package against a real server: the same tokens as the command line's, also over a break. Skipped, with a line that says what is
missing, where there is no Node or it does not find grpc-js and protobufjs: Debian 12 does not have them."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from binaries import ROOT, Server
from gate import Gate

PACKAGE = ROOT / "client/node"
PREFACE = """
const ebb = require(process.env.PACKAGE);
const patient = { attempts: 60, first: 0.01, most: 1 };
const open = (more) => new ebb.Client(process.env.EBB_ADDR, { retry: patient, resume: patient, ...more });
const answer = { maxTokens: 768, temperature: 0.8, seed: 7, ignoreEos: true };
const prompt = "It was a dark and stormy night";
const tell = (what) => console.log(JSON.stringify(what));
const failed = (error) => ({ name: error.constructor.name, code: error.code, reason: error.reason, field: error.field, delay: error.retryDelay });
"""


def node(script, address, **environment):
    return subprocess.run(["node", *script], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PACKAGE": str(PACKAGE), "EBB_ADDR": address, **environment})


def missing():
    if shutil.which("node") is None:
        return "there is no node"
    done = subprocess.run(["node", "-e", 'require("@grpc/grpc-js"); require("protobufjs")'], cwd=PACKAGE, capture_output=True, timeout=60)
    return "node finds no grpc-js and protobufjs: npm install --prefix client/node" if done.returncode else None


@unittest.skipIf(missing(), missing())
class NodeClient(unittest.TestCase):
    def told(self, body, address):
        done = node(["-e", f"{PREFACE}(async () => {{ {body} }})();"], address)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_the_example_converses_and_tidies_up(self):
        self.assertLess(len((PACKAGE / "examples/chat.js").read_text().splitlines()), 40)
        with Server() as server:
            done = node([PACKAGE / "examples/chat.js", "The passkey of Clara is 90557. What is the passkey of Clara?",
                         "What is the passkey of Clara?"], server.addr)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertGreaterEqual(done.stdout.count("90557"), 3)
            self.assertEqual(server.ebb("sessions").strip(), "no sessions")

    def test_the_readme_converses_and_tidies_up(self):
        (program,) = re.findall(r"^```js\n(.*?)^```$", (PACKAGE / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        with tempfile.TemporaryDirectory() as folder, Server() as server:
            modules = pathlib.Path(folder, "node_modules")  # as npm would install it for the reader
            modules.mkdir()
            (modules / "ebb-client").symlink_to(PACKAGE)
            file = pathlib.Path(folder, "readme.js")
            file.write_text(program.replace("127.0.0.1:7700", server.addr))
            done = node([file], server.addr)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("cellar", done.stdout)
            self.assertEqual(server.ebb("sessions").strip(), "no sessions")

    def test_an_answer_goes_on_over_a_break_with_the_same_tokens(self):
        read = """
            const client = open({});
            const session = await client.createSession(ebb.policy("h2o", { budget: 48 }), { id: %s, ttl: 60 });
            const got = session.generate(prompt, answer);
            let text = "";
            for await (const piece of got) text += piece;
            tell({ tokens: got.tokens, whole: text === got.text, text, reason: got.finishReason, breaks: got.breaks });
            client.close();
        """
        with Server() as server, Gate(server.addr) as gate:
            (right,) = self.told(read % '"right"', server.addr)
            self.assertEqual((len(right["tokens"]), right["reason"], right["breaks"], right["whole"]), (768, "MAX_TOKENS", 0, True))
            least = len(right["text"].encode()) + 2 * len(right["tokens"])  # bytes that the answer takes, however it is packed
            for point in (2, 3, 4):  # behind what the calls before it take
                with self.subTest(point):
                    gate.cuts, gate.abrupt, gate.cut_after = 0, point % 2 == 0, least * point // 5
                    (got,) = self.told(read % f'"cut-{point}"', gate.addr)
                    self.assertEqual((gate.cuts, got.pop("breaks") > 0), (1, True))
                    self.assertEqual(got, {name: value for name, value in right.items() if name != "breaks"})

    def test_a_server_that_falls_silent_is_found_out_and_the_answer_goes_on(self):
        with Server() as server, Gate(server.addr) as gate:
            gate.silent, gate.cut_after = True, 4 * 768  # behind what CreateSession takes; the tokens alone take more
            ((tokens, reason, breaks),) = self.told("""
                const client = open({ keepalive: 1 });
                const session = await client.createSession(ebb.policy("h2o", { budget: 48 }));
                const got = session.generate(prompt, answer);
                await got.read();
                tell([got.tokens.length, got.finishReason, got.breaks > 0]);
                client.close();
            """, gate.addr)
            self.assertEqual((tokens, reason, breaks, gate.cuts), (768, "MAX_TOKENS", True, 1))

    def test_a_break_behind_the_last_message_is_the_end(self):
        read = """
            const client = open({});
            const stream = client.stream;
            let streams = 0;
            client.stream = async function* (...call) {
              yield* stream.apply(client, call);
              streams += 1;
              throw new ebb.EbbError(14, "the connection broke");
            };
            const session = await client.createSession(ebb.policy("h2o", { budget: 48 }));
            const got = session.generate(prompt, { ...answer, maxTokens: 8 });
            const reasons = [];
            for await (const message of got.messages()) if (message.finishReason !== "FINISH_REASON_UNSPECIFIED") reasons.push(message.finishReason);
            tell({ streams, reasons, tokens: got.tokens.length });
            client.close();
        """
        with Server() as server:
            self.assertEqual(self.told(read, server.addr), [{"streams": 1, "reasons": ["FINISH_REASON_MAX_TOKENS"], "tokens": 8}])

    def test_an_answer_is_one_call_however_often_it_is_read(self):
        read = """
            const client = open(%s);
            const session = await client.createSession(ebb.policy("h2o", { budget: 48 }));
            let streams = 0;
            const stream = client.stream.bind(client);
            client.stream = (...given) => (++streams, stream(...given));
            const short = { ...answer, maxTokens: 24 };
            const whole = session.generate(prompt, short);
            let text = "";
            for await (const piece of whole) text += piece;
            const again = [await whole.read() === text, whole.tokens.length];
            const left = session.generate(prompt, short);
            let pieces = "";
            for await (const piece of left) { pieces += piece; break; }
            for await (const message of left.messages()) { pieces += message.text; break; }
            const some = left.tokens.length;
            for await (const piece of left) pieces += piece;
            const on = [pieces === left.text, await left.read() === pieces, some < 24, left.tokens.length, left.finishReason];
            const ended = session.generate(prompt, { ...answer, maxTokens: 1 << 20 });
            for await (const piece of ended) break;
            await ended.close();
            const before = ended.tokens.length;
            const over = [await ended.read() === ended.text, ended.tokens.length === before, ended.finishReason];
            tell({ again, on, over, streams });
            client.close();
        """
        with Server() as server:
            for options in ("{}", "{ resume: false }"):
                with self.subTest(options):
                    self.assertEqual(self.told(read % options, server.addr), [
                        {"again": [True, 24], "on": [True, True, True, 24, "MAX_TOKENS"], "over": [True, True, ""], "streams": 3}])

    def test_without_resume_a_break_is_an_error(self):
        with Server() as server, Gate(server.addr) as gate:
            gate.cut_after = 4 * 768  # behind what CreateSession takes; the tokens alone take more
            ((error, some, breaks),) = self.told("""
                const client = open({ resume: false });
                const session = await client.createSession(ebb.policy("h2o", { budget: 48 }));
                const got = session.generate(prompt, { ...answer, maxTokens: 1 << 20 });
                await got.read().catch((error) => tell([failed(error), got.tokens.length > 0, got.breaks]));
                client.close();
            """, gate.addr)
            self.assertEqual((error["code"], error["reason"], some, breaks, gate.cuts), ("UNAVAILABLE", "", True, 0, 1))

    def test_without_resume_a_refusal_is_still_waited_out(self):
        with Server("--scheduling.queue_max=1") as server:
            impatient, (tries, tokens) = self.told("""
                const client = open({ resume: false });
                const [first, second] = [await client.createSession("streaming"), await client.createSession("streaming")];
                const running = first.generate(prompt, { ...answer, maxTokens: 1 << 20 });
                await running.messages().next(); // the queue is full
                const hasty = open({ resume: false, retry: { attempts: 1 } });
                await hasty.session(second.name).generate(prompt, answer).read().catch((error) => tell(failed(error)));
                let tries = 0;
                const stream = client.stream.bind(client);
                client.stream = async function* (...given) {
                  if (++tries === 2) await running.close(); // refused once
                  yield* stream(...given);
                };
                const got = second.generate(prompt, { ...answer, maxTokens: 4 });
                await got.read();
                tell([tries, got.tokens.length]);
                client.close();
                hasty.close();
            """, server.addr)
            self.assertEqual((impatient["code"], impatient["reason"]), ("UNAVAILABLE", "QUEUE_FULL"))
            self.assertGreaterEqual(tries, 2)
            self.assertEqual(tokens, 4)

    def test_details_that_cannot_be_read_are_told_as_the_cause(self):
        ((code, reason, message, cause), delay) = self.told("""
            const { fromRpc } = require(process.env.PACKAGE + "/errors.js");
            const { details } = require(process.env.PACKAGE + "/protocol.js");
            const of = (bytes) => fromRpc({ code: 14, details: "away", metadata: { get: () => [bytes] } });
            const error = of(Buffer.from([0x1a, 0x7f]));
            tell([error.code, error.reason, error.message, error.cause.constructor.name]);
            const empty = { typeUrl: "type.googleapis.com/google.rpc.RetryInfo", value: Buffer.from([]) }; // a delay of 0 may be left out
            const packed = details.lookupType("Status").encode({ details: [empty] }).finish();
            tell(of(packed).retryDelay);
        """, "")
        self.assertEqual((code, reason, message, cause), ("UNAVAILABLE", "", "UNAVAILABLE: away", "RangeError"))
        self.assertEqual(delay, 0)

    def test_a_call_that_was_sent_away_is_unavailable(self):
        codes = self.told("""
            const { fromRpc } = require(process.env.PACKAGE + "/errors.js");
            const of = (code, details, bytes) => fromRpc({ code, details, metadata: { get: () => bytes } }).code;
            const refused = [Buffer.from([0x08, 0x01])];
            tell([of(1, "CANCELLED", []), of(1, "CANCEL", []), of(1, "Cancelled on client", []), of(1, "CANCEL", refused), of(10, "CANCEL", [])]);
        """, "")
        self.assertEqual(codes, [["UNAVAILABLE", "UNAVAILABLE", "CANCELLED", "CANCELLED", "ABORTED"]])

    def test_refusals_and_calls(self):
        with Server("--cache.sessions_max=1") as server:
            small, gone, full, wrong, rest = self.told("""
                const client = open({ retry: { attempts: 1 } });
                await client.createSession(ebb.policy("h2o", { budget: 4, sinks: 8 })).catch((error) => tell(failed(error)));
                await client.session("nowhere").info().catch((error) => tell(failed(error)));
                const session = await client.createSession(ebb.policy("full", { budget: 256 }));
                await client.createSession().catch((error) => tell(failed(error)));
                try { ebb.policy("h2o", { modifier: "cute" }); } catch (error) { tell(error.message); }
                const read = await session.prefill(prompt);
                const ids = await client.tokenize(prompt);
                const seen = await session.verify(ids.slice(1, 3), { mode: "manual" });
                await session.accept(0);
                const edited = await session.edit([{ start: 1, end: 2, text: " nine" }], { mode: "reposition" });
                const change = await session.setPolicy(ebb.policy("tova", { budget: 6, modifier: "none" }));
                const evicted = await session.evict({ keep: { count: 4 } });
                const described = await session.describe({ layer: 0, head: 0 });
                await session.delete();
                tell([read.tokensDone === ids.length, seen.pending, edited.exactness, change.lengthAfter, evicted.lengthAfter,
                      described.lanes.map((lane) => lane.length)]);
                client.close();
            """, server.addr)
        self.assertEqual(small, {"name": "EbbError", "code": "INVALID_ARGUMENT", "reason": "BUDGET_TOO_SMALL", "field": "policy.trigger.budget"})
        self.assertEqual((gone["code"], gone["reason"]), ("NOT_FOUND", "UNKNOWN_SESSION"))
        self.assertEqual((full["code"], full["reason"]), ("UNAVAILABLE", "SESSIONS_FULL"))
        self.assertGreater(full["delay"], 0)
        self.assertIn("modifier: no cute; there are", wrong)
        self.assertEqual(rest, [True, 2, "EDIT_EXACTNESS_STALE", 6, 4, [4]])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
