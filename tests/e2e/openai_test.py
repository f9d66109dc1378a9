#!/usr/bin/env python3
"""The OpenAI port of the shipped server: with the standard library alone, and with OpenAI's own clients for Node (npm) and Python where they are
installed; else those are skipped, with a line that says what is missing. The Python of the page runs in any case: see openai_stand_in."""
import importlib.util
import json
import os
import re
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

from binaries import BIN, ROOT, Server
from npm import HERE, missing, too_old_for

PAGE = ROOT / "docs/how-to/use-openai-clients.md"
LISTEN = "--openai.listen=127.0.0.1:0"
ASKED = "The passkey of Clara is 90557. What is the passkey of Clara?"
NODE = """
const OpenAI = require("openai");
let sent = 0; // requests, those included that the client makes again by itself
const counted = (...request) => { sent += 1; return fetch(...request); };
const client = new OpenAI({ baseURL: process.env.BASE, apiKey: "none", fetch: counted });
const messages = [{ role: "user", content: process.env.ASKED }];
const failed = async (asked) => {
  const before = sent;
  const error = await client.chat.completions.create(asked).catch((each) => each);
  return { kind: error.constructor.name, status: error.status, code: error.code, param: error.param, sent: sent - before };
};
(async () => {
  const { id: model } = (await client.models.list()).data[0];
  const named = (await client.models.retrieve(model)).id === model;
  const more = { model, temperature: 0, max_tokens: 32 };
  const whole = await client.chat.completions.create({ ...more, messages });
  let streamed = "", usage = null, reason = null;
  const stream = await client.chat.completions.create({ ...more, messages, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
    reason = chunk.choices[0]?.finish_reason ?? reason;
    usage = chunk.usage ?? usage;
  }
  const gathered = await client.chat.completions.stream({ ...more, messages }).finalContent();
  const completed = await client.completions.create({ ...more, prompt: "Once upon a time", max_tokens: 4, stop: null });
  const endless = await client.chat.completions.create({ ...more, messages, stream: true, max_tokens: 1 << 20, ignore_eos: true });
  let left = 0;
  for await (const _ of endless) if (++left === 3) break; // the client hangs up
  const ebb = { session: "node", policy: "h2o:budget=64" };
  const kept = await client.chat.completions.create({ ...more, messages, ebb });
  const next = [...messages, kept.choices[0].message, { role: "user", content: "What is the passkey of Clara?" }];
  const second = await client.chat.completions.create({ ...more, messages: next, ebb });
  console.log(JSON.stringify({
    named, whole: whole.choices[0].message.content, streamed, gathered, usage, reason, left,
    completed: [completed.choices[0].text.length > 0, completed.usage.completion_tokens],
    second: [second.usage.prompt_tokens, kept.usage.prompt_tokens], cache: second.usage.ebb,
    differs: await failed({ ...more, messages, ebb }),
    wrong: await failed({ ...more, messages, tools: [{ type: "function", function: { name: "f" } }] }),
    policy: await failed({ ...more, messages, ebb: { policy: "h2o:budget=4:sinks=8" } }),
    unknown: await failed({ ...more, messages, model: "nobody" }),
  }));
})();
"""


def post(address, path, body):
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return answer.read().decode()


