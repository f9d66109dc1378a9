#!/usr/bin/env python3
"""The clients follow a session to the server that has it, among two real ones on a real Redis: only to whom the caller has named. `ebb` is
the C++ client. Needs Debian's redis-server; the half of Node is skipped where node_client_test.py is."""
import asyncio
import json
import subprocess
import unittest

from binaries import BIN, Server
from gate import Gate
from shared_store_test import Redis
import python_package  # noqa: F401, where ebb comes from
import node_client_test

import ebb
import grpc
from ebb import errors
from ebb.homes import Homes
from ebb.v1 import session_pb2

PATIENT = ebb.Retry(attempts=200, first=0.02, most=0.2)
FLAGS = ("--max-tokens=200", "--temperature=0.8", "--seed=7", "--ignore-eos", "--json")
ANSWER = {"max_tokens": 200, "temperature": 0.8, "seed": 7, "ignore_eos": True}
PROMPT = "It was a dark and stormy night, and the lamp was in the cellar."
POLICY = ebb.policy("h2o", budget=48)


def moved(to, name="sessions/s"):
    metadata = {"session": name, **({"endpoint": to} if to else {})}
    return errors.Unavailable(grpc.StatusCode.UNAVAILABLE, "elsewhere", "SESSION_MOVED", metadata=metadata, retry_delay=0.2)


class WhereTo(unittest.TestCase):
    """Who is asked, without a server."""

    REQUEST = session_pb2.GetSessionRequest(name="sessions/s")

    def after(self, follow, *events):
        """Where the session is looked for after these: (whom it was asked, what that said)."""
        homes = Homes("a:1", follow)
        for address, error in events:
            homes.heed(self.REQUEST, address, error)
        return homes.of(self.REQUEST)

    def test_only_who_was_named_is_followed(self):
        for follow, endpoint, followed in (
                ([], "b:1", False), (["b:1"], "b:1", True), (["b:1"], "b:2", False), (["b:1"], "c:1", False),
                (["*.x.org:1"], "b.x.org:1", True), (["*.x.org:1"], "c.b.x.org:1", True), (["*.x.org:1"], "b.x.org:2", False),
                (["*.x.org:1"], "x.org:1", False), (["*.x.org:1"], "bx.org:1", False), (["*.x.org:1"], "b.x.org.evil.net:1", False),
                (["*.x.org:1"], "dns://evil.net/b.x.org:1", False), (["*.x.org:1"], "evil.net/.x.org:1", False),
                (["*.x.org:1"], "evil.net,b.x.org:1", False), (["*.x.org:1"], "unix:b.x.org:1", False), (["*.x.org:1"], ".x.org:1", False),
                (["*.x.org:1"], "", False)):
            with self.subTest(follow=follow, endpoint=endpoint):
                error = moved(endpoint)
                self.assertEqual(self.after(follow, ("a:1", error)), endpoint if followed else "a:1")
                self.assertEqual(error.retry_delay, 0.0 if followed else 0.2, "followed at once, or as the server says")

    def test_what_names_no_server_is_refused(self):
        for wrong in ("b", "*:1", "*.*:1", "b.*:1", ":1", "b:", "b:x", "a*.org:1"):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, "follow: .* is neither host:port nor"):
                Homes("a:1", [wrong])

    def test_where_nobody_answers_the_next_is_asked(self):
        broken = errors.Unavailable(grpc.StatusCode.UNAVAILABLE, "connection refused")
        self.assertEqual(self.after(["b:1", "c:1"], ("a:1", broken)), "b:1")
        self.assertEqual(self.after(["b:1", "c:1"], ("a:1", broken), ("b:1", broken), ("c:1", broken)), "a:1")
        self.assertEqual(self.after(["*.x.org:1"], ("a:1", moved("b.x.org:1")), ("b.x.org:1", broken)), "a:1")
        self.assertEqual(self.after([], ("a:1", broken)), "a:1")
        late = errors.DeadlineExceeded(grpc.StatusCode.DEADLINE_EXCEEDED, "too late")
        self.assertEqual(self.after(["b:1"], ("a:1", late)), "a:1")
        homes = Homes("a:1", ["b:1"])
        homes.heed(self.REQUEST, "a:1", broken)
        back = homes.heed(self.REQUEST, "b:1", moved("a:1"))
        self.assertEqual((homes.of(self.REQUEST), back.retry_delay), ("a:1", 0.2), "not at once to whom nobody answered")

    def test_calls_about_no_session_go_where_they_went(self):
        homes = Homes("a:1", ["b:1"])
        homes.heed(self.REQUEST, "a:1", moved("b:1"))
        self.assertEqual(homes.of(session_pb2.ListSessionsRequest()), "a:1")
        self.assertEqual(homes.of(session_pb2.GetSessionRequest(name="sessions/other")), "a:1")
        self.assertEqual(homes.of(session_pb2.SaveSessionRequest(session="sessions/s")), "b:1")


