#!/usr/bin/env python3
"""A server that wants a certificate and a token, and every client that has both: the command line, Python, Node."""
import asyncio
import json
import os
import pathlib
import re
import shutil
import ssl
import stat
import subprocess
import tempfile
import unittest
import urllib.request

from binaries import BIN, ROOT, Server
import python_package  # noqa: F401  makes the package, and puts it on the path

import ebb
import grpc
from ebb.v1 import (eviction_pb2_grpc, inference_pb2 as inference, inference_pb2_grpc, sampling_pb2 as sampling, session_pb2 as session,
                    session_pb2_grpc)
from ebb.v1.policy_pb2 import PolicySpec, Streaming, Trigger

NODE = ROOT / "client/node"
NEW_KEY = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def run(*command, check=0, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == check, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@unittest.skipIf(shutil.which("openssl") is None, "there is no openssl")
class Secured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        path = lambda name: str(cls.folder / name)  # noqa: E731
        cls.path = staticmethod(path)
        run(*NEW_KEY, "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", path("ca.key"), "-out", path("ca.pem"))
        for name in ("server", "gateway"):
            run(*NEW_KEY, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path(f"{name}.key"), "-out", path("csr"))
            run("openssl", "x509", "-req", "-in", path("csr"), "-CA", path("ca.pem"), "-CAkey", path("ca.key"), "-days", "2",
                "-copy_extensions", "copy", "-out", path(f"{name}.pem"))
        lines = [run(BIN / "ebb", "token", "acme", "--out", path("acme.token")).stdout,
                 run(BIN / "ebb", "token", "ops", "--admin", "--out", path("ops.token")).stdout]
        cls.lines = lines
        (cls.folder / "tokens").write_text("".join(lines), encoding="utf-8")
        cls.server = cls.enterClassContext(Server(
            "--auth.mode=token+mtls", f"--auth.token_file={path('tokens')}", f"--tls.cert={path('server.pem')}",
            f"--tls.key={path('server.key')}", f"--tls.client_ca={path('ca.pem')}"))
        cls.certificate = ["--ca", path("ca.pem"), "--cert", path("gateway.pem"), "--key", path("gateway.key")]

    def test_a_token_is_made_for_its_bearer_alone(self):
        token = (self.folder / "acme.token").read_text(encoding="utf-8")
        self.assertRegex(token, r"^ebb_[\w-]{43}\n$")
        self.assertEqual(stat.S_IMODE(os.stat(self.path("acme.token")).st_mode), 0o600)
        self.assertRegex(self.lines[0], r"^acme sha256:[0-9a-f]{64}\n$")
        self.assertRegex(self.lines[1], r"^ops sha256:[0-9a-f]{64} admin\n$")
        self.assertNotIn(token.strip(), self.lines[0])
        again = run(BIN / "ebb", "token", "acme", "--out", self.path("acme.token"), check=1)
        self.assertIn("File exists", again.stderr)
        self.assertEqual((self.folder / "acme.token").read_text(encoding="utf-8"), token)
        self.assertIn("no tenant's name", run(BIN / "ebb", "token", "Acme", "--out", self.path("x"), check=2).stderr)

    def test_the_command_line_needs_both(self):
        acme, ops = ["--token-file", self.path("acme.token")], ["--token-file", self.path("ops.token")]
        self.assertEqual(self.server.ebb(*self.certificate, *acme, "sessions").strip(), "no sessions")
        self.assertIn("server", self.server.ebb(*self.certificate, *ops, "status"))
        self.server.ebb(*self.certificate, *acme, "status", check=1)
        self.assertIn("needs an admin's credential", self.server.stderr)
        self.server.ebb(*self.certificate, "sessions", check=1)
        self.assertIn("wants a token", self.server.stderr)
        self.server.ebb(*acme, "--ca", self.path("ca.pem"), "sessions", check=3)
        self.server.ebb(*acme, "sessions", check=3)
        self.assertIn("SERVING", self.server.ebb(*self.certificate, "health"))
        environment = {"EBB_CA": self.path("ca.pem"), "EBB_CERT": self.path("gateway.pem"), "EBB_KEY": self.path("gateway.key"),
                       "EBB_TOKEN_FILE": self.path("acme.token"), "EBB_ADDR": self.server.addr}
        self.assertEqual(run(BIN / "ebb", "sessions", **environment).stdout.strip(), "no sessions")

    def test_what_the_command_line_cannot_read_is_said(self):
        self.server.ebb("--token-file", self.path("none"), "sessions", check=2)
        self.assertIn("cannot read " + self.path("none"), self.server.stderr)
        self.server.ebb("--token-file", self.path("ca.pem"), "sessions", check=2)
        self.assertIn("does not hold one line with a token", self.server.stderr)
        self.server.ebb("--cert", self.path("gateway.pem"), "sessions", check=2)
        self.assertIn("go together", self.server.stderr)

    def test_who_reaches_no_server_is_told_what_is_likely_wrong(self):
        ca = ("--ca", self.path("ca.pem"))
        self.server.ebb("sessions", check=3)
        self.assertRegex(self.server.stderr, f"^ebb: {self.server.addr} hangs up at once, as a port does that speaks TLS.* Say --tls, or --ca .*gRPC: ")
        self.server.ebb(*ca, "sessions", check=3)
        self.assertRegex(self.server.stderr, "hangs up at once, as a port does that wants its callers' certificates. Show yours with --cert and --key")
        self.server.ebb("--tls", "sessions", check=3)
        self.assertRegex(self.server.stderr, "shows a certificate that is not trusted here. Name who signed it with --ca")
        with Server() as plain:
            plain.ebb(*ca, "sessions", check=3)
            self.assertRegex(plain.stderr, f"^ebb: {plain.addr} does not speak TLS. Leave out --tls, --ca, ")
            plain.ebb(f"--addr={plain.http}", "sessions", check=3)
            self.assertRegex(plain.stderr, f"^ebb: {plain.http} does not speak gRPC. Name ebbd's server.listen with --addr")
        self.server.ebb("--addr=no-such-host.invalid:7700", "sessions", check=3)
        self.assertRegex(self.server.stderr, "^ebb: no-such-host.invalid:7700 is the address of no host that can be found. Look at --addr ")
        self.server.ebb("--json", "sessions", check=3)
        self.assertIn("Say --tls", json.loads(self.server.stderr)["error"]["message"])
        self.assertEqual(self.server.stderr.count("\n"), 1)

    def test_python_shows_both(self):
        shown = {"ca": self.path("ca.pem"), "cert": self.path("gateway.pem"), "key": self.path("gateway.key")}
        with ebb.Client(self.server.addr, token_file=self.path("acme.token"), **shown) as client:
            with client.create_session("streaming") as session:
                self.assertEqual(session.info().tenant, "acme")
        with ebb.Client(self.server.addr, retry=ebb.Retry(attempts=1), **shown) as client:
            with self.assertRaises(ebb.Error) as caught:
                client.sessions()
            self.assertEqual(caught.exception.reason, "NO_CREDENTIAL")

        async def ask():
            async with ebb.aio.Client(self.server.addr, token_file=self.path("acme.token"), **shown) as client:
                return await client.sessions()
        self.assertEqual(asyncio.run(ask()), [])
        with self.assertRaises(ValueError):
            ebb.Client(self.server.addr, cert=self.path("gateway.pem"))
        with self.assertRaises(ValueError):
            ebb.Client(self.server.addr, token_file=self.path("ca.pem"))

    def test_node_shows_both(self):
        found = subprocess.run(["node", "-e", 'require("@grpc/grpc-js"); require("protobufjs")'], cwd=NODE, capture_output=True,
                               timeout=60) if shutil.which("node") else None
        if found is None or found.returncode:
            self.skipTest("node finds no grpc-js and protobufjs: npm install --prefix client/node")
        script = """
            const ebb = require(process.env.PACKAGE);
            const client = new ebb.Client(process.env.EBB_ADDR, JSON.parse(process.env.OPTIONS));
            client.call("ListSessions", {}).then((answer) => console.log(JSON.stringify(answer)), (error) => console.log(error.reason))
              .finally(() => client.close());
        """
        options = {"ca": self.path("ca.pem"), "cert": self.path("gateway.pem"), "key": self.path("gateway.key")}

        def told(more):
            return run("node", "-e", script, PACKAGE=str(NODE), EBB_ADDR=self.server.addr, OPTIONS=json.dumps({**options, **more})).stdout
        self.assertNotIn("NO_CREDENTIAL", told({"tokenFile": self.path("acme.token")}))
        self.assertIn("NO_CREDENTIAL", told({}))

    def test_metrics_tell_when_the_certificate_ends_and_who_was_refused(self):
        def metric(series):
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://{self.server.http}/metrics", timeout=60) as page:
                return float(re.search(rf"^{re.escape(series)} (\S+)$", page.read().decode(), re.M).group(1))
        told = run("openssl", "x509", "-in", self.path("server.pem"), "-noout", "-enddate").stdout.strip().removeprefix("notAfter=")
        self.assertEqual(metric("ebb_certificate_end_timestamp_seconds"), ssl.cert_time_to_seconds(told))
        series = ['ebb_auth_failures_total{reason="%s"}' % reason for reason in ("NO_CREDENTIAL", "BAD_CREDENTIAL", "ADMIN_ONLY")]
        before = [metric(each) for each in series]
        self.server.ebb(*self.certificate, "sessions", check=1)
        (self.folder / "stale").write_text("not-a-valid-token\n", encoding="utf-8")
        self.server.ebb(*self.certificate, "--token-file", self.path("stale"), "sessions", check=1)
        self.server.ebb(*self.certificate, "--token-file", self.path("acme.token"), "status", check=1)
        self.assertEqual([metric(each) for each in series], [count + 1 for count in before])

    def test_a_configuration_that_does_not_fit_together_does_not_start(self):
        for flags, said in ((["--auth.mode=token"], "auth.token_file: auth.mode asks for tokens"),
                            (["--auth.mode=mtls"], "tls.client_ca: auth.mode asks for client certificates"),
                            ([f"--tls.cert={self.path('server.pem')}"], "tls.key: it goes with tls.cert"),
                            ([f"--tls.client_ca={self.path('ca.pem')}"], "tls.cert: tls.client_ca needs it"),
                            ([f"--tls.cert={self.path('server.pem')}", f"--tls.key={self.path('ca.key')}"],
                             "tls.key: it is not the key of the certificate in tls.cert")):
            done = run(BIN / "ebbd", "--listen=127.0.0.1:0", "--server.http_listen=", *flags, check=1)
            self.assertIn(said, done.stderr)


class SecretsStaySecret(unittest.TestCase):
    """What is shown, valid or not, is in no line of the log, nor is what is said."""

    def test_no_text_is_logged_and_every_call_has_a_line(self):
        secret = "Xyzzy-plugh"
        text = inference.Prompt(text=f"{secret} once upon a time")
        chat = inference.Prompt(chat=inference.Chat(messages=[inference.ChatMessage(role="user", content=secret)]))
        stop = sampling.Stopping(max_tokens=3, stop=[secret], ignore_eos=True)
        policy = PolicySpec(streaming=Streaming(), trigger=Trigger(budget=64))
        trace = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
        with Server("--log.level=trace") as server, grpc.insecure_channel(server.addr) as channel:
            calls = {}
            for stub in (session_pb2_grpc.SessionServiceStub, inference_pb2_grpc.InferenceServiceStub, eviction_pb2_grpc.EvictionServiceStub):
                calls.update(stub(channel).__dict__)
            made = calls["CreateSession"](session.CreateSessionRequest(policy=policy, block_size=8, request_id=secret), metadata=trace).name
            done = ["CreateSession"]

            def call(method, request):
                done.append(method)
                try:
                    answer = calls[method](request, metadata=trace)
                    return list(answer) if method in ("Prefill", "Decode", "Generate") else [answer]
                except grpc.RpcError as error:
                    self.assertNotIn(error.code(), (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), error)
                    return []
            self.assertTrue(call("Prefill", inference.PrefillRequest(session=made, prompt=text)))
            self.assertTrue(call("Decode", inference.DecodeRequest(session=made, stopping=stop)))
            for prompt in (text, chat, inference.Prompt(trusted_text=secret)):
                answer = call("Generate", inference.GenerateRequest(prompt=prompt, policy=policy, block_size=8, stopping=stop))
                self.assertTrue(answer)
            self.assertTrue(call("Tokenize", inference.TokenizeRequest(prompt=text)))
            self.assertTrue(call("Score", inference.ScoreRequest(target=text)))
            self.assertTrue(call("Edit", inference.EditRequest(session=made, spans=[inference.EditSpan(start=1, end=2, text=secret)])))
            for wrong in (inference.GenerateRequest(prompt=text, model=secret), inference.GenerateRequest(prompt=text, session=secret),
                          inference.GenerateRequest(prompt=text, stopping=sampling.Stopping(stop=[secret * 100])),
                          inference.GenerateRequest(prompt=inference.Prompt(chat=inference.Chat(
                              messages=[inference.ChatMessage(role=secret, content=secret)])))):
                self.assertEqual(call("Generate", wrong), [])
            call("GetSession", session.GetSessionRequest(name=f"sessions/{secret.lower()}"))
            with self.assertRaises(grpc.RpcError):  # the library complains, too
                channel.unary_unary("/ebb.v1.InferenceService/Tokenize")(b"\x0a\x10\xff\xfe" + secret.encode() + b"abc", timeout=60)
        log = [json.loads(line) for line in server.rest.splitlines()]
        self.assertIn("protobuf", [entry["event"] for entry in log], "what the library says is a line like others")
        self.assertNotIn(secret.lower(), server.rest.lower())
        lines = [entry for entry in log if entry["event"] == "rpc"]
        self.assertEqual(sorted(entry["method"].split("/")[1] for entry in lines), sorted(done))
        self.assertEqual({entry["trace_id"] for entry in lines}, {"0af7651916cd43dd8448eb211c80319c"})

    def test_no_token_is_logged(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            line = run(BIN / "ebb", "token", "acme", "--out", path / "acme.token").stdout
            (path / "tokens").write_text(line, encoding="utf-8")
            (path / "wrong").write_text("not-a-valid-token\n", encoding="utf-8")
            with Server("--auth.mode=token", f"--auth.token_file={path / 'tokens'}", "--auth.reload=100ms", "--log.level=trace") as server:
                server.ebb("--token-file", str(path / "acme.token"), "sessions")
                server.ebb("--token-file", str(path / "wrong"), "sessions", check=1)
                self.assertIn("is not a valid one", server.stderr)
            log = [json.loads(each) for each in server.rest.splitlines()]
            self.assertIn("BAD_CREDENTIAL", [entry.get("reason") for entry in log])
            self.assertIn("acme", [entry.get("tenant") for entry in log])
            for secret in ((path / "acme.token").read_text(encoding="utf-8").strip(), "not-a-valid-token", line.split()[1]):
                self.assertNotIn(secret, server.rest)


if __name__ == "__main__":
    unittest.main()
