#!/usr/bin/env python3
"""The OpenAI port of the shipped server: with the standard library alone, and with OpenAI's own clients for Python and Node where they are
installed; else those are skipped, with a line that says what is missing."""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

from binaries import BIN, ROOT, Server

PAGE = ROOT / "docs/how-to/use-openai-clients.md"
LISTEN = "--openai.listen=127.0.0.1:0"
ASKED = "The passkey of Clara is 90557. What is the passkey of Clara?"
NODE = """
const OpenAI = require("openai");
const client = new OpenAI({ baseURL: process.env.BASE, apiKey: "none" });
const tell = (what) => console.log(JSON.stringify(what));
const messages = [{ role: "user", content: process.env.ASKED }];
const more = { model: "", temperature: 0, max_tokens: 32 };
(async () => {
  more.model = (await client.models.list()).data[0].id;
  const whole = await client.chat.completions.create({ ...more, messages });
  let streamed = "", usage = null, reason = null;
  const stream = await client.chat.completions.create({ ...more, messages, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
    reason = chunk.choices[0]?.finish_reason ?? reason;
    usage = chunk.usage ?? usage;
  }
  const ebb = { session: "node", policy: "h2o:budget=64" };
  const kept = await client.chat.completions.create({ ...more, messages, ebb });
  const next = [...messages, kept.choices[0].message, { role: "user", content: "What is the passkey of Clara?" }];
  const second = await client.chat.completions.create({ ...more, messages: next, ebb });
  const error = await client.chat.completions.create({ ...more, messages, ebb }).catch((e) => ({ status: e.status, code: e.code }));
  const wrong = await client.chat.completions.create({ ...more, messages, tools: [{ type: "function", function: { name: "f" } }] })
    .catch((e) => ({ status: e.status, code: e.code, param: e.param }));
  tell({ whole: whole.choices[0].message.content, streamed, usage, reason, kept: kept.choices[0].message.content,
         second: [second.usage.prompt_tokens, kept.usage.prompt_tokens], error, wrong });
})();
"""


def node_lacks():
    if shutil.which("node") is None:
        return "there is no node"
    done = subprocess.run(["node", "-e", 'require("openai")'], cwd=ROOT / "client/node", capture_output=True, timeout=60)
    return "node finds no openai: npm install openai, and its folder on NODE_PATH" if done.returncode else None


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
        self.assertEqual(done.returncode, 1)
        self.assertIn("openai.listen: auth.mode asks for a client certificate", done.stderr)

    def test_it_has_no_certificate_of_its_own(self):
        done = subprocess.run([BIN / "ebbd", LISTEN, "--openai.tls=on"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
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

    @unittest.skipIf(node_lacks(), node_lacks())
    def test_openais_client_for_node(self):
        with Server(LISTEN) as server:
            done = subprocess.run(["node", "-e", NODE], cwd=ROOT / "client/node", capture_output=True, text=True, timeout=120,
                                  env={**os.environ, "BASE": f"http://{server.openai}/v1", "ASKED": ASKED})
            self.assertEqual(done.returncode, 0, done.stderr)
            told = json.loads(done.stdout)
        self.assertIn("90557", told["whole"])
        self.assertEqual((told["streamed"], told["reason"]), (told["whole"], "stop"))
        self.assertGreater(told["usage"]["completion_tokens"], 0)
        self.assertLess(*told["second"])  # what is new alone
        self.assertEqual(told["error"], {"status": 409, "code": "CONVERSATION_DIFFERS"})
        self.assertEqual(told["wrong"], {"status": 400, "code": "UNSUPPORTED_FIELD", "param": "tools"})

    @unittest.skipIf(importlib.util.find_spec("openai") is None, "this Python finds no openai")
    def test_the_python_of_the_page(self):
        (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        with Server(LISTEN) as server:
            done = subprocess.run([sys.executable, "-c", program.replace("127.0.0.1:7702", server.openai)], capture_output=True, text=True,
                                  timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("cellar", done.stdout)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
