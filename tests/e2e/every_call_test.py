#!/usr/bin/env python3
"""Every method of ebb.v1 against cancel, deadline, a second writer, a stale expected_generation and bad input, on a real server. What there is
to try follows from the services' descriptors: a method without a row here fails the test, and so does a row without its method."""
import contextlib
import importlib
import re
import threading
import unittest
from typing import NamedTuple, Optional

from binaries import ROOT, Server
from patience import connected, eventually
import python_package  # noqa: F401, where ebb comes from

import grpc
from ebb.errors import from_rpc
from ebb.v1 import admin_pb2, inference_pb2, session_pb2
from google.protobuf import message_factory, text_format

# Every file that has a service: one that is added is found, and its methods have no rows yet.
FILES = [importlib.import_module(f"ebb.v1.{path.stem}_pb2") for path in sorted((ROOT / "proto/ebb/v1").glob("*.proto"))
         if re.search(r"^service ", path.read_text(encoding="utf-8"), re.M)]
METHODS = {f"{service.name}/{method.name}": method for file in FILES for service in file.DESCRIPTOR.services_by_name.values()
           for method in service.methods}
PROMPT = list(range(3, 80))
DEADLINES = (-1, 0.0005, 0.001, 0.002, 0.003, 0.005)  # seconds; gRPC rounds up to milliseconds
TIMES = 5


class Row(NamedTuple):
    """`request` is taken; "tale" in it becomes a session, or an experiment, of the test's own. `refused`: but for this reason. `busy`: the reason that it
    is refused for while another call writes to the session; None: it is answered. `bad` is refused for `reason`, naming `field`. `done`: why it
    is refused once it was done."""

    request: str
    bad: Optional[str] = None
    reason: str = ""
    field: str = ""
    busy: Optional[str] = None
    done: Optional[str] = None
    refused: Optional[str] = None


