#!/usr/bin/env python3
"""The Python package and its examples against a real server. Needs Debian's python3-grpcio and protoc."""
import asyncio
import importlib.util
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import typing
import unittest
from unittest import mock

from binaries import ROOT, Server
from patience import PATIENCE, eventually
import python_package

import ebb
from ebb import fields
from ebb.v1 import eviction_pb2, inference_pb2, policy_pb2, sampling_pb2, session_pb2


def run_example(name, *arguments, **environment):
    return subprocess.run([sys.executable, ROOT / "client/python/examples" / f"{name}.py", *arguments], capture_output=True, text=True,
                          timeout=120, env={**os.environ, "PYTHONPATH": python_package.FOLDER, **environment})


def files_of(folder):
    """Those of the package, generated ones included."""
    return {str(path.relative_to(folder)) for path in pathlib.Path(folder).glob("ebb/**/*.*") if "__pycache__" not in str(path)}


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server())

    def told(self, name, *arguments):
        done = run_example(name, *arguments, EBB_ADDR=self.server.addr)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.server.ebb("sessions").strip(), "no sessions")
        return done.stdout

    def test_chat_converses_and_tidies_up(self):
        told = self.told("chat", "The passkey of Clara is 90557. What is the passkey of Clara?", "What is the passkey of Clara?")
        self.assertGreaterEqual(told.count("90557"), 3, "the question, and both answers, name the passkey")
        self.assertEqual(told.count("[cache "), 2)

    def test_draft_says_what_the_model_would_say_anyway(self):
        text = "one two three four one two three four one two three four one two three"
        said, rounds = re.fullmatch(r"(.*)\n\[48 tokens in (\d+) rounds\]\n", self.told("draft", text), re.DOTALL).groups()
        plain = self.server.ebb("generate", "--temperature", "0", "--max-tokens", "48", "--ignore-eos", text)
        self.assertEqual(said.strip(), plain.strip())
        self.assertLess(int(rounds), 48, "a draft pays where the model repeats itself")

    def test_compare_shows_who_still_knows(self):
        told = self.told("compare", "streaming")
        self.assertRegex(told, r"full, \d+ tokens: .*90557")
        self.assertRegex(told, r"streaming, 64 tokens: ")
        self.assertEqual(told.count("90557"), 1, "what slid out of the window is not known")

    def test_plan_eviction_beats_a_sliding_window(self):
        if importlib.util.find_spec("numpy") is None:
            self.skipTest("no NumPy")
        told = self.told("plan_eviction")
        self.assertIn("768 evictions", told)
        planned, window = map(float, re.search(r"tokens: (\S+), a sliding window of as many (\S+)", told).groups())
        self.assertGreater(planned, 0)
        self.assertLess(planned, window, "what each head looks for stays")

    def test_chat_says_in_a_line_that_nobody_answers(self):
        done = run_example("chat", EBB_ADDR="127.0.0.1:1")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Achat\.py: UNAVAILABLE: .*\n\Z")

    def test_each_is_under_40_lines(self):
        for path in pathlib.Path(ROOT / "client/python/examples").glob("*.py"):
            self.assertLess(len(path.read_text().splitlines()), 40, path.name)


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server())
        cls.client = cls.enterClassContext(ebb.Client(cls.server.addr))

    def opened(self, *policy, **options):
        return self.enterContext(self.client.create_session(ebb.policy(*(policy or ("full",)), budget=256), **options))

    def test_a_session_lives_as_long_as_its_with_statement(self):
        with self.client.create_session("streaming", id="brief", ttl=60) as session:
            self.assertEqual([each.name for each in self.client.sessions()], ["sessions/brief"])
            with self.client.session("brief") as found:
                self.assertEqual(found.info().policy.WhichOneof("scorer"), "streaming")
            self.assertEqual(session.info().tokens, 0, "one that was only found is left where it is")
        self.assertEqual(self.client.sessions(), [])

    def test_an_answer_gives_text_and_messages(self):
        session, blocks = self.opened(), []
        answer = session.generate("It was a dark and stormy night", temperature=0, max_tokens=12, ignore_eos=True, logprobs=1, block_size=4,
                                  on_block=lambda block: blocks.append((block.tokens_done, block.tokens_total)))
        self.assertEqual(answer.finish_reason, "")
        messages = list(answer.messages())
        total = len(self.client.tokenize("It was a dark and stormy night"))
        self.assertEqual(blocks, [(min(at + 4, total), total) for at in range(0, total, 4)])
        self.assertEqual([entry.token for message in messages for entry in message.logprobs], answer.tokens)
        self.assertEqual("".join(message.text for message in messages), answer.text)
        self.assertEqual((answer.finish_reason, answer.usage.completion_tokens, answer.breaks), ("MAX_TOKENS", 12, 0))
        again = self.client.generate("It was a dark and stormy night", temperature=0, max_tokens=12, ignore_eos=True)
        self.assertEqual("".join(again), answer.text, "a throw-away session says the same")

    def test_a_prompt_is_text_or_a_chat_or_tokens(self):
        ids = self.client.tokenize("Where is the lamp?")
        self.assertEqual(self.client.detokenize(ids).strip(), "Where is the lamp?")
        turns = [ebb.system("Be brief."), ebb.user("Where is the lamp?"), ebb.assistant("Here."), ebb.user("Where?")]
        for prompt, length in (("Where is the lamp?", len(ids)), (ids, len(ids)), (turns, len(self.client.tokenize(turns)))):
            session = self.opened()
            self.assertEqual(session.prefill(prompt).usage.session_tokens, length)
        self.assertEqual(len(self.client.score("lamp", "Where is the").tokens), len(self.client.tokenize("lamp", omit_begin=True)))

    def test_an_answer_that_is_left_leaves_the_session_to_the_next(self):
        session = self.opened("streaming")
        with session.generate("It was", max_tokens=1 << 20, ignore_eos=True) as answer:
            next(iter(answer))
        eventually(lambda: session.info().state != session_pb2.SESSION_STATE_BUSY, "the call that was left goes on")
        self.assertGreaterEqual(session.info().tokens, len(answer.tokens))
        after = session.decode(max_tokens=3, ignore_eos=True)
        after.read()
        self.assertEqual(len(after.tokens), 3)

    def test_drafts_branches_edits_policies_evictions_and_snapshots(self):
        session = self.opened()
        session.prefill("one two three four one two three four one two three")
        right = session.fork().decode(temperature=0, max_tokens=5, ignore_eos=True)
        right.read()
        with session.fork() as branch:
            seen = branch.verify(right.tokens[:4], temperature=0)
            self.assertEqual((seen.accepted, seen.next.token), (4, right.tokens[4]))
            waits = branch.verify([5, 6], mode="manual")
            self.assertEqual((waits.pending, branch.accept(0).usage.completion_tokens), (2, 0))
            edited = branch.edit((1, 2, " nine"), (4, 4, [5, 6]), (6, 7, None), mode="reposition")
            self.assertEqual(edited.exactness, inference_pb2.EDIT_EXACTNESS_STALE)
            before = branch.info().cache_length
            self.assertEqual(branch.evict(older_than=4, dry_run=True).length_after, 4)
            self.assertEqual(branch.evict(range=(0, 2)).length_after, before - 2)
            slots = {(lane.layer, lane.head): lane.slots[:1] for lane in branch.describe().lanes}
            self.assertEqual(branch.evict(slots=slots, list_victims=True).length_after, before - 3)
            self.assertEqual(branch.evict(keep=6, scorer="tova").length_after, 6)
            change = branch.set_policy(ebb.policy("h2o", budget=4))
            self.assertEqual((change.length_before, change.length_after), (6, 4))
            self.assertEqual([lane.length for lane in branch.describe(layer=0, head=0).lanes], [4])
            self.assertEqual(branch.save("kept").name, "snapshots/kept")
            with self.client.restore("kept") as again:
                self.assertEqual(again.decode(seed=3, max_tokens=9).read(), branch.decode(seed=3, max_tokens=9).read())
            self.assertEqual([each.name for each in self.client.snapshots()], ["snapshots/kept"])
            self.client.delete_snapshot("kept")
        for change in self.client.set_policy_of_all("tova", dry_run=True):
            self.assertFalse(change.HasField("refusal"))

    def test_a_watch_tells_what_leaves(self):
        session, told = self.opened(), []
        session.prefill("one two three four five six seven eight")
        with session.watch_evictions(list_victims=True) as watch:
            reader = threading.Thread(target=lambda: told.append(next(watch)), daemon=True)
            reader.start()
            end = time.monotonic() + PATIENCE
            while reader.is_alive():  # until the watch is in force, nothing is told
                self.assertLess(time.monotonic(), end, "the watch tells nothing")
                session.decode(max_tokens=1, ignore_eos=True).read()
                session.evict(range=(session.info().tokens - 1, session.info().tokens))
        self.assertEqual(told[0].eviction.cause, eviction_pb2.EVICTION_CAUSE_EVICT)
        self.assertEqual(len(told[0].eviction.victims[0].tokens), 1)

    def test_plans_take_arrays_or_bytes(self):
        class Array:  # what of a NumPy array is used
            def astype(self, kind):
                return mock.Mock(tobytes=lambda: {"<f4": bytes(16), "<i4": b"".join(i.to_bytes(4, "little") for i in (3, 0, 1, 2))}[kind])

        rows = [{"scores": Array(), "tokens": Array()}, {"scores": bytes(16), "evict": 2}]
        self.assertEqual([list(row.victims) for row in self.client.plan_eviction(rows, evict=1)], [[1], [0, 1]])

    def test_status_and_policies(self):
        self.assertEqual(self.client.status().version, re.search(r'version = "(.*)"', (ROOT / "client/python/pyproject.toml").read_text())[1])
        self.assertIn("h2o", [scorer.name for scorer in self.client.policies().scorers])

    def test_a_tenant_sees_its_own(self):
        with ebb.Client(self.server.addr, tenant="acme") as acme, acme.create_session():
            self.assertEqual([each.tenant for each in acme.sessions()], ["acme"])
            self.assertEqual(self.client.sessions(), [])

    def test_refusals_have_a_class_a_reason_and_a_field(self):
        session = self.opened(id="taken")
        for kind, code, reason, field, call in (
                (ebb.InvalidArgument, "INVALID_ARGUMENT", "BUDGET_TOO_SMALL", "policy.trigger.budget",
                 lambda: self.client.create_session(ebb.policy("h2o", budget=4, sinks=8))),
                (ebb.NotFound, "NOT_FOUND", "UNKNOWN_SESSION", "", lambda: self.client.session("nowhere").info()),
                (ebb.AlreadyExists, "ALREADY_EXISTS", "NAME_TAKEN", None, lambda: self.client.create_session(id="taken")),
                (ebb.FailedPrecondition, "FAILED_PRECONDITION", "EMPTY_SESSION", "", lambda: session.decode().read()),
                (ebb.ResourceExhausted, "RESOURCE_EXHAUSTED", "LENGTH_LIMIT", "", lambda: session.prefill([1] * 300)),
                (ebb.Aborted, "ABORTED", "GENERATION_MISMATCH", None, lambda: session.prefill("x", expected_generation=9))):
            with self.subTest(reason), self.assertRaises(kind) as raised:
                call()
            error = raised.exception
            self.assertIsInstance(error, ebb.Error)
            self.assertEqual((error.code.name, error.reason), (code, reason))
            self.assertTrue(str(error).startswith(f"{code} {reason}: "), str(error))
            if field is not None:
                self.assertEqual(error.field, field)
            if reason == "LENGTH_LIMIT":
                self.assertEqual(error.metadata["limit"], "256")

    def test_what_means_nothing_is_refused_before_it_is_sent(self):
        session = self.client.session("nowhere")
        for kind, says, call in ((TypeError, "no 'warmth'", lambda: session.generate("x", warmth=1)),
                                 (ValueError, "fork the session", lambda: session.generate("x", n=2)),
                                 (TypeError, "a policy of h2o has no 'window'", lambda: ebb.policy("h2o", window=3)),
                                 (ValueError, "no scorer 'best'; there are full", lambda: ebb.policy("best")),
                                 (ValueError, "there are none, caote, fast_caote", lambda: ebb.policy("h2o", modifier="cute"))):
            with self.subTest(says), self.assertRaisesRegex(kind, says):
                call()

    def test_a_stream_whose_reader_was_cancelled_does_not_seem_to_have_ended(self):
        async def use():
            async with ebb.aio.Client(self.server.addr) as client:
                watch = client.watch_evictions()
                task = asyncio.ensure_future(watch.__anext__())
                await asyncio.sleep(0)  # it waits for a message now
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                with self.assertRaisesRegex(ebb.Cancelled, "interrupted"):
                    await watch.__anext__()

        asyncio.run(use())

    def test_asyncio_has_the_same(self):
        async def use():
            async with ebb.aio.Client(self.server.addr) as client, await client.create_session(ebb.policy("full", budget=256)) as session:
                await session.prefill("one two three four one two three four")
                async with await session.fork() as branch:
                    answer = branch.decode(temperature=0, max_tokens=6, ignore_eos=True)
                    text = "".join([piece async for piece in answer])
                    self.assertEqual((text, len(answer.tokens)), (answer.text, 6))
                    await branch.edit((0, 1, " nine"))
                    self.assertEqual((await branch.evict(keep=6, scorer="tova")).length_after, 6)
                    self.assertEqual((await branch.set_policy("tova")).length_after, 6)
                seen = await session.verify(answer.tokens[:5], temperature=0)
                self.assertEqual((seen.accepted, seen.next.token), (5, answer.tokens[5]))
                with self.assertRaises(ebb.NotFound) as raised:
                    await client.session(branch.name).info()
                self.assertEqual(raised.exception.reason, "UNKNOWN_SESSION")
                answers = [session_of.generate("It was", temperature=0, max_tokens=8, ignore_eos=True).read()
                           for session_of in [await session.fork() for _ in range(4)]]
                self.assertEqual(len(set(await asyncio.gather(*answers))), 1)
                return [each.name for each in await client.sessions()], session.name

        names, name = asyncio.run(use())
        self.assertIn(name, names)
        for each in self.client.sessions():
            self.client.session(each.name).delete()


