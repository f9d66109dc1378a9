#!/usr/bin/env python3
"""The Python package when connections break, servers restart and calls are refused: the same tokens, or an error that says why."""
import asyncio
import re
import sys
import tempfile
import unittest
from unittest import mock

from binaries import ROOT, Server
from gate import Gate
from patience import eventually
import python_package  # noqa: F401, where ebb comes from

import ebb
import grpc
from ebb import channel, details_pb2, errors, flow, progress
from ebb.retry import Tries
from ebb.v1 import inference_pb2, session_pb2

PATIENT = ebb.Retry(attempts=60, first=0.01, most=1.0)
POLICY = ebb.policy("h2o", budget=48)
ANSWER = {"max_tokens": 64, "temperature": 0.8, "seed": 7, "ignore_eos": True}
PROMPT = "It was a dark and stormy night, and the lamp was in the cellar."


def at_first(client, method, do):
    """Has `do` called just before the client's first call of a method."""
    methods = client._servers.at(client._homes.own).methods
    call = methods[method]

    def first(*args, **options):
        methods[method] = call
        do()
        return call(*args, **options)

    methods[method] = first


def idle(session):
    """Waits until the call on it whose connection was cut is over."""
    eventually(lambda: session.info().state != session_pb2.SESSION_STATE_BUSY, "the call goes on")