POLICY = "policy { streaming {} trigger { budget: 24 } }"
BUSY = "SESSION_BUSY"
ROWS = {
    "SessionService/CreateSession": Row(f"session_id: 'made' {POLICY}", "session_id: 'A'", "INVALID_NAME", "session_id", done="NAME_TAKEN"),
    "SessionService/GetSession": Row("name: 'sessions/tale'", "name: 'tale'", "INVALID_NAME", "name"),
    "SessionService/ListSessions": Row("page_size: 3", "page_size: 5000", "OUT_OF_RANGE", "page_size"),
    "SessionService/ForkSession": Row("session: 'sessions/tale' session_id: 'branch'", "session: 'sessions/tale' session_id: 'A'",
                                      "INVALID_NAME", "session_id", busy=BUSY, done="NAME_TAKEN"),
    "SessionService/DeleteSession": Row("name: 'sessions/tale'", "name: 'tale'", "INVALID_NAME", "name", done="UNKNOWN_SESSION"),
    "SessionService/SaveSession": Row("session: 'sessions/tale' snapshot_id: 'kept'", "session: 'sessions/tale' snapshot_id: '../x'",
                                      "INVALID_NAME", "snapshot_id", busy=BUSY),
    "SessionService/RestoreSession": Row("snapshot: 'snapshots/kept' session_id: 'back'", "snapshot: '../kept'", "INVALID_NAME", "snapshot",
                                         done="NAME_TAKEN"),
    "SessionService/ListSnapshots": Row("page_size: 3", "page_size: 5000", "OUT_OF_RANGE", "page_size"),
    "SessionService/DeleteSnapshot": Row("name: 'snapshots/kept'", "name: 'kept'", "INVALID_NAME", "name", done="UNKNOWN_SNAPSHOT"),
    "InferenceService/Prefill": Row("session: 'sessions/tale' prompt { text: 'a' }", "session: 'sessions/tale' prompt { tokens { ids: 4000000 } }",
                                    "TOKEN_OUT_OF_RANGE", "prompt.tokens.ids[0]", busy=BUSY),
    "InferenceService/Decode": Row("session: 'sessions/tale' stopping { max_tokens: 2 }",
                                   "session: 'sessions/tale' sampling { temperature: -1 }", "SAMPLING_OUT_OF_RANGE", "sampling.temperature", busy=BUSY),
    "InferenceService/Generate": Row("session: 'sessions/tale' prompt { text: 'a' } stopping { max_tokens: 2 }",
                                     "session: 'sessions/tale' prompt { text: 'a' } sampling { top_p: 2 }", "SAMPLING_OUT_OF_RANGE", "sampling.top_p",
                                     busy=BUSY),
    "InferenceService/Verify": Row("session: 'sessions/tale' draft_tokens: 3", "session: 'sessions/tale' draft_tokens: 4000000",
                                   "TOKEN_OUT_OF_RANGE", "draft_tokens[0]", busy=BUSY),
    "InferenceService/Accept": Row("session: 'sessions/tale'", "session: 'tale'", "INVALID_NAME", "session", busy=BUSY, refused="NO_DRAFT"),
    "InferenceService/Edit": Row("session: 'sessions/tale' spans { start: 1 end: 2 text: 'b' }",
                                 "session: 'sessions/tale' spans { start: 2 end: 1 }", "OUT_OF_RANGE", "spans[0].end", busy=BUSY),
    "InferenceService/Score": Row("target { text: 'abc' }", "", "EMPTY_PROMPT", "target"),
    "InferenceService/Tokenize": Row("prompt { text: 'abc' }", "", "EMPTY_PROMPT", "prompt"),
    "InferenceService/Detokenize": Row("ids: 65", "ids: 4000000", "TOKEN_OUT_OF_RANGE", "ids[0]"),
    "InferenceService/ReportOutcome": Row("session: 'sessions/tale' thumb_up: true", "session: 'tale'", "INVALID_NAME", "session"),
    "EvictionService/SetPolicy": Row(f"session: 'sessions/tale' {POLICY}", "session: 'sessions/tale' policy { h2o {} trigger { budget: 24 slack: 4000000000 } }",
                                     "VALUE_TOO_LARGE", "policy.trigger.slack"),
    "EvictionService/Evict": Row("session: 'sessions/tale' older_than: 10", "session: 'sessions/tale' range { start: 9 end: 3 }", "RANGE_EMPTY",
                                 "range", busy=BUSY),
    "EvictionService/PlanEviction": Row("rows { scores: '\\000\\000\\200\\077\\000\\000\\000\\100\\000\\000\\100\\100' } keep: 1",
                                        "rows { scores: 'abc' } keep: 1", "WRONG_LENGTH", "rows[0].scores"),
    "EvictionService/DescribeCache": Row("session: 'sessions/tale'", "session: 'sessions/tale' layer: 1000", "OUT_OF_RANGE", "layer"),
    "EvictionService/WatchEvictions": Row("session: 'sessions/tale'", "session: 'tale'", "INVALID_NAME", "session"),
    "AdminService/GetStatus": Row(""),
    "AdminService/ListModels": Row(""),
    "AdminService/ListPolicies": Row("", "model: 'no-such'", "UNKNOWN_MODEL", "model"),
    "AdminService/ReloadConfig": Row("", refused="NO_CONFIG_FILE"),
    "AdminService/StartExperiment": Row(
        "experiment { name: 'tale' tenant: 'tale' arms { name: 'a' policy { streaming {} trigger { budget: 24 } } }"
        " arms { name: 'b' policy { h2o {} trigger { budget: 24 } } } }", "experiment { name: 'A' }", "INVALID_NAME", "experiment.name",
        done="EXPERIMENT_EXISTS"),
    "AdminService/StopExperiment": Row("name: 'experiments/tale'", "name: 'tale'", "INVALID_NAME", "name"),
    "AdminService/RampExperiment": Row("name: 'experiments/tale' ramp: 0.5", "name: 'experiments/tale' ramp: 2", "OUT_OF_RANGE", "ramp"),
    "AdminService/GetExperiment": Row("name: 'experiments/tale'", "name: 'tale'", "INVALID_NAME", "name"),
    "AdminService/ListExperiments": Row(""),
    "AdminService/ExportExperiment": Row("name: 'experiments/tale'", "name: 'tale'", "INVALID_NAME", "name"),
    "AdminService/ListTenants": Row("page_size: 3", "page_size: 5000", "OUT_OF_RANGE", "page_size"),
    "AdminService/SetTenant": Row("tenant { name: 'tenants/guest' weight: 2 }", "tenant { name: 'guest' }", "INVALID_NAME", "tenant.name"),
}


def has(name, field):
    return field in METHODS[name].input_type.fields_by_name


def read_to_the_end(stream):
    with contextlib.suppress(grpc.RpcError):
        for _ in stream:
            pass


def session_field(name):
    """The field that names the session it is about; None: it is about none."""
    return next((field for field in ("session", "name") if f"{field}: 'sessions/tale'" in ROWS[name].request), None)


