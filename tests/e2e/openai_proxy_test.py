#!/usr/bin/env python3
"""The OpenAI port behind HAProxy, as deploy/haproxy/haproxy.cfg has it: answers event by event, bodies that come slowly, sessions that stick, what is
asked of another server, and refusals that OpenAI's clients understand. What an address may begin is in proxy_test.py, since both ports count it."""
import contextlib
import http.client
import json
import select
import socket
import ssl
import sys
import time
import unittest
import urllib.request

import haproxy
from patience import PATIENCE, eventually
from proxied import MISSING, Proxied, connections, unread

WITH_PORT = "--openai.listen=127.0.0.1:0"
PROMPT = {"prompt": "It was a dark and stormy night", "temperature": 0, "ignore_eos": True, "ebb": {"policy": "h2o:budget=64"}}
LONG = 64 << 10  # bytes, more than fit into a buffer of the proxy's


def error_of(answer):
    """What an answer is, if it is a refusal in the form of the OpenAI port: its code of HTTP, what it says, and whether to try again."""
    error = json.loads(answer.read())["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    return answer.status, answer.headers["content-type"], error["message"], answer.headers["x-should-retry"], answer.headers["retry-after"]


def head(path, size):
    return f"POST {path} HTTP/1.1\r\nHost: ebb\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode()


class OpenAi(Proxied):
    flags_of = ((WITH_PORT,), (WITH_PORT,))

    def to_proxy(self):
        """A connection to the proxy, which trusts its certificate alone."""
        trust = ssl.create_default_context(cadata=self.certificate.read_text())
        trust.check_hostname = False  # it is of another name
        return self.enterContext(contextlib.closing(http.client.HTTPSConnection("127.0.0.1", self.proxy.openai, timeout=PATIENCE, context=trust)))

    def to_server(self, number):
        return self.enterContext(contextlib.closing(http.client.HTTPConnection(self.servers[number].openai, timeout=PATIENCE)))

    def plain(self):
        return self.enterContext(haproxy.Proxy(self.folder, None, self.servers, blind=self.blind))

    def begin(self, proxy, *pieces, source="127.0.0.1"):
        """A connection to a proxy without TLS that has sent these, and no more."""
        connection = self.enterContext(socket.create_connection(("127.0.0.1", proxy.openai), timeout=PATIENCE, source_address=(source, 0)))
        for piece in pieces:
            connection.sendall(piece)
        return connection

    def ask(self, connection, path="/v1/completions", key=None, **body):
        """The answer to a request of PROMPT and `body`."""
        headers = {"content-type": "application/json", **({"x-ebb-session": key} if key else {})}
        connection.request("POST", path, json.dumps({**PROMPT, **body}), headers)
        return connection.getresponse()

    def complete(self, connection, key=None, **body):
        """A whole answer, as the port gives it."""
        answer = self.ask(connection, key=key, max_tokens=4, **body)
        said = answer.read()
        self.assertEqual(answer.status, 200, said)
        return json.loads(said)

    def port_of(self, number):
        return int(self.servers[number].openai.rsplit(":", 1)[1])

    def held(self):
        """How many connections each server has at its OpenAI port."""
        return [len(connections(self.port_of(number))) for number in range(2)]

    def sessions(self):
        """How many sessions the servers have."""
        total = 0
        for server in self.servers:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{server.http}/metrics", timeout=PATIENCE) as page:
                total += sum(float(line.rsplit(" ", 1)[1]) for line in page.read().decode().splitlines() if line.startswith("ebb_sessions{"))
        return total


def read_events(answer):
    """The texts of an answer's events, whose last one has been read."""
    texts = []
    for line in iter(answer.readline, b""):
        if line == b"data: [DONE]\n":
            return texts
        if line.startswith(b"data: "):
            texts += [choice["text"] for choice in json.loads(line[6:])["choices"]]
    raise AssertionError("the answer is cut off")


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Behind(OpenAi):
    def test_an_answer_comes_event_by_event(self):
        answer = self.ask(self.to_proxy(), stream=True, max_tokens=4000)
        self.assertEqual((answer.status, answer.headers["content-type"]), (200, "text/event-stream"))
        first = answer.readline()
        self.assertNotIn("/v1/completions", self.proxy.log.read_text(), "it is read when it has ended")  # which is when it is logged
        texts = [choice["text"] for choice in json.loads(first[6:])["choices"]] + read_events(answer)
        eventually(lambda: "/v1/completions" in self.proxy.log.read_text(), "its end is not logged")
        straight = json.loads(self.ask(self.to_server(0), max_tokens=4000).read())
        self.assertEqual("".join(texts), straight["choices"][0]["text"])

    def test_no_event_waits_for_the_next_one(self):
        proxy = self.plain()  # with TLS it would not wait in any case
        body = json.dumps({**PROMPT, "max_tokens": 400, "stream": True}).encode()

        def pieces():
            with self.begin(proxy, head("/v1/completions", len(body)), body) as connection:
                came = [connection.recv(1 << 16)]
                while b"data: [DONE]" not in came[-1]:
                    came.append(connection.recv(1 << 16))
                    self.assertTrue(came[-1], "the answer is cut off")
            return len(came)
        eventually(lambda: pieces() > 60, "400 tokens come in a few pieces")  # one for 150 ms, where the proxy waits for more

    def test_it_speaks_http2_and_http1(self):
        for offered, chosen in ((["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1")):
            trust = ssl.create_default_context(cadata=self.certificate.read_text())
            trust.set_alpn_protocols(offered)
            with socket.create_connection(("127.0.0.1", self.proxy.openai), timeout=PATIENCE) as raw, trust.wrap_socket(raw, server_hostname="ebb.test") as connection:
                self.assertEqual(connection.selected_alpn_protocol(), chosen)

    def test_a_request_that_comes_slowly_reaches_no_server(self):
        proxy = self.plain()
        body = json.dumps({**PROMPT, "max_tokens": 4}).encode()
        began = time.monotonic()
        slow = {"body": self.begin(proxy, head("/v1/completions", len(body)), body[:-1]),
                "long body": self.begin(proxy, head("/v1/completions", LONG), bytes(16 << 10)),
                "head": self.begin(proxy, head("/v1/completions", len(body))[:-2])}
        while not select.select(slow.values(), [], [], 0.2)[0]:
            self.assertEqual(self.held(), [0, 0], "a server has it")
        for what, connection in slow.items():
            with self.subTest(what):
                answer = http.client.HTTPResponse(connection)
                answer.begin()
                if what == "head":  # to which HAProxy has a page of its own
                    self.assertEqual(answer.status, 408)
                else:
                    self.assertEqual(error_of(answer), (408, "application/json", "the request did not come in time", "true", "1"))
        self.assertGreater(time.monotonic() - began, 9)
        self.assertEqual(self.held(), [0, 0])
        with self.begin(proxy, head("/v1/completions", len(body)), body[:-1]) as connection:  # within ten seconds
            connection.sendall(body[-1:])
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            self.assertEqual(answer.status, 200)

    def test_long_requests_that_come_slowly_leave_room_for_others(self):
        proxy = self.plain()
        slow = [self.begin(proxy, head("/v1/completions", LONG), bytes(LONG - 1), source=f"127.0.0.{11 + i // 8}") for i in range(40)]
        eventually(lambda: self.held() == [16, 16], lambda: f"the servers have {self.held()} of them")
        self.assertEqual(len(self.complete(self.to_proxy())["choices"]), 1, "others are served")
        refused = eventually(lambda: len(ended := select.select(slow, [], [], 0)[0]) >= 8 and ended, "the others wait for longer than five seconds")
        self.assertEqual(len(refused), 8)
        eventually(lambda: self.held() == [16, 16], lambda: f"the servers have {self.held()} of them in the end")
        for connection in refused:
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            self.assertEqual(error_of(answer), (503, "application/json", "no server takes requests", "true", "1"))

    def test_an_address_has_so_many_long_requests_at_once(self):
        proxy = self.plain()
        for _ in range(8):
            self.begin(proxy, head("/v1/completions", LONG), bytes(LONG - 1))
        eventually(lambda: sum(self.held()) == 8, lambda: f"the servers have {self.held()} of them")
        answer = http.client.HTTPResponse(self.begin(proxy, head("/v1/completions", LONG), bytes(LONG - 1)))
        answer.begin()
        self.assertEqual(error_of(answer), (429, "application/json", "too many long requests from this address at once", "true", "10"))
        self.assertEqual(len(self.complete(self.to_proxy())["choices"]), 1, "a short one is served")
        self.begin(proxy, head("/v1/completions", LONG), bytes(LONG - 1), source="127.0.0.2")
        eventually(lambda: sum(self.held()) == 9, lambda: f"another address has none: {self.held()}")

    def test_a_long_request_is_answered(self):
        prompt = PROMPT["prompt"] + " night" * (LONG // 6)
        self.assertEqual(self.complete(self.to_proxy(), prompt=prompt)["usage"]["completion_tokens"], 4)
        eventually(lambda: " openai-long/ebb-" in self.proxy.log.read_text(), "it is no long one")

    def test_a_session_stays_at_its_server(self):
        found = set()
        for i in range(12):
            key, ebb = f"caller-{i}", {**PROMPT["ebb"], "session": f"kept-{i}"}
            first, second = (self.complete(self.to_proxy(), key=key, ebb=ebb) for _ in range(2))
            self.assertEqual(second["model"], first["model"])
            self.assertGreater(second["usage"]["ebb"]["session_tokens"], first["usage"]["ebb"]["session_tokens"], "it goes on")
            self.assertEqual(first["model"], self.create(key)[0].model, "calls of gRPC with that key go there, too")
            found.add(first["model"])
        self.assertEqual(found, {"server-0", "server-1"}, "both have sessions")

    def test_who_names_a_session_in_the_body_alone_is_told_of_the_header(self):
        told = (400, "application/json", "x-ebb-session: this proxy chooses the server of ebb.session by that header; send it with every request of the "
                "session, with the same text, such as its id", "false", None)
        self.assertEqual(error_of(self.ask(self.to_proxy(), ebb={"session": "kept"}, user="x" * (16 << 10))), told)
        with contextlib.suppress(OSError):  # of a long body, what is sent after the answer may find the connection closed
            self.assertEqual(error_of(self.ask(self.to_proxy(), ebb={"session": "kept"}, user="x" * LONG)), told)
        self.assertEqual(self.sessions(), 0)

    def test_paths_of_the_port_alone_are_let_in(self):
        connection = self.to_proxy()
        connection.request("GET", "/v1/models")
        answer = connection.getresponse()
        (model,) = json.loads(answer.read())["data"]
        connection.request("GET", f"/v1/models/{model['id']}")
        self.assertEqual(connection.getresponse().read()[:1], b"{")
        for path in ("/", "/metrics", "/v1/embeddings", "/v1/models-of-others", "/ebb.v1.AdminService/GetStatus"):
            with self.subTest(path):
                through, straight = self.ask(self.to_proxy(), path), self.ask(self.to_server(0), path)
                self.assertEqual(error_of(through), error_of(straight), "the port itself says so, too")
                self.assertEqual(through.status, 404)

    def test_a_client_that_hangs_up_ends_its_answer(self):
        for stream in (True, False):
            with self.subTest(stream=stream):
                connection = self.to_proxy()
                connection.request("POST", "/v1/completions", json.dumps({**PROMPT, "max_tokens": 1 << 20, "stream": stream}), {"content-type": "application/json"})
                eventually(lambda: self.sessions() == 1, "it does not begin")
                connection.close()
                eventually(lambda: self.sessions() == 0, "it goes on for nobody")

    def test_servers_that_die(self):
        ebb = {**PROMPT["ebb"], "session": "kept"}
        key = next(key for key in (f"caller-{i}" for i in range(50)) if self.complete(self.to_proxy(), key=key)["model"] == "server-0")
        began = self.complete(self.to_proxy(), key=key, ebb=ebb)["usage"]["ebb"]["session_tokens"]
        process = self.servers[0].process
        self.pause(0)
        connection = self.to_proxy()
        connection.request("POST", "/v1/completions", json.dumps(PROMPT), {"content-type": "application/json", "x-ebb-session": key})
        eventually(lambda: unread(self.port_of(0)) > len(PROMPT["prompt"]), "the request comes to no server")
        process.kill()
        process.wait()
        self.assertEqual(error_of(connection.getresponse()), (502, "application/json", "the server broke off", None, None), "the other one was not asked")
        again = self.complete(self.to_proxy(), key=key, ebb=ebb)
        self.assertEqual((again["model"], again["usage"]["ebb"]["session_tokens"]), ("server-1", began), "the session is begun anew")
        self.assertEqual({self.complete(self.to_proxy(), key=key)["model"] for _ in range(4)}, {"server-1"}, "what reaches no server goes to the other one")
        self.servers[1].process.kill()
        self.servers[1].process.wait()
        self.assertEqual(error_of(self.ask(self.to_proxy())), (503, "application/json", "no server takes requests", "true", "1"))


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Elsewhere(OpenAi):
    """What one server refuses, while the proxy believes that both are there."""
    blind = True
    flags_of = ((WITH_PORT, "--cache.sessions_max=1"), (WITH_PORT,))

    def test_an_answer_that_a_full_server_refuses_is_the_others(self):
        kept = self.ask(self.to_server(0), max_tokens=1, ebb={"session": "kept"})
        self.assertEqual((kept.status, kept.read()[:1]), (200, b"{"))
        refusal = error_of(self.ask(self.to_server(0)))
        self.assertEqual((refusal[0], refusal[3]), (503, "true"))
        self.assertEqual({self.complete(self.to_proxy())["model"] for _ in range(4)}, {"server-1"})
        told = [self.ask(self.to_proxy(), key=f"caller-{i}", max_tokens=1) for i in range(12)]
        self.assertEqual({answer.status for answer in told}, {200, 503}, "a session of one server's is not begun on the other")
        self.assertEqual({error_of(answer) for answer in told if answer.status == 503}, {refusal}, "and its refusal comes whole")
        for key in (f"begun-{i}" for i in range(8)):
            self.assertEqual(self.create(key)[1], 1, "where gRPC's calls with it began a session")
            self.assertEqual(self.complete(self.to_proxy(), key=key)["model"], "server-1")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
