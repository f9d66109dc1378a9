#!/usr/bin/env python3
"""A server that wants a certificate and a token, and every client that has both: the command line, Python, Node."""
import asyncio
import datetime
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request
import warnings

from binaries import BIN, ROOT, Server
from patience import connected, eventually
import python_package  # noqa: F401  makes the package, and puts it on the path

import ebb
import grpc
from ebb.v1 import (eviction_pb2 as eviction, eviction_pb2_grpc, inference_pb2 as inference, inference_pb2_grpc, sampling_pb2 as sampling,
                    session_pb2 as session, session_pb2_grpc)
from ebb.v1.policy_pb2 import PolicySpec, Streaming, Trigger

NODE = ROOT / "client/node"
NEW_KEY = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def run(*command, check=0, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == check, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def authority(folder, name):
    """NAME.pem and NAME.key of a CA."""
    run(*NEW_KEY, "-x509", "-days", "2", "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem")


def certificate(folder, name, ca, *valid):
    """NAME.pem and NAME.key, signed by `ca`, for 127.0.0.1; `valid`: how long, in the words of `openssl ca`."""
    run(*NEW_KEY, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / f"{name}.key", "-out", folder / "csr")
    (folder / "issued").touch()
    (folder / "openssl.cnf").write_text("[ca]\ndefault_ca=own\n[own]\ndefault_md=sha256\npolicy=names\ncopy_extensions=copy\nunique_subject=no\nrand_serial=yes\n"
                                        f"database={folder}/issued\nnew_certs_dir={folder}\n[names]\ncommonName=supplied\n", encoding="utf-8")
    run("openssl", "ca", "-batch", "-notext", "-config", folder / "openssl.cnf", "-cert", folder / f"{ca}.pem",
        "-keyfile", folder / f"{ca}.key", "-in", folder / "csr", "-out", folder / f"{name}.pem", *(valid or ("-days", "2")))


@unittest.skipIf(shutil.which("openssl") is None, "there is no openssl")
class Secured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        path = lambda name: str(cls.folder / name)  # noqa: E731
        cls.path = staticmethod(path)
        authority(cls.folder, "ca")
        for name in ("server", "gateway"):
            certificate(cls.folder, name, "ca")
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
            self.assertRegex(plain.stderr, f"(?m)^ebb: {plain.addr} does not speak TLS. Leave out --tls, --ca, ")
            said = run(BIN / "ebb", f"--addr={plain.http}", "sessions", check=3).stderr
            self.assertRegex(said, f"^ebb: {plain.http} does not speak gRPC. Name ebbd's server.listen with --addr")
        said = run(BIN / "ebb", "--addr=no-such-host.invalid:7700", "sessions", check=3).stderr
        self.assertRegex(said, "^ebb: no-such-host.invalid:7700 is the address of no host that can be found. Look at --addr ")
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
        tls = [f"--tls.cert={self.path('server.pem')}", f"--tls.key={self.path('server.key')}", f"--tls.client_ca={self.path('ca.pem')}"]
        tokens = f"--auth.token_file={self.path('tokens')}"
        for flags, code, said in ((["--auth.mode=token"], 2, "auth.token_file: auth.mode asks for tokens"),
                                  ([tokens], 2, "auth.token_file: auth.mode is none, which asks for no token: leave it out, or set token\n"),
                                  ([tokens, "--auth.mode=mtls", *tls], 2,
                                   "auth.token_file: auth.mode is mtls, which asks for no token: leave it out, or set token+mtls\n"),
                                  (["--auth.mode=mtls"], 2, "tls.client_ca: auth.mode asks for client certificates"),
                                  (tls[:1], 2, "tls.key: it goes with tls.cert"),
                                  (tls[2:], 2, "tls.cert: tls.client_ca needs it"),
                                  ([tls[0], f"--tls.key={self.path('ca.key')}"], 1, "tls.key: it is not the key of the certificate in tls.cert")):
            with self.subTest(flags):
                done = run(BIN / "ebbd", "--listen=127.0.0.1:0", "--server.http_listen=", *flags, check=code)
                self.assertIn(said, done.stderr)

    def test_a_port_that_is_open_to_others_without_a_credential_is_a_warning(self):
        tls = [f"--tls.cert={self.path('server.pem')}", f"--tls.key={self.path('server.key')}"]
        for listen, flags, warned in (("127.0.0.1:0", (), False), ("0.0.0.0:0", (), True), ("0.0.0.0:0", tls, True),
                                      ("0.0.0.0:0", (*tls, f"--tls.client_ca={self.path('ca.pem')}"), False),
                                      ("0.0.0.0:0", ("--auth.mode=token", f"--auth.token_file={self.path('tokens')}"), False)):
            with self.subTest(listen, flags=flags):
                with Server(*flags, listen=listen) as server:
                    pass
                lines = [json.loads(line) for line in server.rest.splitlines()]
                self.assertEqual([line["level"] for line in lines if line["event"] == "grpc_is_open"], ["warn"] * warned)

    def test_tls_1_2_and_1_3_are_taken_and_nothing_older(self):
        def version(address, only):
            """What a handshake comes to between that address and a client that speaks this version alone; none if to nothing."""
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(self.path("ca.pem"))
            context.set_alpn_protocols(["h2"])
            with warnings.catch_warnings():  # Python's own, of old versions
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = context.maximum_version = only
            context.set_ciphers("DEFAULT@SECLEVEL=0")  # without which it would not even ask for less than 1.2
            host, port = address.rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=60) as plain:
                try:
                    with context.wrap_socket(plain, server_hostname=host) as connection:
                        return connection.version()
                except (ssl.SSLError, ConnectionError):
                    return None
        versions = (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
        tls = (f"--tls.cert={self.path('server.pem')}", f"--tls.key={self.path('server.key')}")
        old = subprocess.Popen(["openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", self.path("server.pem"), "-key", self.path("server.key"), "-cipher",
                                "DEFAULT@SECLEVEL=0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env={**os.environ, "OPENSSL_CONF": os.devnull})
        with old:
            try:
                address = next(line.split()[1] for line in old.stdout if line.startswith("ACCEPT "))
                self.assertEqual([version(address, only) for only in versions], ["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"], "the client speaks them all")
            finally:
                old.terminate()
        with Server("--openai.listen=127.0.0.1:0", "--openai.tls=on", *tls) as server:
            for port in ("addr", "openai"):
                with self.subTest(port):
                    self.assertEqual([version(getattr(server, port), only) for only in versions], [None, None, "TLSv1.2", "TLSv1.3"])


@unittest.skipIf(shutil.which("openssl") is None, "there is no openssl")
class WhileItRuns(unittest.TestCase):
    """Certificates that end or are replaced. What stands goes on; a new connection meets what holds now."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        authority(self.folder, "ca")

    def serve(self, *flags):
        return self.enterContext(Server(f"--tls.cert={self.folder / 'server.pem'}", f"--tls.key={self.folder / 'server.key'}",
                                        "--tls.reload=100ms", *flags))

    def connect(self, address, own=None):
        """A connection of its own, that shows the certificate of `own`."""
        shown = {"cert": str(self.folder / f"{own}.pem"), "key": str(self.folder / f"{own}.key")} if own else {}
        return self.enterContext(ebb.Client(address, ca=str(self.folder / "ca.pem"), retry=ebb.Retry(attempts=1), **shown))

    def gets_through(self, address, own=None):
        """Whether a new connection does; the refusal of one that does not comes from no server."""
        try:
            with self.connect(address, own) as client:
                client.sessions()
        except ebb.Unavailable as error:
            self.assertEqual(error.reason, "")
            self.said = error.message
            return False
        return True

    def test_a_client_does_not_talk_to_a_certificate_that_has_ended(self):
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=15)
        certificate(self.folder, "server", "ca", "-enddate", end.strftime("%Y%m%d%H%M%SZ"))
        server = self.serve()
        standing = self.connect(server.addr)
        self.assertEqual(standing.sessions(), [])
        self.assertTrue(self.gets_through(server.addr))
        self.assertLess(datetime.datetime.now(datetime.timezone.utc), end, "all this has to be done before it ends")
        eventually(lambda: not self.gets_through(server.addr), "the certificate ends")
        self.assertGreaterEqual(datetime.datetime.now(datetime.timezone.utc), end.replace(microsecond=0))
        self.assertRegex(self.said, r"(?i)certificate.verify.failed")
        server.ebb("--ca", str(self.folder / "ca.pem"), "sessions", check=3)
        self.assertEqual(standing.sessions(), [], "it was shown a certificate that held")

        certificate(self.folder, "server", "ca")
        eventually(lambda: self.gets_through(server.addr), "the next certificate is in use")

    def test_who_signs_for_clients_is_replaced(self):
        certificate(self.folder, "server", "ca")
        for name in ("old", "new"):
            authority(self.folder, f"{name}-ca")
            certificate(self.folder, name, f"{name}-ca")
        in_use = self.folder / "clients-ca.pem"
        shutil.copy(self.folder / "old-ca.pem", in_use)
        server = self.serve("--auth.mode=mtls", f"--tls.client_ca={in_use}")
        standing = self.connect(server.addr, "old")
        with standing.create_session("streaming") as session:
            self.assertEqual(session.info().tenant, "old")
            self.assertFalse(self.gets_through(server.addr, "new"))
            self.assertFalse(self.gets_through(server.addr))

            os.replace(self.folder / "new-ca.pem", in_use)
            eventually(lambda: self.gets_through(server.addr, "new"), "the new CA is in use")
            self.assertFalse(self.gets_through(server.addr, "old"))
            self.assertFalse(self.gets_through(server.addr))
            self.assertEqual(session.info().tenant, "old", "a connection that stands goes on")


class SecretsStaySecret(unittest.TestCase):
    """What is shown, valid or not, is in no line of the log, nor is what is said."""

    def test_no_text_is_logged_and_every_call_has_a_line(self):
        secret = "Xyzzy-plugh"
        text = inference.Prompt(text=f"{secret} once upon a time")
        chat = inference.Prompt(chat=inference.Chat(messages=[inference.ChatMessage(role="user", content=secret)]))
        stop = sampling.Stopping(max_tokens=3, stop=[secret], ignore_eos=True)
        policy = PolicySpec(streaming=Streaming(), trigger=Trigger(budget=64))
        trace = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
        with Server("--log.level=trace") as server, connected(grpc.insecure_channel(server.addr)) as channel:
            calls = {}
            for stub in (session_pb2_grpc.SessionServiceStub, inference_pb2_grpc.InferenceServiceStub, eviction_pb2_grpc.EvictionServiceStub):
                calls.update(stub(channel).__dict__)
            made = calls["CreateSession"](session.CreateSessionRequest(
                policy=policy, block_size=8, request_id=secret, end_user=secret), metadata=trace).name
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
            self.assertTrue(call("ReportOutcome", inference.ReportOutcomeRequest(session=made, request_id=secret, score=1)))
            self.assertTrue(call("SaveSession", session.SaveSessionRequest(session=made, snapshot_id=secret.lower())))
            for snapshot in (secret.lower(), f"{secret.lower()}-none"):
                call("RestoreSession", session.RestoreSessionRequest(snapshot=f"snapshots/{snapshot}", session_id=secret.lower(), request_id=secret))
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

    def test_no_text_is_logged_that_comes_by_the_openai_port_or_the_console(self):
        secret = "Xyzzy-plugh"
        chat = {"messages": [{"role": "user", "content": secret}], "max_tokens": 3, "user": secret, "stop": [secret], "ebb": {"session": secret.lower()}}
        prompt = {"prompt": {"text": secret}, "stopping": {"maxTokens": 3, "stop": [secret]}}
        create = {"policy": {"streaming": {}, "trigger": {"budget": 64}}, "endUser": secret, "requestId": secret, "sessionId": f"{secret.lower()}-2"}
        asked = [  # the path, the body, and whether it is answered
            ("/v1/chat/completions", chat, True),
            ("/v1/chat/completions", {**chat, "stream": True, "ebb": {}}, True),
            ("/v1/completions", {"prompt": secret, "max_tokens": 3, "user": secret}, True),
            ("/v1/chat/completions", {**chat, "model": secret}, False),
            ("/v1/chat/completions", {**chat, "messages": [{"role": secret, "content": secret}]}, False),
            ("/v1/chat/completions", {**chat, secret: secret}, False),
            ("/v1/chat/completions", {**chat, "ebb": {"policy": secret}}, False),
            ("/v1/chat/completions", f'{{"messages": "{secret}', False),
            (f"/v1/{secret}", {}, False),
            ("/console/api/SessionService/CreateSession", create, True),
            ("/console/api/InferenceService/Generate", prompt, True),
            ("/console/api/InferenceService/Tokenize", {"prompt": {"text": secret}}, False),  # which the console does not call
            ("/console/api/InferenceService/Generate", {**prompt, "model": secret}, True),  # a refusal is in the answer
            ("/console/api/InferenceService/Generate", {secret: secret}, False),
            ("/console/api/InferenceService/Generate", f'{{"prompt": {{"text": "{secret}', False),
            (f"/console/api/InferenceService/{secret}", {}, False),
        ]
        with Server("--log.level=trace", "--openai.listen=127.0.0.1:0") as server:
            for path, body, answered in asked:
                bytes_of = (body if isinstance(body, str) else json.dumps(body)).encode()
                request = urllib.request.Request(f"http://{server.http if path.startswith('/console') else server.openai}{path}", bytes_of,
                                                 {"Content-Type": "application/json", "X-Ebb-Console": "1", "Authorization": f"Bearer {secret}"})
                with self.subTest(path=path, body=body):
                    try:
                        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                            answer.read()
                            self.assertTrue(answered)
                    except urllib.error.HTTPError as error:
                        self.assertFalse(answered, error.read())
                        self.assertLess(error.code, 500)
        self.assertNotIn(secret.lower(), server.rest.lower())
        log = [json.loads(line) for line in server.rest.splitlines()]
        events = [entry["event"] for entry in log]
        self.assertIn("openai_refused", events)
        self.assertIn("console_refused", events)
        done = [entry["method"] for entry in log if entry["event"] == "rpc" and entry["code"] == "OK"]
        for method, times in (("InferenceService/Generate", 4), ("SessionService/CreateSession", 2)):
            self.assertEqual(done.count(method), times, method)

    def test_the_line_of_a_call_tells_session_model_and_tokens_but_not_the_sessions_name(self):
        policy = PolicySpec(streaming=Streaming(), trigger=Trigger(budget=64))
        tokens = inference.Prompt(tokens=inference.Tokens(ids=range(3, 23)))
        stop = sampling.Stopping(max_tokens=5, ignore_eos=True)
        with Server("--log.level=info") as server, connected(grpc.insecure_channel(server.addr)) as channel:
            sessions, calls = session_pb2_grpc.SessionServiceStub(channel), inference_pb2_grpc.InferenceServiceStub(channel)
            evictions = eviction_pb2_grpc.EvictionServiceStub(channel)
            name = sessions.CreateSession(session.CreateSessionRequest(session_id="xyzzy-plugh", policy=policy, block_size=8)).name
            list(calls.Prefill(inference.PrefillRequest(session=name, prompt=tokens)))
            list(calls.Decode(inference.DecodeRequest(session=name, stopping=stop)))
            list(calls.Generate(inference.GenerateRequest(session=name, prompt=tokens, stopping=stop, n=3)))
            evictions.DescribeCache(eviction.DescribeCacheRequest(session=name))
            endless = calls.Decode(inference.DecodeRequest(session=name, stopping=sampling.Stopping(max_tokens=1 << 20, ignore_eos=True)))
            next(endless)
            sessions.DeleteSession(session.DeleteSessionRequest(name=name))
            with self.assertRaises(grpc.RpcError):
                list(endless)
            with self.assertRaises(grpc.RpcError):
                sessions.GetSession(session.GetSessionRequest(name=name))
            calls.Score(inference.ScoreRequest(target=tokens))
            calls.Tokenize(inference.TokenizeRequest(prompt=inference.Prompt(text="frog")))
            sessions.ListSessions(session.ListSessionsRequest())
        self.assertNotIn("plugh", server.rest)
        lines = [entry for entry in map(json.loads, server.rest.splitlines()) if entry["event"] == "rpc"]
        self.assertEqual(len({entry["session"] for entry in lines[:8]}), 1)
        self.assertRegex(lines[0]["session"], r"^[0-9a-f]{12}$")
        self.assertEqual([entry["session"] for entry in lines[8:]], [""] * 3)
        self.assertEqual([entry["model"] for entry in lines], ["ebb-tiny"] * 10 + [""], "the last is about all models")
        cut = next(entry for entry in lines if entry["reason"] == "SESSION_DELETED")
        self.assertGreater(cut["tokens_out"], 0, "of a call that was cut, too")
        read_and_made = [(entry["method"].split("/")[1], entry["tokens_in"], entry["tokens_out"]) for entry in lines if entry is not cut]
        self.assertEqual(read_and_made, [
            ("CreateSession", 0, 0), ("Prefill", 20, 0), ("Decode", 0, 5), ("Generate", 20, 15), ("DescribeCache", 0, 0), ("DeleteSession", 0, 0),
            ("GetSession", 0, 0), ("Score", 21, 0), ("Tokenize", 0, 0), ("ListSessions", 0, 0)])

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

    def test_who_is_not_let_in_is_a_warning_with_the_tenant_where_it_is_known(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            lines = [run(BIN / "ebb", "token", name, *admin, "--out", path / name).stdout for name, admin in (("acme", ()), ("ops", ("--admin",)))]
            (path / "tokens").write_text("".join(lines), encoding="utf-8")
            (path / "wrong").write_text("not-a-valid-token\n", encoding="utf-8")
            with Server("--auth.mode=token", f"--auth.token_file={path / 'tokens'}") as server:
                def console(token):
                    shown = {"Authorization": "Bearer " + (path / token).read_text(encoding="utf-8").strip()} if token else {}
                    request = urllib.request.Request(f"http://{server.http}/console/api/AdminService/GetStatus", b"{}", {"X-Ebb-Console": "1", **shown})
                    try:
                        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                            return answer.status
                    except urllib.error.HTTPError as error:
                        return error.code
                server.ebb("sessions", check=1)
                server.ebb("--token-file", str(path / "wrong"), "sessions", check=1)
                server.ebb("--token-file", str(path / "acme"), "status", check=1)
                server.ebb("--token-file", str(path / "acme"), "--tenant", "other", "sessions", check=1)
                server.ebb("--token-file", str(path / "ops"), "status")
                server.ebb("--token-file", str(path / "acme"), "sessions", "delete", "none", check=1)
                self.assertEqual([console(token) for token in ("", "wrong", "acme", "ops")], [401, 401, 403, 200])
            log = [json.loads(each) for each in server.rest.splitlines()]
        told = [(entry["level"], entry["tenant"], entry["reason"]) for entry in log if entry["event"] == "rpc"]
        self.assertEqual(told, [("warn", "", "NO_CREDENTIAL"), ("warn", "", "BAD_CREDENTIAL"), ("warn", "acme", "ADMIN_ONLY"), ("warn", "acme", "OTHER_TENANT"),
                                ("info", "ops", ""), ("info", "acme", "UNKNOWN_SESSION"), ("info", "ops", "")])
        told = [(entry["level"], entry["reason"]) for entry in log if entry["event"] == "console_refused"]
        self.assertEqual(told, [("warn", "NO_CREDENTIAL"), ("warn", "BAD_CREDENTIAL"), ("warn", "ADMIN_ONLY")])


if __name__ == "__main__":
    unittest.main(verbosity=2)