class EveryCall(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--cache.prefix_share=0"))
        cls.sessions = 0
        cls.channel = connected(cls.enterClassContext(grpc.insecure_channel(cls.server.addr)))

    def stub(self, name, raw=False):
        method = METHODS[name]
        shape = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        answer = message_factory.MessageFactory().GetPrototype(method.output_type)
        return shape(f"/{method.containing_service.full_name}/{method.name}",
                     request_serializer=None if raw else lambda message: message.SerializeToString(), response_deserializer=answer.FromString)

    def request(self, name, text, session="tale"):
        made = message_factory.MessageFactory().GetPrototype(METHODS[name].input_type)()
        return text_format.Parse(text.replace("tale", session), made)

    def call(self, name, request, timeout=60, raw=False):
        """(code, the refusal's reason, its field); of a stream that goes on without end, as far as its first message or a second."""
        stub = self.stub(name, raw)
        try:
            if name == "EvictionService/WatchEvictions":
                stream = stub(request, timeout=min(timeout, 0.2))
                for _ in stream:
                    break
                stream.cancel()
            elif METHODS[name].server_streaming:
                for _ in stub(request, timeout=timeout):
                    pass
            else:
                stub(request, timeout=timeout)
        except grpc.RpcError as failure:
            error = from_rpc(failure)
            if name == "EvictionService/WatchEvictions" and timeout > 0.2 and error.code == grpc.StatusCode.DEADLINE_EXCEEDED:
                return grpc.StatusCode.OK, "", ""  # nothing to tell
            return error.code, error.reason, error.field
        return grpc.StatusCode.OK, "", ""

    def do(self, name, text, session="tale"):
        return self.call(name, self.request(name, text, session))

    def prepared(self, name):
        """A session of the method's own, with what its request names beside; its id."""
        type(self).sessions += 1
        session = f"t{self.sessions}-{name.split('/')[1].lower()}"
        self.assertEqual(self.do("SessionService/CreateSession", f"session_id: '{session}' {POLICY} block_size: 8")[0], grpc.StatusCode.OK)
        ids = " ".join(f"ids: {token}" for token in PROMPT)
        self.assertEqual(self.do("InferenceService/Prefill", f"session: 'sessions/tale' prompt {{ tokens {{ {ids} }} }}", session)[0],
                         grpc.StatusCode.OK)
        self.do("SessionService/SaveSession", "session: 'sessions/tale' snapshot_id: 'kept'", session)
        if "experiments/tale" in ROWS[name].request:
            self.do("AdminService/StartExperiment", ROWS["AdminService/StartExperiment"].request, session)
        for other in ("made", "branch", "back"):
            self.do("SessionService/DeleteSession", f"name: 'sessions/{other}'")
        return session

    def seen(self, session):
        """What can be seen of a session, of which only time may have passed."""
        now = self.stub("SessionService/GetSession")(session_pb2.GetSessionRequest(name=f"sessions/{session}"), timeout=60)
        now.ClearField("last_used_time")
        now.ClearField("expire_time")
        return now

    def is_idle(self, session):
        try:
            return self.seen(session).state != session_pb2.SESSION_STATE_BUSY
        except grpc.RpcError as error:
            return error.code() == grpc.StatusCode.NOT_FOUND

    def expect_orderly(self, name, session):
        """After calls that were given up: nobody holds the session, and the call is answered, or was done already."""
        row = ROWS[name]
        eventually(lambda: self.is_idle(session), f"{name}: the session is held")
        _, reason, _ = self.do(name, row.request, session)
        self.assertIn(reason, {"", row.done or "", row.refused or ""}, name)

    def for_each(self, check, where=lambda name: True):
        for name in filter(where, sorted(METHODS)):
            with self.subTest(name):
                check(name, ROWS[name], self.prepared(name))

    def tearDown(self):
        for each in self.stub("SessionService/ListSessions")(session_pb2.ListSessionsRequest(page_size=1000), timeout=60).sessions:
            self.do("SessionService/DeleteSession", f"name: '{each.name}'")
        for each in self.stub("AdminService/ListExperiments")(admin_pb2.ListExperimentsRequest(), timeout=60).experiments:
            self.do("AdminService/StopExperiment", f"name: '{each.name}'")  # a server runs 16
        status = self.stub("AdminService/GetStatus")
        eventually(lambda: status(admin_pb2.GetStatusRequest(), timeout=60).cache.pages_reserved == 0, "pages are left")

    def test_each_method_has_a_row(self):
        self.assertEqual(set(ROWS), set(METHODS))
        for name, row in ROWS.items():
            self.assertEqual(row.bad is None, not METHODS[name].input_type.fields, f"{name}: what has fields can be asked wrongly")
            self.assertTrue(row.busy is None or session_field(name), name)

    def test_what_is_taken(self):
        def check(name, row, session):
            self.assertEqual(self.do(name, row.request, session)[1], row.refused or "")

        self.for_each(check)

    def test_bad_input(self):
        def check(name, row, session):
            before = self.seen(session)
            if row.bad is not None:
                code, reason, field = self.do(name, row.bad, session)
                wrong = grpc.StatusCode.NOT_FOUND if row.reason == "UNKNOWN_MODEL" else grpc.StatusCode.INVALID_ARGUMENT
                self.assertEqual((code, reason, field), (wrong, row.reason, row.field))
            if field := session_field(name):
                code, reason, _ = self.do(name, row.request, "nobody")
                self.assertEqual((code, reason), (grpc.StatusCode.NOT_FOUND, "UNKNOWN_SESSION"), field)
            code, reason, _ = self.call(name, b"\xff\xff\xff\xff", raw=True)
            self.assertIn(code, (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT), "what is no message")
            self.assertEqual(self.seen(session), before)

        self.for_each(check)

    def test_stale_expected_generation(self):
        tied = [name for name in METHODS if has(name, "expected_generation")]
        self.assertGreater(len(tied), 8)
        def check(name, row, session):
            self.assertIsNotNone(session_field(name), "its row names a session")
            before = self.seen(session)
            for stale in (before.generation - 1, before.generation + 1):
                code, reason, _ = self.do(name, f"{row.request} expected_generation: {stale}", session)
                self.assertEqual((code, reason), (grpc.StatusCode.ABORTED, "GENERATION_MISMATCH"))
            self.assertEqual(self.seen(session), before)
            _, reason, _ = self.do(name, f"{row.request} expected_generation: {before.generation}", session)
            self.assertEqual(reason, row.refused or "")

        self.for_each(check, tied.__contains__)

    def test_second_writer(self):
        def check(name, row, session):
            decode = inference_pb2.DecodeRequest(session=f"sessions/{session}")
            decode.stopping.max_tokens = 1 << 20
            decode.stopping.ignore_eos = True
            writer = self.stub("InferenceService/Decode")(decode)
            next(writer)  # and is read no further: it waits for its reader
            code, reason, _ = self.do(name, row.request, session)
            if row.busy:
                self.assertEqual((code, reason), (grpc.StatusCode.ABORTED, row.busy))
            else:
                self.assertEqual(reason, row.refused or "", f"{name} does not write, or waits for its turn")
            writer.cancel()
            self.expect_orderly(name, session)

        self.for_each(check, session_field)

    @contextlib.contextmanager
    def others_at_work(self):
        """Two answers that go on meanwhile, so that calls take the time of a step and not none."""
        streams = []
        for number in range(2):
            self.do("SessionService/CreateSession", f"session_id: 'other{number}' {POLICY} block_size: 8")
            generate = self.request("InferenceService/Generate", f"session: 'sessions/other{number}' prompt {{ text: 'On' }} "
                                    "stopping { max_tokens: 1000000 ignore_eos: true }")
            streams.append(self.stub("InferenceService/Generate")(generate))
        readers = [threading.Thread(target=read_to_the_end, args=(stream,)) for stream in streams]
        for reader in readers:
            reader.start()
        try:
            yield
        finally:
            for stream in streams:
                stream.cancel()
            for reader in readers:
                reader.join()

    def test_cancel(self):
        def check(name, row, session):
            request = self.request(name, row.request, session)
            for number in range(TIMES):
                if METHODS[name].server_streaming:
                    call = self.stub(name)(request)
                    if number and name != "EvictionService/WatchEvictions":
                        next(call, None)
                else:
                    call = self.stub(name).future(request)
                call.cancel()
                if call.code() not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.OK):  # it was answered first
                    self.assertIn(from_rpc(call).reason, {row.done, row.refused} - {None})
                eventually(lambda: self.is_idle(session), f"{name}: the session is held")
            self.expect_orderly(name, session)

        with self.others_at_work():
            self.for_each(check)

    def test_deadline(self):
        def check(name, row, session):
            request = self.request(name, row.request, session)
            for seconds in DEADLINES:
                code, reason, _ = self.call(name, request, timeout=seconds)
                late = code == grpc.StatusCode.DEADLINE_EXCEEDED
                self.assertTrue(late if seconds < 0 else late or reason in ("", "CALL_CANCELLED", row.done, row.refused), (code, reason))
                eventually(lambda: self.is_idle(session), f"{name}: the session is held")
            self.expect_orderly(name, session)

        with self.others_at_work():
            self.for_each(check)


if __name__ == "__main__":
    unittest.main(verbosity=2)