class Port(unittest.TestCase):
    def test_it_is_off_unless_asked_for(self):
        with Server() as server:
            self.assertEqual(server.openai, "")

    def test_client_certificates_do_not_go_with_it(self):
        done = subprocess.run([BIN / "ebbd", LISTEN, "--auth.mode=mtls", "--tls.cert=a", "--tls.key=b", "--tls.client_ca=c"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("openai.listen: auth.mode asks for a client certificate", done.stderr)

    def test_it_has_no_certificate_of_its_own(self):
        done = subprocess.run([BIN / "ebbd", LISTEN, "--openai.tls=on"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("openai.tls: it takes the certificate of tls.cert", done.stderr)

    def test_the_command_of_the_page(self):
        (command,) = re.findall(r"^  -d '(.*)'$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
        with Server(LISTEN) as server:
            answer = json.loads(post(server.openai, "/v1/chat/completions", json.loads(command)))
            self.assertIn("cellar", answer["choices"][0]["message"]["content"])

    def test_a_conversation_on_a_session_that_is_kept(self):
        with Server(LISTEN) as server:
            messages = [{"role": "user", "content": ASKED}]
            body = {"temperature": 0, "max_tokens": 32, "ebb": {"session": "tour", "policy": "h2o:budget=64"}}
            first = json.loads(post(server.openai, "/v1/chat/completions", {**body, "messages": messages}))
            self.assertIn("90557", first["choices"][0]["message"]["content"])
            messages += [first["choices"][0]["message"], {"role": "user", "content": "What is the passkey of Clara?"}]
            events = post(server.openai, "/v1/chat/completions", {**body, "messages": messages, "stream": True}).split("\n\n")
            self.assertEqual(events[-2:], ["data: [DONE]", ""])
            text = "".join(json.loads(event[6:])["choices"][0]["delta"].get("content", "") for event in events[:-2])
            self.assertIn("90557", text)
            self.assertIn("tour", server.ebb("sessions"))
            with self.assertRaises(urllib.error.HTTPError) as refused:
                post(server.openai, "/v1/chat/completions", {**body, "messages": messages[:1]})
            self.assertEqual((refused.exception.code, json.load(refused.exception)["error"]["code"]), (409, "CONVERSATION_DIFFERS"))

    @unittest.skipIf(missing("openai") or too_old_for("openai"), missing("openai") or too_old_for("openai"))
    def test_openais_client_for_node(self):
        with Server(LISTEN) as server:
            done = subprocess.run(["node", "-e", NODE], cwd=HERE, capture_output=True, text=True, timeout=120,
                                  env={**os.environ, "BASE": f"http://{server.openai}/v1", "ASKED": ASKED})
            self.assertEqual(done.returncode, 0, done.stderr)
            told = json.loads(done.stdout)
        self.assertIn("90557", told["whole"])
        self.assertEqual((told["streamed"], told["gathered"], told["reason"]), (told["whole"], told["whole"], "stop"))
        self.assertGreater(told["usage"]["completion_tokens"], 0)
        self.assertEqual((told["named"], told["completed"], told["left"]), (True, [True, 4], 3))
        self.assertLess(*told["second"])  # what is new alone
        self.assertLessEqual(told["cache"]["cache_length"], 64)
        self.assertGreater(told["cache"]["session_tokens"], told["second"][0])

        def refusal(kind, status, code, param):  # sent once: `x-should-retry: false` keeps the client from asking again
            return {"kind": kind, "status": status, "code": code, "param": param, "sent": 1}
        self.assertEqual(told["differs"], refusal("ConflictError", 409, "CONVERSATION_DIFFERS", "messages"))
        self.assertEqual(told["wrong"], refusal("BadRequestError", 400, "UNSUPPORTED_FIELD", "tools"))
        self.assertEqual(told["policy"], refusal("BadRequestError", 400, "BUDGET_TOO_SMALL", "ebb.policy.trigger.budget"))
        self.assertEqual(told["unknown"], refusal("NotFoundError", 404, "UNKNOWN_MODEL", "model"))

    def run_the_python_of_the_page(self, **environment):
        (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        with Server(LISTEN) as server:
            done = subprocess.run([sys.executable, "-c", program.replace("127.0.0.1:7702", server.openai)], capture_output=True, text=True,
                                  timeout=120, env={**os.environ, **environment})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("cellar", done.stdout)

    @unittest.skipIf(importlib.util.find_spec("openai") is None, "this Python finds no openai")
    def test_the_python_of_the_page(self):
        self.run_the_python_of_the_page()

    def test_the_python_of_the_page_with_a_stand_in_for_openais_client(self):
        self.run_the_python_of_the_page(PYTHONPATH=str(HERE / "openai_stand_in"))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
