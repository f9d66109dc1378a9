#!/usr/bin/env python3
"""deploy/haproxy/haproxy.cfg, run by a real HAProxy before two real servers: TLS, HTTP/2 end to end, calls of a session to one server,
what happens when a server drains or dies, and what of that which it refuses is tried on the other. Addresses and the certificate are this test's; all
else is as it is shipped.

Debian has no Envoy, so deploy/envoy/envoy.yaml is not run: it is read as Envoy reads it, by Envoy's own protos, and compared with HAProxy's."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from binaries import ROOT, Server
import haproxy
import npm
from patience import PATIENCE, eventually
from proxied import MISSING, Proxied, padded, small_session, unread

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from ebb.errors import from_rpc
from ebb.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc, session_pb2, session_pb2_grpc

try:
    import yaml
except ModuleNotFoundError:
    yaml = None

DRAINS = "the server is draining: it takes nothing new"


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Behind(Proxied):
    def test_calls_of_a_session_go_to_one_server(self):
        found = set()
        for i in range(16):
            key = f"caller-{i}"
            session, server = self.create(key)
            found.add(server)
            self.assertEqual(self.look(session, key).model, session.model)  # by another connection
        self.assertEqual(found, {0, 1}, "both have sessions")

    def test_streams_come_token_by_token_and_only_what_serves_is_let_in(self):
        session, server = self.create("caller")
        messages = [message for message in self.generate(session, "caller", 64) if message.HasField("decode")]
        self.assertGreater(len(messages), 1, "a stream, not one answer")  # how many tokens are in one goes by the machine
        straight = self.servers[server].ebb("generate", "--quiet", "--temperature=0", "--ignore-eos", "--max-tokens=64", "--policy=streaming",
                                            "--budget=32", "It was a dark and stormy night")
        self.assertEqual("".join(message.decode.text for message in messages).strip(), straight.strip())
        with self.assertRaises(grpc.RpcError) as refused:
            admin_pb2_grpc.AdminServiceStub(self.channel()).GetStatus(admin_pb2.GetStatusRequest(), timeout=PATIENCE)
        self.assertEqual((refused.exception.code(), refused.exception.details()), (grpc.StatusCode.PERMISSION_DENIED, "not through this proxy"))

    def test_what_the_proxy_answers_itself_is_in_grpcs_form(self):
        def answer(path, lacks=0):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", plain.port, timeout=PATIENCE)) as connection:
                connection.request("POST", path, body=b"\0\0\0\0\0", headers={"content-length": str(5 + lacks)})
                told = connection.getresponse()
                return told.status, told.headers["content-type"], told.headers["grpc-status"], told.headers["grpc-message"]

        with haproxy.Proxy(self.folder, None, self.servers) as plain:  # HTTP/1.1, in which heads can be read
            self.assertEqual(answer("/ebb.v1.AdminService/GetStatus"), (200, "application/grpc", "7", "not through this proxy"))
            self.assertEqual(answer("/ebb.v1.InferenceService/Generate", lacks=1), (200, "application/grpc", "14", "the request did not come in time"))
            for server in self.servers:
                server.process.kill()
                server.process.wait()
            for method in ("CreateSession", "GetSession"):
                self.assertEqual(answer(f"/ebb.v1.SessionService/{method}"), (200, "application/grpc", "14", "no server takes calls"))

    def test_an_address_has_so_many_connections(self):
        channel = self.channel()
        session, _ = self.create("caller", channel)
        held = [self.enterContext(socket.create_connection(("127.0.0.1", self.proxy.port))) for _ in range(70)]

        def closed():  # by the proxy: what can be read from a connection that says nothing is its end
            ended = select.select(held, [], [], 0)[0]
            return len(ended) >= 7 and ended
        self.assertLess(len(eventually(closed, "70 connections beside the first one are let in")), 70, "most are let in")
        self.assertTrue(list(self.generate(session, "caller", 4, channel)), "and those that were there before are served")

    def test_an_address_begins_so_many_calls(self):
        def from_address(address, port, method, path):  # in HTTP/1.1, whose connections can be told where to come from
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE, source_address=(address, 0))) as connection:
                connection.request(method, path, body=b"\0\0\0\0\0", headers={"content-type": "application/grpc", "te": "trailers"})
                told = connection.getresponse()
                return told.status, told.headers, told.read()

        def attempt():
            with haproxy.Proxy(self.folder, None, self.servers) as plain:
                with grpc.insecure_channel(f"127.0.0.1:{plain.port}", [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]) as channel:
                    check = channel.unary_unary("/grpc.health.v1.Health/Check")
                    began = time.monotonic()
                    for _ in range(40):
                        for call in [check.future(b"", timeout=PATIENCE, wait_for_ready=True) for _ in range(50)]:
                            self.assertEqual(call.result(), b"\x08\x01", "SERVING")
                    further = check.future(b"", timeout=PATIENCE)
                    if further.code() == grpc.StatusCode.OK and time.monotonic() - began >= 10:
                        return False  # this machine is too busy to begin so many in ten seconds
                    self.assertEqual((further.code(), further.details()), (grpc.StatusCode.UNAVAILABLE, "too many calls from this address"))
                status, headers, said = from_address("127.0.0.1", plain.openai, "GET", "/v1/models")
                self.assertEqual((status, json.loads(said)["error"]["message"]), (429, "too many calls from this address"))
                self.assertEqual((headers["content-type"], headers["x-should-retry"], headers["retry-after"]), ("application/json", "true", "10"))
                self.assertEqual(from_address("127.0.0.2", plain.port, "POST", "/grpc.health.v1.Health/Check")[2], b"\0\0\0\0\x02\x08\x01")
                return True
        eventually(attempt, "2,000 calls take ten seconds each time")

    def test_a_server_that_drains_ends_its_streams_and_gets_no_new_calls(self):
        key = self.key_of(0)
        session, _ = self.create(key)
        stream = self.generate(session, key, 4000)
        messages = [next(stream)]
        self.servers[0].process.send_signal(signal.SIGTERM)
        channel = self.channel()

        def moved():  # a call before the proxy noticed is told to come again
            try:
                return self.create(key, channel)[1] == 1
            except grpc.RpcError as refused:
                if (refused.code(), refused.details()) != (grpc.StatusCode.CANCELLED, "CANCELLED"):  # it met the GOAWAY half-way
                    self.assertEqual(refused.code(), grpc.StatusCode.UNAVAILABLE, refused.details())
        eventually(moved, "new calls still go to the server that drains")
        messages += stream
        self.assertEqual(messages[-1].decode.usage.completion_tokens, 4000)

    def test_calls_to_a_server_that_died_are_answered_by_the_other(self):
        key = self.key_of(0)
        channel = self.channel()
        self.create(key, channel)
        self.servers[0].process.kill()
        self.servers[0].process.wait()
        self.assertEqual([self.create(key, channel)[1] for _ in range(10)], [1] * 10)
        self.servers[1].process.kill()
        self.servers[1].process.wait()

        def refused():
            with self.assertRaises(grpc.RpcError) as refusal:
                self.create(key, channel)
            self.assertEqual(refusal.exception.code(), grpc.StatusCode.UNAVAILABLE)
            return refusal.exception.details() == "no server takes calls"
        eventually(refused, "the proxy does not notice that both are away")

    def test_a_call_that_a_server_had_when_it_died_is_not_done_again_by_the_other(self):
        key, channel = self.key_of(0), self.channel()
        session, _ = self.create(key, channel)
        request = inference_pb2.PrefillRequest(session=session.name)
        request.prompt.text = "It was a dark and stormy night"
        server, port = self.servers[0].process, self.pause(0)
        before = unread(port)
        call = inference_pb2_grpc.InferenceServiceStub(channel).Prefill(request, metadata=[("x-ebb-session", key)], timeout=PATIENCE)
        eventually(lambda: unread(port) >= before + len(request.prompt.text), lambda: f"the call does not come to the server: {before}, {unread(port)}")
        server.kill()
        server.wait()
        self.assertEqual(call.code(), grpc.StatusCode.UNAVAILABLE, f"the other server was asked: {call.details()}")

    def test_a_server_that_is_back_has_its_keys_and_its_sessions(self):
        key, channel = self.key_of(0), self.channel()
        session, _ = self.create(key, channel)
        killed = self.servers[0]
        killed.process.kill()
        killed.process.wait()
        with self.assertRaises(grpc.RpcError) as unknown:
            self.look(session, key, channel)
        self.assertEqual(unknown.exception.code(), grpc.StatusCode.NOT_FOUND, "the other server answers, and does not know it")
        self.enterContext(Server(*self.flags[0], f"--listen={killed.addr}", f"--server.http_listen={killed.http}"))

        def back():
            try:
                return self.look(session, key, channel).name == session.name
            except grpc.RpcError as refused:
                self.assertEqual(refused.code(), grpc.StatusCode.NOT_FOUND)
                return False
        eventually(back, "the key does not lead back to the session")
        self.assertTrue(list(self.generate(session, key, 4, channel)), "which goes on")


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Elsewhere(Proxied):
    """What one server refuses, while the proxy believes that both are there."""
    blind = True
    flags_of = (("--cache.sessions_max=4", "--server.reader_patience=1h"), ("--cache.sessions_max=24",))

    def refusal(self, call):
        """What a call was refused with, as the Python client reads it."""
        with self.assertRaises(grpc.RpcError) as raised:
            call()
        return from_rpc(raised.exception)

    def fill(self, number):
        """That server has as many sessions as it may; returns those that were begun here."""
        sessions, made = session_pb2_grpc.SessionServiceStub(self.straight(number)), []
        while True:
            try:
                made.append(sessions.CreateSession(small_session(), timeout=PATIENCE))
            except grpc.RpcError as refused:
                self.assertEqual(from_rpc(refused).reason, "SESSIONS_FULL")
                return made

    def refused(self, number, reason):
        """How many calls that server has refused so."""
        with urllib.request.urlopen(f"http://{self.servers[number].http}/metrics", timeout=PATIENCE) as page:
            return sum(float(line.rsplit(" ", 1)[1]) for line in page.read().decode().splitlines() if f'reason="{reason}"' in line)

    def begin_elsewhere(self, channel):
        """Sessions by their keys: the hash leads to server 0, which was full, and so they are at server 1."""
        self.fill(0)
        found = {}
        for key in (f"caller-{i}" for i in range(20)):
            before = self.refused(0, "SESSIONS_FULL")
            session, server = self.create(key, channel)
            self.assertEqual(server, 1)
            if self.refused(0, "SESSIONS_FULL") > before:
                found[key] = session
        self.assertGreater(len(found), 1, "the hash leads all keys to one server")
        return found

    def knows(self, proxy, began):
        """Whether all those sessions are found through `proxy`: else some are looked for where the hash leads, which does not know them."""
        with self.channel(proxy) as channel:
            try:
                return all(self.look(session, key, channel).name == session.name for key, session in began.items())
            except grpc.RpcError as refused:
                self.assertEqual(refused.code(), grpc.StatusCode.NOT_FOUND, refused.details())
                return False

    def drain(self, number):
        """That server takes nothing new, as long as the test lasts."""
        request = inference_pb2.GenerateRequest()
        request.prompt.text = "It was a dark and stormy night"
        request.policy.streaming.SetInParent()
        request.policy.trigger.budget = 32
        request.stopping.max_tokens = 1 << 20
        request.stopping.ignore_eos = True
        stream = inference_pb2_grpc.InferenceServiceStub(self.straight(number)).Generate(request)  # and nobody reads on
        next(stream)
        self.addCleanup(stream.cancel)
        self.servers[number].process.send_signal(signal.SIGTERM)

        def drains():
            try:
                urllib.request.urlopen(f"http://{self.servers[number].http}/readyz", timeout=PATIENCE).close()
            except urllib.error.HTTPError as error:
                return error.code == 503
        eventually(drains, "it does not drain")

    def test_a_session_that_a_full_server_refuses_is_begun_on_the_other_and_stays_there(self):
        held, before = self.fill(0), self.refused(0, "SESSIONS_FULL")
        began = {key: self.create(key)[0] for key in (f"caller-{i}" for i in range(11))}
        self.assertEqual({session.model for session in began.values()}, {"server-1"})
        self.assertGreater(self.refused(0, "SESSIONS_FULL"), before, "the hash leads some of the keys to the server that was full")
        sessions = session_pb2_grpc.SessionServiceStub(self.straight(0))
        sessions.DeleteSession(session_pb2.DeleteSessionRequest(name=held[0].name), timeout=PATIENCE)
        for key, session in began.items():
            with self.subTest(key):
                self.assertEqual(self.look(session, key).name, session.name)
                self.assertTrue(list(self.generate(session, key, 4)))
        self.assertEqual(self.create("caller-0")[1], 1, "its second session is where its first one is")

        self.fill(1)  # the key's sessions are there: the other one, which has room, is not asked
        refused = self.refusal(lambda: self.create("caller-1"))
        self.assertEqual((refused.reason, refused.message), ("SESSIONS_FULL", "the server holds 24 sessions, which is all it may"))

    def test_a_reload_forgets_no_key_and_breaks_no_stream(self):
        proxy = self.begin_proxy(master=True)
        channel = self.channel(proxy)
        began = self.begin_elsewhere(channel)
        self.assertFalse(self.knows(self.proxy, began), "one that has just begun finds them: nothing is shown by finding them after a reload")
        time.sleep(7)  # for five seconds from its start a process waits for others to tell it of keys, and would tell of none
        key, session = next(iter(began.items()))
        stream = self.generate(session, key, 4000, channel)
        messages = [next(stream)]
        before = proxy.reload()
        eventually(lambda: self.knows(proxy, began), "the process that came does not know where the keys are")
        self.assertEqual(self.look(session, key, channel).name, session.name, "on the connection of the stream, too")
        self.assertNotIn("InferenceService/Generate", proxy.log.read_text(), "the stream ended before the reload did")  # which is when it is logged
        messages += stream
        self.assertEqual(messages[-1].decode.usage.completion_tokens, 4000)
        eventually(lambda: "InferenceService/Generate" in proxy.log.read_text(), "its end is not logged")
        eventually(lambda: before not in proxy.workers(), "it stays when it has no streams")
        proxy.reload()  # at once, as it was told of all keys
        eventually(lambda: self.knows(proxy, began), "the third process does not know where the keys are")

    def test_proxies_side_by_side_tell_each_other_of_keys(self):
        peers = [self.enterContext(haproxy.kept_port()) for _ in range(2)]
        first = self.begin_proxy(peers=peers, peer=0)
        with haproxy.Proxy(self.folder, self.pem, self.servers, blind=True, peers=peers, peer=1) as second:
            began = self.begin_elsewhere(self.channel(first))
            eventually(lambda: self.knows(second, began), "the other proxy does not know where the keys are")
        again = self.begin_proxy(peers=peers, peer=1)
        eventually(lambda: self.knows(again, began), "the proxy that was started anew does not know where the keys are")
        self.assertFalse(self.knows(self.proxy, began), "one that is nobody's peer finds them: nothing is shown by finding them")

    def test_a_refusal_of_all_servers_comes_whole_and_binds_no_key(self):
        held = self.fill(0)
        self.fill(1)
        channel, keys = self.channel(), [f"caller-{i}" for i in range(8)]
        for key in keys:
            refused = self.refusal(lambda key=key: self.create(key, channel))
            self.assertEqual((refused.code, refused.reason), (grpc.StatusCode.UNAVAILABLE, "SESSIONS_FULL"))
            self.assertRegex(refused.message, "^the server holds (4|24) sessions, which is all it may$")
            self.assertGreater(refused.retry_delay, 0)
            wrong = self.refusal(lambda key=key: self.create(key, channel, session_pb2.CreateSessionRequest(session_id="?")))
            self.assertEqual(wrong.code, grpc.StatusCode.INVALID_ARGUMENT)
        statuses = eventually(lambda: len(told := re.findall(r" ebb-any/\S+ \S+ (\d+) ", self.proxy.log.read_text())) == 2 * len(keys) and told,
                              "the proxy does not log its calls")
        self.assertEqual(set(statuses), {"200"}, "which gRPC's answers have, whatever they say")
        sessions, room = session_pb2_grpc.SessionServiceStub(self.straight(0)), held[0]
        for key in keys:
            sessions.DeleteSession(session_pb2.DeleteSessionRequest(name=room.name), timeout=PATIENCE)
            room, server = self.create(key, channel)
            self.assertEqual(server, 0, "which alone has room")

    def test_a_request_that_does_not_fit_into_a_buffer_is_tried_once(self):
        self.fill(0)
        channel, outcomes = self.channel(), set()
        for key in (f"caller-{i}" for i in range(10)):
            try:
                outcomes.add(self.create(key, channel, padded(small_session(), 64 << 10))[1])
            except grpc.RpcError as refused:
                outcomes.add(from_rpc(refused).reason)
        self.assertEqual(outcomes, {"SESSIONS_FULL", 1})

    def test_nothing_new_is_refused_while_a_server_drains(self):
        key = self.key_of(0)
        session, _ = self.create(key)
        self.drain(0)
        channel = self.channel()
        self.assertEqual({self.create(f"another-{i}", channel)[1] for i in range(8)}, {1})
        inference = inference_pb2_grpc.InferenceServiceStub(channel)
        answer = inference_pb2.GenerateRequest()
        answer.prompt.text = "It was a dark and stormy night"
        answer.stopping.max_tokens = 2
        score = inference_pb2.ScoreRequest()
        score.target.text = answer.prompt.text
        for _ in range(4):
            self.assertTrue(list(inference.Generate(answer, timeout=PATIENCE)))
            self.assertTrue(inference.Score(score, timeout=PATIENCE).tokens)

        # The session's own server is asked, and nobody else.
        prefill = inference_pb2.PrefillRequest(session=session.name)
        prefill.prompt.text = answer.prompt.text
        for what, call in (("prefill", lambda: list(inference.Prefill(prefill, metadata=[("x-ebb-session", key)], timeout=PATIENCE))),
                           ("a second session", lambda: self.create(key, channel))):
            def told(call=call):
                refused = self.refusal(call)
                self.assertEqual(refused.code, grpc.StatusCode.UNAVAILABLE, refused.message)
                return refused.reason and refused  # none: it met the GOAWAY half-way
            with self.subTest(what):
                refused = eventually(told, "is not told that the server drains")
                self.assertEqual((refused.reason, refused.message), ("DRAINING", DRAINS))
                self.assertGreater(refused.retry_delay, 0)

    def test_a_session_that_a_server_was_to_begin_when_it_died_is_not_begun_on_the_other(self):
        sessions = session_pb2_grpc.SessionServiceStub(self.channel())
        begun = [sessions.CreateSession(small_session(), timeout=PATIENCE).model for _ in range(2)]  # without a key servers take turns
        self.assertEqual(set(begun), {"server-0", "server-1"}, "the proxy has a connection to each")
        port, size = self.pause(0), 16 << 10
        before, calls = unread(port), []
        while not calls or calls[-1].done():
            self.assertLess(len(calls), 3, "the server that is paused is not asked")
            calls.append(sessions.CreateSession.future(padded(small_session(), size), timeout=PATIENCE))
            eventually(lambda: calls[-1].done() or unread(port) >= before + size, "the call comes to no server")
        self.servers[0].process.kill()
        self.servers[0].process.wait()
        self.assertEqual(calls[-1].code(), grpc.StatusCode.UNAVAILABLE, f"the other server was asked: {calls[-1].details()}")
        other = session_pb2_grpc.SessionServiceStub(self.straight(1))
        self.assertEqual(len(other.ListSessions(session_pb2.ListSessionsRequest(), timeout=PATIENCE).sessions), len(calls))


@unittest.skipIf(yaml is None or not shutil.which("protoc"), "python3-yaml or protoc is not installed")
class Envoy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.config = yaml.safe_load((ROOT / "deploy/envoy/envoy.yaml").read_text(encoding="utf-8"))
        listeners, (cls.cluster, cls.openai_cluster) = (cls.config["static_resources"][kind] for kind in ("listeners", "clusters"))
        cls.ports = [listener["address"]["socket_address"]["port_value"] for listener in listeners]
        cls.http, cls.openai = (listener["filter_chains"][0]["filters"][0]["typed_config"] for listener in listeners)
        cls.host, cls.openai_host = (http["route_config"]["virtual_hosts"][0] for http in (cls.http, cls.openai))

    @unittest.skipIf(npm.missing("@grpc/grpc-js-xds"), npm.missing("@grpc/grpc-js-xds"))
    def test_it_is_of_envoys_types(self):
        protos = npm.MODULES / "@grpc/grpc-js-xds/deps"
        types = set(re.findall(r"type\.googleapis\.com/(envoy[\w.]+)", json.dumps(self.config)))
        files = []
        for name in types:
            folder = protos / "envoy-api" / name.rpartition(".")[0].replace(".", "/")
            (file,) = [path for path in folder.glob("*.proto") if re.search(rf"^message {name.rpartition('.')[2]} ", path.read_text(), re.MULTILINE)]
            files.append(file.relative_to(protos / "envoy-api"))
        with tempfile.TemporaryDirectory() as folder:
            # The package's rules for validation are older than what its protos use of them.
            rules = (protos / "protoc-gen-validate/validate/validate.proto").read_text().replace("message StringRules {",
                                                                                                 "message StringRules { optional bool ignore_empty = 1000;")
            os.mkdir(f"{folder}/validate")
            pathlib.Path(folder, "validate/validate.proto").write_text(rules)
            subprocess.run(["protoc", f"-I{folder}", *(f"-I{protos / each}" for each in ("envoy-api", "googleapis", "protoc-gen-validate", "xds")),
                            "--include_imports", f"--descriptor_set_out={folder}/set", "envoy/config/bootstrap/v3/bootstrap.proto", *files], check=True)
            described = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(folder, "set").read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in described.file:
            pool.Add(file)
        bootstrap = message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName("envoy.config.bootstrap.v3.Bootstrap"))
        json_format.ParseDict(self.config, bootstrap(), descriptor_pool=pool)
        for wrong, says in ((("max_concurrent_streams: 100", "max_streams: 100"), 'no field named "max_streams"'),
                            (("retry_on: connect-failure,refused-stream\n", "retry_on: [connect-failure]\n"), "retryOn|retry_on"),
                            (("lb_policy: RING_HASH", "lb_policy: RING"), "RING"), (("v3.LocalRateLimit", "v3.RateLimit"), "RateLimit")):
            text = (ROOT / "deploy/envoy/envoy.yaml").read_text(encoding="utf-8")
            self.assertIn(wrong[0], text)
            with self.subTest(wrong), self.assertRaisesRegex((json_format.ParseError, TypeError), says):
                json_format.ParseDict(yaml.safe_load(text.replace(*wrong)), bootstrap(), descriptor_pool=pool)

    def test_it_lets_in_and_chooses_as_haproxys_does(self):
        theirs = haproxy.CONFIG.read_text(encoding="utf-8")
        *routes, rest = self.host["routes"]
        whole = [route for route in routes if "prefix" in route["match"]]
        self.assertEqual([route["match"]["prefix"] for route in whole], re.search(r"acl ours path_beg (.*)", theirs)[1].split())
        self.assertEqual((rest["match"], rest["direct_response"]["status"]), ({"prefix": "/"}, 403), "which gRPC makes PERMISSION_DENIED of")
        for route in routes:
            self.assertEqual(route["route"]["hash_policy"], [{"header": {"header_name": name}} for name in set(re.findall(r"balance hdr\((.*)\)", theirs))])
            self.assertEqual((route["route"]["timeout"], route["route"]["cluster"]), ("0s", self.cluster["name"]))
        endpoints = [each["endpoint"] for each in self.cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]]
        for servers in (re.findall(rf"^ +server \S+ (\S+):(\d+) proto h2 {more}", theirs, re.MULTILINE) for more in ("check", "init-addr")):
            self.assertEqual([(each["address"]["socket_address"]["address"], str(each["address"]["socket_address"]["port_value"])) for each in endpoints], servers)
        (check,) = self.cluster["health_checks"]
        self.assertEqual(check["http_health_check"]["path"], re.search(r"http-check send meth GET uri (\S+)", theirs)[1])
        self.assertEqual({str(each["health_check_config"]["port_value"]) for each in endpoints}, {re.search(r"default-server port (\d+)", theirs)[1]})
        # Neither repeats what may have been done: a server that was not reached has begun nothing, nor has one that refuses a stream.
        self.assertEqual(re.findall(r"retry-on (.*)", theirs)[:2], ["conn-failure", "conn-failure 503"])
        self.assertEqual({route["route"]["retry_policy"]["retry_on"] for route in whole}, {"connect-failure,refused-stream"})

    def test_it_tries_elsewhere_what_haproxys_does(self):
        theirs = haproxy.CONFIG.read_text(encoding="utf-8")
        keyed, keyless, answers = (route for route in self.host["routes"] if "prefix" not in route["match"])
        self.assertEqual({keyed["match"]["path"], keyless["match"]["path"]}, {re.search(r"acl begins path (.*)", theirs)[1]})
        kinds = re.search(r"acl answers path (.*)", theirs)[1].split()
        self.assertEqual([path for path in kinds if re.fullmatch(answers["match"]["safe_regex"]["regex"], path)], kinds)
        self.assertEqual((keyed["match"]["headers"], answers["match"]["headers"]), ([{"name": "x-ebb-session", "present_match": True}],
                                                                                    [{"name": "x-ebb-session", "present_match": True, "invert_match": True}]))
        codes = {grpc.StatusCode[name.upper()].value[0] for name in ("cancelled", "unavailable")}
        self.assertEqual({int(code) for each in re.findall(r"set-status 503 if { res.hdr\(grpc-status\) ([\d ]+)}", theirs) for code in each.split()}, codes)
        for route in (keyless, answers):
            self.assertEqual(route["route"]["retry_policy"]["retry_on"], "connect-failure,refused-stream,unavailable,cancelled")
        policy = keyed["route"]["retry_policy"]
        self.assertEqual(policy["retry_on"], "connect-failure,refused-stream,retriable-headers")
        self.assertEqual(policy["retriable_headers"], [{"name": "grpc-message", "string_match": {"exact": text}} for text in (DRAINS, "CANCELLED")])

    def test_its_openai_port_is_as_haproxys(self):
        theirs = haproxy.CONFIG.read_text(encoding="utf-8").partition("frontend openai")[2]
        self.assertEqual(self.ports, [int(port) for port in re.findall(r"bind :(\d+) ", haproxy.CONFIG.read_text(encoding="utf-8"))])
        keyed, keyless, rest = self.openai_host["routes"]
        whole, beginning = (re.search(rf"acl ours-too {kind} (.*)", theirs)[1].split() for kind in ("path", "path_beg"))
        for route in (keyed, keyless):
            regex = route["match"]["safe_regex"]["regex"]
            for path in (*whole, *(f"{prefix}a" for prefix in beginning)):
                self.assertRegex(path, f"^{regex}$")
            for path in ("/v1/embeddings", "/v1/models-of-others", "/metrics", "/ebb.v1.AdminService/GetStatus"):
                self.assertNotRegex(path, f"^{regex}$")
            self.assertEqual(route["route"]["hash_policy"], [{"header": {"header_name": name}} for name in set(re.findall(r"balance hdr\((.*)\)", theirs))])
            self.assertEqual((route["route"]["timeout"], route["route"]["cluster"]), ("0s", self.openai_cluster["name"]))
        self.assertEqual(rest["direct_response"]["status"], 404)
        self.assertIn(json.dumps(rest["direct_response"]["body"]["inline_string"]), theirs)
        self.assertEqual(re.findall(r"retry-on (.*)", theirs), ["conn-failure 503", "conn-failure"])
        self.assertEqual((keyed["match"]["headers"], keyed["route"]["retry_policy"]["retry_on"]), ([{"name": "x-ebb-session", "present_match": True}],
                                                                                                   "connect-failure"))
        again = keyless["route"]["retry_policy"]
        self.assertEqual((again["retry_on"], again["retriable_status_codes"]), ("connect-failure,retriable-status-codes", [503]))
        endpoints = [each["endpoint"] for each in self.openai_cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]]
        addresses = [each["address"]["socket_address"] for each in endpoints]
        self.assertEqual([(each["address"], str(each["port_value"])) for each in addresses] * 2, re.findall(r"^ +server \S+ (\S+):(\d+) ", theirs, re.MULTILINE))
        grpc_endpoints = [each["endpoint"] for each in self.cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]]
        self.assertEqual([each["health_check_config"] for each in endpoints], [each["health_check_config"] for each in grpc_endpoints])
        self.assertEqual(self.openai["request_timeout"], re.search(r"wait-for-body time (\S+)", theirs)[1])
        self.assertIn("envoy.filters.http.buffer", [each["name"] for each in self.openai["http_filters"]])

    def test_its_limits_are_haproxys(self):
        theirs = haproxy.CONFIG.read_text(encoding="utf-8")
        told = {name: value for name, value in re.findall(r"^    ([\w.-]+(?: [a-z-]+)?) (\d\w*)$", theirs.partition("frontend")[0], re.MULTILINE)}

        def seconds(text):
            return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]
        for http in (self.http, self.openai):
            http2 = http["http2_protocol_options"]
            self.assertEqual((http2["max_concurrent_streams"], http2["hpack_table_size"], http["max_request_headers_kb"] * 1024),
                             tuple(int(told[f"tune.{name}"]) for name in ("h2.max-concurrent-streams", "h2.header-table-size", "bufsize")))
            self.assertEqual(seconds(http["stream_idle_timeout"]), seconds(told["timeout client"]))
            self.assertEqual(seconds(http["common_http_protocol_options"]["idle_timeout"]), seconds(told["timeout http-keep-alive"]))
        for listener in self.config["static_resources"]["listeners"]:
            self.assertEqual(listener["per_connection_buffer_limit_bytes"], int(told["tune.bufsize"]))
            (chain,) = listener["filter_chains"]
            lowest = chain["transport_socket"]["typed_config"]["common_tls_context"]["tls_params"]["tls_minimum_protocol_version"]
            self.assertEqual(lowest.replace("_", "."), re.search(r"ssl-min-ver (\S+)", theirs)[1])
        self.assertEqual(self.most(), int(told["maxconn"]))
        (check,) = self.cluster["health_checks"]
        for cluster in (self.cluster, self.openai_cluster):
            self.assertEqual((cluster["connect_timeout"], cluster["health_checks"]), (told["timeout connect"], [check]))
        self.assertEqual((check["interval"], check["unhealthy_threshold"], check["healthy_threshold"], check["timeout"]),
                         (*((each if each.endswith("s") else int(each)) for each in re.search(r"inter (\S+) fall (\d+) rise (\d+) ", theirs).groups()), re.search(r"timeout check (\S+)", theirs)[1]))

    def most(self):
        """Connections of all clients."""
        monitors = [each["typed_config"] for each in self.config["overload_manager"]["resource_monitors"]]
        return next(each["max_active_downstream_connections"] for each in monitors if "max_active_downstream_connections" in each)

    def test_its_limits_are_as_told(self):
        page = (ROOT / "docs/how-to/put-a-proxy-in-front.md").read_text(encoding="utf-8").split("\n## Envoy\n")[1].split("\n## ")[0]
        page = " ".join(page.split())
        told = []
        for http in (self.http, self.openai):
            (limit,) = [each["typed_config"] for each in http["http_filters"] if each["name"] == "envoy.filters.http.local_ratelimit"]
            bucket = limit["token_bucket"]
            self.assertEqual((bucket["tokens_per_fill"], bucket["fill_interval"]), (bucket["max_tokens"], "10s"), "so many, and no more, in ten seconds")
            for name in ("filter_enabled", "filter_enforced"):
                self.assertEqual(limit[name]["default_value"], {"numerator": 100, "denominator": "HUNDRED"})
            self.assertEqual(http["common_http_protocol_options"]["headers_with_underscores_action"], "REJECT_REQUEST")
        told.append(f"Its bound on calls, {bucket['max_tokens']:,} in ten seconds,")
        told.append(f"Behind it stands another: {self.most():,} connections,")
        heap, *_ = [each["typed_config"] for each in self.config["overload_manager"]["resource_monitors"]]
        (action,) = self.config["overload_manager"]["actions"]
        (trigger,) = action["triggers"]
        self.assertEqual((action["name"], trigger["name"], heap["max_heap_size_bytes"]), ("envoy.overload_actions.stop_accepting_requests", "envoy.resource_monitors.fixed_heap", 1 << 30))
        told.append(f"no new calls when its own memory is at {trigger['threshold']['value']:.0%} of a gibibyte.".replace("%", " %"))
        (whole,) = [each["typed_config"]["max_request_bytes"] for each in self.openai["http_filters"] if each["name"] == "envoy.filters.http.buffer"]
        default = re.search(r"uint64 message_size_max = .*?default: \"(\d+)MiB\"", (ROOT / "proto/ebb/config/v1/config.proto").read_text(encoding="utf-8"), re.DOTALL)
        self.assertEqual(whole, int(default[1]) << 20, "as much as the server takes")
        self.assertEqual(self.openai["request_timeout"], "10s")
        told.append(f"it reads the whole of a request, up to {whole >> 20} MiB, which has ten seconds,")
        (version,) = re.findall(r"^# Envoy ([\d.]+) or later", (ROOT / "deploy/envoy/envoy.yaml").read_text(encoding="utf-8"))
        told.append(f"the same for Envoy {version} or later,")
        for sentence in told:
            self.assertIn(sentence, page)
        self.assertEqual(len(re.findall(r"\d[\d.,]*\d|\d", page)), sum(len(re.findall(r"\d[\d.,]*\d|\d", sentence)) for sentence in told), "a number that this test does not know")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