class Followed(unittest.TestCase):
    def setUp(self):
        self.redis = self.enterContext(Redis())
        self.first, self.second = (self.enterContext(self.server()) for _ in range(2))
        with Server() as alone, ebb.Client(alone.addr) as calm, calm.create_session(POLICY, id="s") as session:
            answer = session.generate(PROMPT, **ANSWER)
            answer.read()
            self.tokens = list(answer.tokens)

    def server(self):
        return Server(f"--store.redis=127.0.0.1:{self.redis.port}", "--store.durability=step", "--store.lease=1s", "--server.drain_timeout=100ms")

    def client(self, at, **options):
        return self.enterContext(ebb.Client(at.addr, retry=PATIENT, resume=PATIENT, **options))

    def open_at(self, server):
        return self.client(server).create_session(POLICY, id="s")

    def test_a_call_goes_where_its_session_is(self):
        self.open_at(self.second)
        few = ebb.Retry(attempts=2)
        for follow in ((), ("127.0.0.1:1",), ("*.internal:7700",)):
            with ebb.Client(self.first.addr, retry=few, resume=few, follow=follow) as client, self.assertRaises(errors.Unavailable) as caught:
                client.session("s").info()
            self.assertEqual((caught.exception.reason, caught.exception.metadata["endpoint"]), ("SESSION_MOVED", self.second.addr))
        client = self.client(self.first, follow=[self.second.addr])
        session = client.session("s")
        self.assertEqual(session.info().name, "sessions/s")
        answer = session.generate(PROMPT, **ANSWER)
        answer.read()
        self.assertEqual((list(answer.tokens), answer.breaks), (self.tokens, 0))
        branch = session.fork(id="b")
        self.assertEqual(branch.info().tokens, session.info().tokens)
        self.assertEqual({each.name for each in client.sessions()}, set(), "no call about a session: asked where it was")
        for each in (branch, session):
            each.delete()

    def test_a_stream_goes_on_where_its_session_does(self):
        self.open_at(self.first)
        session = self.client(self.first, follow=[self.second.addr]).session("s")
        answer = session.generate(PROMPT, **ANSWER)
        pieces = answer.messages()
        while len(answer.tokens) < 20:
            next(pieces)
        self.first.process.kill()  # the other takes the session when its lease is over
        for _ in pieces:
            pass
        self.assertEqual(list(answer.tokens), self.tokens)
        self.assertGreater(answer.breaks, 0)

    def test_asyncio_does_the_same(self):
        self.open_at(self.second)

        async def run():
            client = ebb.aio.Client(self.first.addr, retry=PATIENT, resume=PATIENT, follow=[self.second.addr])
            answer = client.session("s").generate(PROMPT, **ANSWER)
            await answer.read()
            await client.close()
            return list(answer.tokens)

        self.assertEqual(asyncio.run(run()), self.tokens)

    def tokens_of(self, lines):
        """What `ebb generate --json` printed."""
        return [token for line in lines for token in json.loads(line).get("decode", {}).get("tokens", ())]

    def test_ebb_does_the_same(self):
        self.open_at(self.second)
        for follow in ((), ("--follow=127.0.0.1:1",), ("--follow=*.internal:7700",)):
            self.first.ebb(*follow, "sessions", "get", "s", "--json", check=1)
            error = json.loads(self.first.stderr)["error"]
            self.assertEqual((error["reason"], error["metadata"]["endpoint"]), ("SESSION_MOVED", self.second.addr))
        for wrong in ("b", "*:1", "*.*:1", ":1", f"{self.second.addr},b"):
            self.first.ebb("--follow", wrong, "sessions", "get", "s", check=2)
            self.assertIn("is neither host:port nor *.domain:port", self.first.stderr)
        follow = f"--follow=127.0.0.1:1,{self.second.addr}"
        self.assertEqual(json.loads(self.first.ebb(follow, "sessions", "get", "s", "--json"))["name"], "sessions/s")
        told = self.first.ebb(follow, "generate", PROMPT, "--session=s", *FLAGS).splitlines()
        self.assertEqual(self.tokens_of(told), self.tokens)
        self.assertEqual(json.loads(told[-1])["decode"]["finish_reason"], "FINISH_REASON_MAX_TOKENS")
        self.first.ebb(follow, "fork", "s", "b")
        self.assertEqual(self.first.ebb(follow, "sessions"), "no sessions\n", "no call about a session: asked where it was")
        self.first.ebb(follow, "sessions", "delete", "s", "b")

    def test_an_answer_of_ebb_goes_on_where_its_session_does(self):
        self.open_at(self.first)
        command = [BIN / "ebb", f"--addr={self.first.addr}", f"--follow={self.second.addr}", "generate", PROMPT, "--session=s", *FLAGS]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as answer:
            told = []
            while len(self.tokens_of(told)) < 20:
                told.append(answer.stdout.readline())
            self.first.process.kill()  # the other takes the session when its lease is over
            told += answer.stdout  # what communicate would not: lines that readline has read ahead
            errors_told = answer.stderr.read()
        self.assertEqual((answer.returncode, errors_told), (0, ""))
        self.assertEqual(self.tokens_of(told), self.tokens)
        decoded = [message["decode"]["sequence"] for message in map(json.loads, told) if "decode" in message]
        self.assertEqual(decoded, [str(i) for i in range(len(decoded))], "counted as if nothing had happened")
        self.second.ebb("sessions", "delete", "s")

    def test_an_answer_of_ebb_goes_on_wherever_it_is_cut(self):
        direct, gate = self.client(self.second), self.enterContext(Gate(self.second.addr))
        command = [BIN / "ebb", f"--addr={gate.addr}", f"--follow={gate.addr}", "generate", PROMPT, *FLAGS]
        for point in range(9):
            with self.subTest(point=point), direct.create_session(POLICY) as session:
                gate.cut_after, gate.abrupt = whole * point // 9 if point else None, point % 2 == 0
                told = subprocess.run([*command, f"--session={session.name}"], capture_output=True, text=True, timeout=120)
                self.assertEqual((told.returncode, told.stderr), (0, ""))
                self.assertEqual(self.tokens_of(told.stdout.splitlines()), self.tokens)
                whole = whole if point else gate.passed
        self.assertGreater(gate.cuts, 2)

    def test_without_follow_ebb_says_that_nobody_answers(self):
        self.open_at(self.first)
        self.first.process.kill()
        self.first.ebb("sessions", "get", "s", check=3)

    @unittest.skipIf(node_client_test.missing(), node_client_test.missing())
    def test_node_does_the_same(self):
        self.open_at(self.second)
        told = node_client_test.NodeClient("told").told
        self.assertEqual(told("""
            const few = { attempts: 2 };
            for (const follow of [[], ["127.0.0.1:1"], ["*.internal:7700"]]) {
              const client = open({ retry: few, resume: few, follow });
              await client.session("s").info().catch((error) => tell(error.reason));
              client.close();
            }
            for (const follow of ["b", "*:1", "*.*:1", ":1"]) {
              try { open({ follow: [follow] }); } catch (error) { tell(error.constructor.name); }
            }""", self.first.addr), ["SESSION_MOVED"] * 3 + ["TypeError"] * 4)
        [tokens] = told(f"""
            const client = open({{ follow: [{json.dumps(self.second.addr)}] }});
            const got = client.session("s").generate({json.dumps(PROMPT)}, {{ maxTokens: 200, temperature: 0.8, seed: 7, ignoreEos: true }});
            await got.read();
            tell(got.tokens);
            await client.session("s").delete();
            client.close();""", self.first.addr)
        self.assertEqual(tokens, self.tokens)


if __name__ == "__main__":
    unittest.main(verbosity=2)