class Broken(unittest.TestCase):
    """Sessions are opened directly, and read through the gate."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server())
        cls.direct = cls.enterClassContext(ebb.Client(cls.server.addr))
        with cls.direct.create_session(POLICY) as session:
            answer = session.generate(PROMPT, **ANSWER)
            answer.read()
            cls.tokens, cls.text = list(answer.tokens), answer.text
        cls.least = len(cls.text.encode()) + 2 * len(cls.tokens)  # bytes of the answer, however few messages it is merged into
        cls.ids = cls.direct.tokenize(PROMPT)

    def setUp(self):
        self.gate = self.enterContext(Gate(self.server.addr))

    def through(self, **options):
        return self.enterContext(ebb.Client(self.gate.addr, **{"retry": PATIENT, "resume": PATIENT, **options}))

    def cut(self, client, method, after):
        """Cuts the connection after so many bytes of the method's first answer."""
        at_first(client, method, lambda: setattr(self.gate, "cut_after", after))

    def each_cut(self, method, read, points, least=0):
        """Has `read` read new sessions through a client that is cut at another point of the method's answer, now orderly, now by a reset.
        Half of the points are in its first `least` bytes; behind them there may be no cut, since a server that is ahead of its reader merges
        messages."""
        with self.direct.create_session(POLICY) as session:
            begin = []
            read(session.name, lambda client: at_first(client, method, lambda: begin.append(self.gate.passed)))
            whole = self.gate.passed - begin[0]
        for point in range(1, points + 1):
            with self.subTest(point=point), self.direct.create_session(POLICY) as session:
                sure = least > 0 and point <= points // 2
                after = (2 * least if sure else whole) * point // (points + 1)
                self.gate.cuts, self.gate.abrupt = 0, point % 2 == 0
                yield read(session.name, lambda client: self.cut(client, method, after))
                self.gate.cut_after = None
                if sure:
                    self.assertEqual(self.gate.cuts, 1)

    def by(self, read):
        """For `each_cut`: a session, read through a client that blocks."""
        def prepared(name, prepare):
            client = self.through()
            prepare(client)
            return read(client.session(name))
        return prepared

    def test_an_answer_goes_on_with_the_same_tokens_wherever_it_is_cut(self):
        def generate(session):
            answer = session.generate(PROMPT, **ANSWER)
            self.assertEqual("".join(answer), answer.text)
            return answer

        for answer in self.each_cut("Generate", self.by(generate), 12, self.least):
            self.assertEqual((answer.tokens, answer.text, answer.finish_reason), (self.tokens, self.text, "MAX_TOKENS"))
            self.assertEqual(answer.usage.session_tokens, len(self.ids) + len(self.tokens))

    def test_messages_are_counted_as_if_nothing_had_happened(self):
        for messages in self.each_cut("Generate", self.by(lambda session: list(session.generate(PROMPT, **ANSWER).messages())), 4, self.least):
            self.assertEqual([message.sequence for message in messages], list(range(len(messages))))
            self.assertEqual([token for message in messages for token in message.tokens], self.tokens)

    def test_a_stop_text_that_the_break_cuts_in_two_still_stops(self):
        words = self.text.split(" ")
        options = {**ANSWER, "stop": [" ".join(words[len(words) // 2:][:3])]}
        with self.direct.create_session(POLICY) as session:
            right = session.generate(PROMPT, **options)
            self.assertIn(right.read(), self.text)

        def generate(session):
            answer = session.generate(PROMPT, **options)
            answer.read()
            return answer

        for answer in self.each_cut("Generate", self.by(generate), 4):
            self.assertEqual((answer.tokens, answer.text, answer.finish_reason), (right.tokens, right.text, "STOP"))

    def test_it_is_the_same_with_asyncio(self):
        async def read(name, prepare):
            async with ebb.aio.Client(self.gate.addr, retry=PATIENT, resume=PATIENT) as client:
                prepare(client)
                session = client.session(name)
                await session.prefill(PROMPT)
                answer = session.decode(**ANSWER)
                return answer, [text async for text in answer]

        for answer, pieces in self.each_cut("Decode", lambda *given: asyncio.run(read(*given)), 6, self.least):
            self.assertEqual((answer.tokens, "".join(pieces)), (self.tokens, self.text))

    def test_a_server_that_falls_silent_is_found_out_and_the_answer_goes_on(self):
        async def read_by_asyncio(name):
            async with ebb.aio.Client(self.gate.addr, retry=PATIENT, resume=PATIENT, keepalive=1) as client:
                at_first(client, "Generate", lambda: setattr(self.gate, "cut_after", self.least // 2))
                answer = client.session(name).generate(PROMPT, **ANSWER)
                await answer.read()
                return answer

        def read(name):
            through = self.through(keepalive=1)
            self.cut(through, "Generate", self.least // 2)
            answer = through.session(name).generate(PROMPT, **ANSWER)
            answer.read()
            return answer

        self.gate.silent = True
        for read_it in (read, lambda name: asyncio.run(read_by_asyncio(name))):
            self.gate.cuts = 0
            with self.direct.create_session(POLICY) as session:
                answer = read_it(session.name)
                self.assertEqual((answer.tokens, answer.text, answer.breaks > 0, self.gate.cuts), (self.tokens, self.text, True, 1))

    def test_a_prompt_of_token_ids_goes_on_in_its_middle(self):
        def prefill(session):
            return session.prefill(self.ids, block_size=2)

        for last in self.each_cut("Prefill", self.by(prefill), 5):
            self.assertEqual((last.tokens_done, last.tokens_total), (len(self.ids), len(self.ids)))
            self.assertEqual(last.usage.session_tokens, len(self.ids))

    def test_without_resume_a_break_is_an_error(self):
        with self.direct.create_session(POLICY) as session:
            through = self.through(resume=None)
            self.cut(through, "Generate", self.least // 2)
            answer = through.session(session.name).generate(PROMPT, **ANSWER)
            with self.assertRaises(ebb.Unavailable):
                answer.read()
        self.assertEqual((answer.tokens, answer.finish_reason), (self.tokens[:len(answer.tokens)], ""))

    def test_a_session_that_others_changed_meanwhile_is_not_gone_on_with(self):
        def change():  # once the call whose stream is cut is over
            idle(session)
            session.prefill(" and")

        with self.direct.create_session(POLICY) as session:
            through, self.gate.on_cut = self.through(), change
            self.cut(through, "Generate", self.least // 2)
            answer = through.session(session.name).generate(PROMPT, **ANSWER)
            with self.assertRaisesRegex(ebb.NotResumable, "changed by others"):
                answer.read()
        self.assertEqual(answer.tokens, self.tokens[:len(answer.tokens)])

    def test_a_deleted_session_ends_the_answer(self):
        with self.direct.create_session(POLICY) as session, session.generate(PROMPT, max_tokens=1 << 20, ignore_eos=True) as answer:
            next(iter(answer))
            self.direct.session(session.name).delete()
            with self.assertRaises(ebb.Cancelled) as raised:
                answer.read()
        self.assertEqual(raised.exception.reason, "SESSION_DELETED")

    def test_what_may_have_been_done_is_not_done_twice(self):
        with self.direct.create_session(POLICY) as session:
            session.prefill(PROMPT)
            through = self.through().session(session.name)
            through.info()  # the connection stands
            self.gate.cut_after = 1
            try:
                through.verify(self.ids[:3])
            except ebb.Unavailable as error:
                self.assertEqual(error.reason, "")
            idle(session)
            self.assertLessEqual(session.info().completion_tokens, 4)
            self.gate.cut_after = 1
            self.assertEqual(through.info().name, session.name, "what only looks is done again")


class Restarted(unittest.TestCase):
    """The server behind the gate ends in the middle of an answer, and another takes its place."""

    def read_over(self, end, *flags):
        """An answer, and what became of it when the server is brought to an `end` halfway; the next one has the same flags."""
        first = Server(*flags).__enter__()
        self.addCleanup(lambda: first.process.poll() is None and first.__exit__())
        gate = self.enterContext(Gate(first.addr))

        def replace():
            end(first)
            gate.upstream = self.enterContext(Server(*flags)).addr

        client = self.enterContext(ebb.Client(gate.addr, retry=PATIENT, resume=PATIENT))
        right = client.generate(PROMPT, policy=POLICY, **ANSWER)
        right.read()
        gate.on_cut = replace
        at_first(client, "Generate", lambda: setattr(gate, "cut_after", len(right.text.encode())))
        answer = client.create_session(POLICY).generate(PROMPT, **ANSWER)
        error = None
        try:
            answer.read()
        except ebb.Error as raised:
            error = raised
        self.assertEqual((gate.cuts, answer.tokens), (1, right.tokens[:len(answer.tokens)]))
        return answer, right, error

    def test_an_answer_goes_on_at_the_next_server(self):
        with tempfile.TemporaryDirectory() as store:
            answer, right, error = self.read_over(lambda server: server.__exit__(), f"--store.dir={store}", "--store.durability=drain",
                                                  "--server.drain_timeout=0s")
        self.assertIsNone(error)
        self.assertEqual((answer.tokens, answer.text, answer.breaks > 0), (right.tokens, right.text, True))

    @staticmethod
    def kill(server):
        server.process.kill()
        server.process.wait(60)
        server.process.stderr.close()
        server.store.cleanup()

    def test_an_answer_goes_on_where_a_journal_outlives_a_kill(self):
        with tempfile.TemporaryDirectory() as store:
            answer, right, error = self.read_over(self.kill, f"--store.dir={store}", "--store.durability=step")
        self.assertIsNone(error)
        self.assertEqual((answer.tokens, answer.text, answer.breaks > 0), (right.tokens, right.text, True))

    def test_a_session_that_died_with_its_server_is_not_found(self):
        _, _, error = self.read_over(self.kill)
        self.assertIsInstance(error, ebb.NotFound)
        self.assertEqual(error.reason, "UNKNOWN_SESSION")


class Refused(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--cache.sessions_max=1"))
        cls.client = cls.enterClassContext(ebb.Client(cls.server.addr))

    def told(self):
        """What a full server says."""
        with ebb.Client(self.server.addr, retry=ebb.Retry(attempts=1)) as impatient, self.assertRaises(ebb.Unavailable) as raised:
            impatient.create_session()
        self.assertEqual(raised.exception.reason, "SESSIONS_FULL")
        self.assertGreater(raised.exception.retry_delay, 0)
        return raised.exception.retry_delay

    def test_retry_info_is_waited_for(self):
        taken = self.client.create_session()
        delay = self.told()
        with mock.patch("ebb.client.time.sleep", side_effect=lambda seconds: taken.delete()) as sleep:
            self.client.create_session().delete()
        sleep.assert_called_once_with(delay)

    def test_retry_info_is_waited_for_by_asyncio(self):
        taken = self.client.create_session()
        delay = self.told()

        async def create():
            async def sleep(seconds):
                waited.append(seconds)
                taken.delete()

            waited = []
            async with ebb.aio.Client(self.server.addr) as client:
                with mock.patch("ebb.aio.asyncio.sleep", sleep):
                    session = await client.create_session()
                await session.delete()
            return waited

        self.assertEqual(asyncio.run(create()), [delay])

    def test_a_call_is_given_up_after_the_last_attempt(self):
        with self.client.create_session(), mock.patch("ebb.client.time.sleep") as sleep, self.assertRaises(ebb.Unavailable):
            ebb.Client(self.server.addr, retry=ebb.Retry(attempts=3)).create_session()
        self.assertEqual(sleep.call_count, 2)


def failed(code, reason="", retry_delay=None, message=""):
    return ebb.Error(grpc.StatusCode[code], message, reason, retry_delay=retry_delay)


class Rules(unittest.TestCase):
    """What is decided without a server."""

    def test_no_client_asks_for_a_sign_more_often_than_the_server_lets_it(self):
        def number(path, pattern):
            return float(re.search(pattern, (ROOT / path).read_text(encoding="utf-8"))[1])

        least = number("server/transport_limits.cc", r"MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, (\d+) \* kSecond}")
        for client, asks in (("Python", channel.KEEPALIVE), ("Node", number("client/node/index.js", r"keepalive = (\d+) }")),
                             ("C++", number("client/client.h", r"keepalive = absl::Seconds\((\d+)\);")),
                             ("ebb", number("client/cli/shell.h", r'keepalive = "(\d+)s";'))):
            with self.subTest(client):
                self.assertGreater(asks, least)

    def test_who_is_tried_again_and_when(self):
        retry = ebb.Retry(attempts=5, first=0.1, most=0.3)
        self.assertEqual([retry.delay(attempt, failed("UNAVAILABLE", "QUEUE_FULL")) for attempt in range(2, 7)], [0.1, 0.2, 0.3, 0.3, None])
        for code, told, right in (("UNAVAILABLE", 7, 7), ("RESOURCE_EXHAUSTED", 7, 7), ("ABORTED", 7, 7), ("RESOURCE_EXHAUSTED", None, None),
                                  ("ABORTED", None, None), ("NOT_FOUND", 7, None), ("DEADLINE_EXCEEDED", None, None)):
            self.assertEqual(retry.delay(2, failed(code, retry_delay=told)), right, code)

    def test_a_server_that_is_away_is_tried_for_a_time_and_not_a_number_of_times(self):
        retry = ebb.Retry(attempts=2, first=0.1, most=0.3, patience=60)
        self.assertEqual([retry.delay(attempt, failed("UNAVAILABLE"), 1) for attempt in (2, 3, 4, 2000)], [0.1, 0.2, 0.3, 0.3])
        self.assertEqual([retry.delay(9, failed("UNAVAILABLE", "DRAINING", 1), away) for away in (0, 59, 59.5)], [1, 1, None])
        self.assertIsNone(ebb.Retry(attempts=1).delay(2, failed("UNAVAILABLE")), "whoever wants no second try has none")
        self.assertIsNone(ebb.Retry(patience=0).delay(2, failed("UNAVAILABLE", "DRAINING", 1)))

    def test_those_who_wait_for_a_server_do_not_come_back_at_once(self):
        error, delays = failed("UNAVAILABLE", "DRAINING", 1), set()
        for _ in range(100):
            delays.add(Tries().delay(ebb.Retry(), error))
        self.assertGreater(len(delays), 50)
        self.assertTrue(all(1 <= delay <= 1.25 for delay in delays), delays)
        self.assertEqual(Tries().delay(ebb.Retry(), failed("UNAVAILABLE", "NO_PAGES", 1)), 1, "what a server that works has reckoned is kept to")

    @mock.patch("ebb.retry.random.random", lambda: 0.0)
    @mock.patch("ebb.retry.time.monotonic")
    def test_the_time_begins_with_the_first_failure_and_again_when_the_server_has_answered(self, clock):
        tries, retry, away, full = Tries(), ebb.Retry(attempts=3, patience=60), failed("UNAVAILABLE"), failed("UNAVAILABLE", "NO_PAGES", 2)
        seen = []
        for clock.return_value, error in ((1000, away), (1030, away), (1059, full), (1060, away), (1119, away), (1119, full), (1120, away), (1181, away),
                                          (1182, full)):
            seen.append(tries.delay(retry, error))
        self.assertEqual(seen, [0.1, 0.2, 2, 0.1, 0.2, 2, 0.1, None, None])

    @mock.patch("ebb.retry.random.random", lambda: 0.0)
    def test_a_call_that_changes_something_is_repeated_only_where_it_was_not_done(self):
        unsent = failed("UNAVAILABLE", message="failed to connect to all addresses; last error: UNKNOWN: Connection refused")
        for repeatable, error, again in ((True, failed("UNAVAILABLE"), True), (False, failed("UNAVAILABLE"), False),
                                         (False, unsent, True), (False, failed("UNAVAILABLE", "QUEUE_FULL", 0.2), True)):
            with self.subTest(repeatable=repeatable, error=error):
                steps = flow.call("Verify", None, ebb.Retry(), repeatable)
                next(steps)
                if not again:
                    with self.assertRaises(ebb.Error):
                        steps.throw(error)
                    continue
                self.assertEqual(steps.throw(error), flow.Wait(error.retry_delay or 0.1, disconnected=not error.reason))
                self.assertEqual(steps.send(None).method, "Verify")

    def next_request(self, asked, read, made, blocks=(), tokens=(), generation=4):
        """What is asked for when the session has read and made so many tokens at the break, and this had come."""
        going = progress.Progress(asked)
        going.begin(session_pb2.Session(name="sessions/s", tokens=100, prompt_tokens=60, generation=3))
        for block in blocks:
            going.take(inference_pb2.PrefillResponse(tokens_done=block[0], tokens_total=block[1]))
        if tokens:
            going.take(inference_pb2.DecodeResponse(tokens=tokens))
        return going.after_break(failed("UNAVAILABLE"), session_pb2.Session(
            name="sessions/s", tokens=100 + read + made, prompt_tokens=60 + read, generation=generation, block_size=8))

    def test_what_is_asked_for_after_a_break(self):
        text = inference_pb2.GenerateRequest(session="sessions/s", prompt={"text": "t"}, stopping={"max_tokens": 9})
        ids = inference_pb2.GenerateRequest(session="sessions/s", prompt={"tokens": {"ids": range(20)}})
        decode = inference_pb2.DecodeRequest(session="sessions/s", sampling={"seed": 1})
        for asked, state, start in ((text, dict(read=20, made=0, blocks=[(20, 20)]), 120), (text, dict(read=20, made=0), 120),
                                    (text, dict(read=16, made=3), 116), (ids, dict(read=20, made=5, tokens=[1, 2]), 120),
                                    (decode, dict(read=0, made=0), 100), (decode, dict(read=0, made=4, tokens=[1]), 100)):
            with self.subTest(asked=asked, **state):
                rest = self.next_request(asked, **state)
                self.assertIsInstance(rest, inference_pb2.DecodeRequest)
                self.assertEqual((rest.resume_from, rest.expected_generation), (start, 4))
                self.assertEqual((rest.sampling, rest.stopping), (asked.sampling, asked.stopping))
        swapped = self.next_request(text, read=20, made=1, blocks=[(20, 20)], generation=6)
        self.assertEqual((swapped.resume_from, swapped.expected_generation), (120, 6), "a change of policy is no reason to stop")
        again = self.next_request(text, read=0, made=0)
        self.assertEqual((again.prompt.text, again.expected_generation), ("t", 4))
        self.assertEqual(list(self.next_request(ids, read=16, made=0, blocks=[(8, 20)]).prompt.tokens.ids), [16, 17, 18, 19])
        prefill = inference_pb2.PrefillRequest(session="sessions/s", prompt={"text": "t"})
        self.assertIsNone(self.next_request(prefill, read=20, made=0))

    def test_what_cannot_go_on_says_why(self):
        text = inference_pb2.GenerateRequest(session="sessions/s", prompt={"text": "t"}, stopping={"logprobs": 1})
        decode = inference_pb2.DecodeRequest(session="sessions/s")
        for asked, state, says in ((text, dict(read=16, made=0), "which are missing"), (text, dict(read=20, made=1), "log-probabilities"),
                                   (text, dict(read=20, made=1, blocks=[(8, 16)]), "changed by others"),
                                   (text, dict(read=20, made=1, generation=5), "changed by others"),
                                   (decode, dict(read=0, made=1, tokens=[1, 2]), "changed by others"),
                                   (decode, dict(read=2, made=1), "changed by others")):
            with self.subTest(says), self.assertRaisesRegex(ebb.NotResumable, says):
                self.next_request(asked, **state)

    def test_a_stream_that_ends_before_its_first_message_may_have_done_something(self):
        text = inference_pb2.GenerateRequest(session="sessions/s", prompt={"text": "t"})
        session = session_pb2.Session(name="sessions/s", generation=1, block_size=8)
        steps = flow.resuming(progress.Progress(text), ebb.Retry(), ebb.Retry())
        self.assertEqual(next(steps).method, "GetSession")
        opened = steps.send(session)
        self.assertEqual((opened.method, opened.request.expected_generation), ("Generate", 1))
        self.assertEqual(steps.send(None), flow.Read())
        self.assertEqual(steps.throw(failed("RESOURCE_EXHAUSTED", "SLOW_READER")), flow.Wait(0.1, disconnected=False))
        self.assertEqual(steps.send(None).method, "GetSession")
        busy = session_pb2.Session(name="sessions/s", generation=2, state=session_pb2.SESSION_STATE_BUSY)
        self.assertEqual(steps.send(busy), flow.Wait(0.2, disconnected=False))
        self.assertEqual(steps.send(None).method, "GetSession")
        opened = steps.send(session_pb2.Session(name="sessions/s", generation=2, tokens=5, prompt_tokens=3, block_size=8))
        self.assertEqual((opened.method, opened.request.resume_from), ("Decode", 3))

    def test_a_break_behind_the_last_message_is_the_end(self):
        session = session_pb2.Session(name="sessions/s", generation=1, block_size=8)
        for asked, last in ((inference_pb2.DecodeRequest(session="sessions/s"), inference_pb2.DecodeResponse(tokens=[1], finish_reason="FINISH_REASON_STOP")),
                            (inference_pb2.PrefillRequest(session="sessions/s", prompt={"text": "t"}), inference_pb2.PrefillResponse(tokens_done=8, tokens_total=8))):
            with self.subTest(type(asked).__name__):
                steps = flow.resuming(progress.Progress(asked), ebb.Retry(), ebb.Retry())
                next(steps)
                steps.send(session)
                steps.send(None)
                self.assertEqual(steps.send(last), flow.Give(last))
                self.assertEqual(steps.send(None), flow.Read())
                with self.assertRaises(StopIteration):
                    steps.throw(failed("UNAVAILABLE"))

    def test_a_session_that_another_call_writes_to_is_refused_at_once(self):
        steps = flow.resuming(progress.Progress(inference_pb2.DecodeRequest(session="sessions/s")), ebb.Retry(), ebb.Retry())
        next(steps)
        steps.send(session_pb2.Session(name="sessions/s", generation=1))
        steps.send(None)
        with self.assertRaisesRegex(ebb.Error, "SESSION_BUSY"):
            steps.throw(failed("ABORTED", "SESSION_BUSY"))

    def test_other_tokens_than_before_are_found_out(self):
        going = progress.Progress(inference_pb2.DecodeRequest(session="sessions/s"))
        before = session_pb2.Session(tokens=10, generation=1)
        going.begin(before)
        going.take(inference_pb2.DecodeResponse(tokens=[1, 2], text="ab"))
        going.after_break(failed("UNAVAILABLE"), session_pb2.Session(tokens=13, generation=2))
        self.assertIsNone(going.take(inference_pb2.DecodeResponse(tokens=[1], text="a")))
        new = going.take(inference_pb2.DecodeResponse(tokens=[2, 3], text="bc"))
        self.assertEqual((list(new.tokens), new.text, going.text), ([3], "c", "abc"))
        self.assertEqual(going.take(inference_pb2.DecodeResponse(evicted_tokens=2)).evicted_tokens, 2)
        going.after_break(failed("UNAVAILABLE"), session_pb2.Session(tokens=13, generation=3))
        with self.assertRaisesRegex(ebb.NotResumable, "other tokens"):
            going.take(inference_pb2.DecodeResponse(tokens=[1, 9], text="ax"))

    def test_details_that_cannot_be_read_are_left_out(self):
        failure = mock.Mock(code=lambda: grpc.StatusCode.UNAVAILABLE, details=lambda: "gone",
                            trailing_metadata=lambda: (("grpc-status-details-bin", b"\xff\xff"),))
        error = errors.from_rpc(failure)
        self.assertEqual((type(error), str(error), error.retry_delay), (ebb.Unavailable, "UNAVAILABLE: gone", None))

    def test_a_call_that_was_sent_away_is_unavailable(self):
        details = (("grpc-status-details-bin", details_pb2.Status(
            details=[{"type_url": "type.googleapis.com/google.rpc.RetryInfo", "value": b""}]).SerializeToString()),)
        for code, message, trailers, kind in (("CANCELLED", "CANCELLED", (), ebb.Unavailable), ("CANCELLED", "CANCEL", (), ebb.Unavailable),
                                              ("CANCELLED", "CANCELLED", details, ebb.Cancelled),
                                              ("CANCELLED", "Locally cancelled by application!", (), ebb.Cancelled),
                                              ("ABORTED", "CANCEL", (), ebb.Aborted)):
            failure = mock.Mock(code=lambda of=code: grpc.StatusCode[of], details=lambda of=message: of,
                                trailing_metadata=lambda of=trailers: of)
            self.assertIs(type(errors.from_rpc(failure)), kind, (code, message))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