class Package(unittest.TestCase):
    def test_typed_options_are_fields_of_the_protocol(self):
        def of(*messages):
            return {field.name for message in messages for field in message.DESCRIPTOR.fields}

        sampling = (sampling_pb2.Sampling, sampling_pb2.Stopping, sampling_pb2.Speculation)
        policy = (policy_pb2.PolicySpec, policy_pb2.Trigger, policy_pb2.Protection, policy_pb2.Schedule, policy_pb2.CacheFormat)
        for options, known in ((fields.Options, of(*sampling)), (fields.PolicyOptions, of(*policy) | {"allocation"}),
                               (fields.GenerateOptions, of(*sampling, inference_pb2.GenerateRequest)),
                               (fields.DecodeOptions, of(*sampling, inference_pb2.DecodeRequest)),
                               (fields.PrefillOptions, of(inference_pb2.PrefillRequest)),
                               (fields.VerifyOptions, of(*sampling, inference_pb2.VerifyRequest)),
                               (fields.EditOptions, of(inference_pb2.EditRequest)),
                               (fields.EvictOptions, of(eviction_pb2.EvictRequest)),
                               (fields.PlanOptions, of(eviction_pb2.PlanEvictionRequest)),
                               (fields.SessionOptions, of(session_pb2.CreateSessionRequest)),
                               (fields.ForkOptions, of(session_pb2.ForkSessionRequest))):
            self.assertLessEqual(set(typing.get_type_hints(options)), known, options.__name__)

    def test_both_clients_have_the_same_methods(self):
        for name in ("Client", "Session", "Answer", "Stream"):
            one, other = getattr(ebb.client, name), getattr(ebb.aio, name)
            public = {method for method in vars(one) if not method.startswith("_")}
            self.assertEqual(public, {method for method in vars(other) if not method.startswith("_")}, name)
            for method in public | {"__init__"}:
                self.assertEqual(inspect.signature(getattr(one, method)).parameters, inspect.signature(getattr(other, method)).parameters,
                                 f"{name}.{method}")

    def test_is_installed_by_pip_without_the_network(self):
        for module in ("pip", "setuptools", "wheel"):
            if importlib.util.find_spec(module) is None:
                self.skipTest(f"{sys.executable} has no {module}")
        with tempfile.TemporaryDirectory() as folder:
            for part in ("client/python", "proto"):  # pip leaves its own beside the sources
                shutil.copytree(ROOT / part, f"{folder}/clone/{part}")
            done = subprocess.run([sys.executable, "-m", "pip", "--isolated", "install", "--no-index", "--no-build-isolation", "--no-deps", "--no-compile",
                                   "--disable-pip-version-check", "--target", f"{folder}/there", f"{folder}/clone/client/python"],
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(files_of(f"{folder}/there"), files_of(python_package.FOLDER))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
