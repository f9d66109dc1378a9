#!/usr/bin/env python3
"""The command line against a real server: every subcommand, its JSON, its exit codes."""
import datetime
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.request
import zlib

from binaries import BIN, ROOT, Server
from gate import Gate
from patience import eventually


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def decode_png(data):
    """Width, height, and rows of pixels of an 8-bit RGB image, by the five filters of the standard."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n", data[:8]
    chunks, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at:at + 4])
        kind, body = data[at + 4:at + 8], data[at + 8:at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0] == zlib.crc32(kind + body), kind
        chunks[kind] = chunks.get(kind, b"") + body
        at += 12 + size
    width, height, depth, color = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, color) == (8, 2), (depth, color)
    raw, row, rows = zlib.decompress(chunks[b"IDAT"]), bytearray(3 * width), []
    for y in range(height):
        line = raw[y * (3 * width + 1):(y + 1) * (3 * width + 1)]
        above, row = row, bytearray(line[1:])
        for i in range(3 * width):
            a, b, c = (row[i - 3] if i >= 3 else 0), above[i], (above[i - 3] if i >= 3 else 0)
            nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            row[i] = (row[i] + (0, a, b, (a + b) // 2, nearest)[line[0]]) & 255
        rows.append([tuple(row[i:i + 3]) for i in range(0, 3 * width, 3)])
    return width, height, rows


class TerminalChat:
    """An `ebb chat` on a terminal of its own, in a with statement, with further `variables` of its environment."""

    def __init__(self, server, *flags, **variables):
        self.server, self.flags = server, flags
        self.variables = {**{name: value for name, value in os.environ.items() if name != "NO_COLOR"}, "TERM": "vt100", **variables}

    def __enter__(self):
        self.home = tempfile.TemporaryDirectory()
        self.terminal, its = pty.openpty()
        self.process = subprocess.Popen(
            [BIN / "ebb", f"--addr={self.server.addr}", "chat", "--policy=h2o", "--budget=128", *self.flags], stdin=its, stdout=its, stderr=its,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(its, termios.TIOCSCTTY, 0),  # whose Ctrl-C is a signal to it
            env={**self.variables, "XDG_STATE_HOME": self.home.name})
        os.close(its)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        self.home.cleanup()

    def type(self, text):
        os.write(self.terminal, text.encode())

    def read_until(self, wanted):
        seen = ""
        while wanted not in seen:
            assert select.select([self.terminal], [], [], 60)[0], f"{wanted} does not come after {seen}"
            try:
                seen += os.read(self.terminal, 4096).decode()
            except OSError:
                raise AssertionError(f"{wanted!r} does not come after {seen!r}: the chat ended with {self.process.wait(60)}") from None
        return seen

    def exit_code(self):
        """Reads to the end first: restoring a terminal waits until what was written to it is read."""
        while select.select([self.terminal], [], [], 60)[0]:
            try:
                os.read(self.terminal, 4096)
            except OSError:
                break
        return self.process.wait(60)

    def leave(self):
        """Ctrl-D, until it is heeded: libedit shows its prompt just before it takes the terminal's keys as they come, and one that is
        typed in between is lost, or becomes a NUL of the line, which Ctrl-U takes away: Ctrl-D ends nothing but an empty line."""
        end = time.monotonic() + 60
        seen = b""
        keys = "\x04"
        while self.process.poll() is None and time.monotonic() < end:
            self.type(keys)
            keys = "\x15\x04"
            while select.select([self.terminal], [], [], 1)[0]:
                try:
                    seen += os.read(self.terminal, 4096)
                except OSError:
                    return self.process.wait(60)
        assert self.process.poll() is not None, f"Ctrl-D does not end the chat, which answered {seen!r}"
        return self.process.returncode

    def history(self):
        return (pathlib.Path(self.home.name) / "ebb" / "chat_history").read_text()


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.server.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def ebb(self, *args, **options):
        return self.server.ebb(*args, **options)

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.server.http}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def test_health_says_serving(self):
        self.assertEqual(self.ebb("health").strip(), "SERVING")
        self.assertEqual(json.loads(self.ebb("health", "ebb.v1.InferenceService", "--json")), {"status": "SERVING"})

    def test_a_saved_session_goes_on_with_the_same_text(self):
        go_on = ("--max-tokens=40", "--ignore-eos", "--seed=3")
        self.ebb("sessions", "create", "tale", "--policy=h2o", "--budget=96")
        self.ebb("generate", "--session=tale", "It was a dark and stormy night", "--max-tokens=150", "--ignore-eos", "--seed=2")
        saved = json.loads(self.ebb("save", "tale", "chapter", "--json"))
        self.assertEqual(saved["snapshot"]["name"], "snapshots/chapter")
        right = self.ebb("generate", "--session=tale", " and", *go_on)
        self.assertRegex(self.ebb("restore", "chapter", "again"), r"^again: \d+ tokens, 96 of them in the cache$")
        self.assertEqual(self.ebb("generate", "--session=again", " and", *go_on), right)
        self.assertEqual([each["name"] for each in lines(self.ebb("snapshots", "--json"))], ["snapshots/chapter"])
        self.assertRegex(self.ebb("snapshots", "list"), r"^chapter +[\d.]+ [KM]iB  \d{4}-")
        self.ebb("save", "tale", "--expected-generation=1", "--json", check=1)
        self.assertEqual(json.loads(self.server.stderr)["error"]["reason"], "GENERATION_MISMATCH")
        self.assertEqual(self.ebb("snapshots", "delete", "chapter"), "deleted chapter\n")
        self.assertEqual(self.ebb("snapshots"), "no snapshots\n")
        self.ebb("restore", "chapter", "--json", check=1)
        self.assertEqual(json.loads(self.server.stderr)["error"]["reason"], "UNKNOWN_SNAPSHOT")
        self.ebb("sessions", "delete", "tale", "again")

    def test_status_names_the_model(self):
        status = json.loads(self.ebb("status", "--json"))
        self.assertEqual(status["model"]["architecture"], "llama")
        self.assertEqual(status["model"]["context"], 1024)
        self.assertIn("SERVING", self.ebb("status"))

    def test_generate_is_repeatable_with_a_seed(self):
        one = self.ebb("generate", "Once upon a time", "--seed=5", "--max-tokens=32", "--ignore-eos")
        two = self.ebb("generate", "Once upon a time", "--seed=5", "--max-tokens=32", "--ignore-eos")
        other = self.ebb("generate", "Once upon a time", "--seed=6", "--max-tokens=32", "--ignore-eos")
        self.assertEqual(one, two)
        self.assertNotEqual(one, other)
        self.assertIn("32 written", self.server.stderr)

    def test_generate_reads_stdin_and_streams_json(self):
        messages = lines(self.ebb("generate", "--file=-", "--max-tokens=8", "--temperature=0", "--json", "--logprobs=2",
                                  stdin="The old man sat by the"))
        last = messages[-1]["decode"]
        self.assertEqual(last["usage"]["completion_tokens"], 8)
        self.assertEqual(last["finish_reason"], "FINISH_REASON_MAX_TOKENS")
        tokens = sum(len(m["decode"]["tokens"]) for m in messages if "decode" in m)
        self.assertEqual(tokens, 8)
        first = next(m["decode"]["logprobs"][0] for m in messages if m.get("decode", {}).get("logprobs"))
        self.assertEqual(len(first["top"]), 2)

    def test_session_is_created_used_described_evicted_deleted(self):
        self.ebb("sessions", "create", "tour", "--policy=streaming", "--budget=64", "--block-size=32")
        self.ebb("generate", "--session=tour", "It was a dark and stormy night", "--max-tokens=200", "--ignore-eos")
        session = json.loads(self.ebb("sessions", "get", "tour", "--json"))
        self.assertEqual(session["cache_length"], 64)
        self.assertGreater(int(session["evicted_tokens"]), 100)
        self.assertIn("tour", self.ebb("sessions"))
        cache = json.loads(self.ebb("cache", "tour", "--layer=0", "--head=1", "--json"))
        self.assertEqual(cache["lanes"][0]["length"], 64)
        self.assertEqual(cache["lanes"][0]["tokens"][:4], ["0", "1", "2", "3"])  # the sinks
        table = self.ebb("cache", "tour")
        self.assertIn("LAYER", table)
        rows = [line.split("|")[1] for line in table.splitlines() if "|" in line]
        self.assertEqual(len(rows), cache["layers"] * cache["heads"])
        self.assertTrue(all(row[0] != " " and row[-1] == "█" and " " in row for row in rows), "sinks, a gap, the newest")
        plan = json.loads(self.ebb("evict", "tour", "--older-than=32", "--dry-run", "--json"))
        self.assertEqual(plan["length_before"], 64)
        self.assertIn("64 -> 32", self.ebb("evict", "tour", "--older-than=32"))
        self.assertIn("deleted", self.ebb("sessions", "delete", "tour"))
        self.ebb("sessions", "get", "tour", check=1)
        self.assertIn("NOT_FOUND", self.server.stderr)

    def test_fork_opens_a_branch_that_goes_its_own_way(self):
        self.ebb("sessions", "create", "trunk", "--policy=streaming", "--budget=64")
        self.ebb("generate", "--session=trunk", "It was a dark and stormy night", "--max-tokens=40", "--ignore-eos")
        trunk = json.loads(self.ebb("sessions", "get", "trunk", "--json"))
        self.assertRegex(self.ebb("fork", "trunk", "twig"), r"twig .*streaming[^\n]*\n[0-9.]+ [KM]iB of it shared\n")
        self.ebb("generate", "--session=twig", " and then", "--max-tokens=20", "--ignore-eos")
        self.assertEqual(json.loads(self.ebb("sessions", "get", "trunk", "--json"))["tokens"], trunk["tokens"])
        other = json.loads(self.ebb("fork", "trunk", "--policy=h2o", "--budget=48", "--reserve-copies", "--seed=3", "--json"))
        self.assertEqual(other["cache_length"], 48)
        self.assertEqual(other["sampling"]["seed"], "3")
        self.ebb("fork", "trunk", "twig", check=1)
        self.assertIn("NAME_TAKEN", self.server.stderr)
        self.ebb("sessions", "delete", "trunk", "twig", other["name"])

    def test_generate_writes_several_answers(self):
        answers = self.ebb("generate", "Once upon a time", "-n", "3", "--seed=5", "--max-tokens=16", "--ignore-eos")
        self.assertEqual(sorted(re.findall(r"^\[(\d)\] ", answers, re.MULTILINE)), ["0", "1", "2"])
        alone = self.ebb("generate", "Once upon a time", "--seed=5", "--max-tokens=16", "--ignore-eos")
        self.assertIn("[0] " + alone.rstrip("\n"), answers)

    def test_cache_is_drawn_to_a_file_and_by_score(self):
        self.ebb("sessions", "create", "drawn", "--policy=h2o", "--budget=64", "--block-size=32")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "cache.png"
            self.ebb("cache", "drawn", f"--png={path}", check=2)
            self.assertIn("log is empty", self.server.stderr)
            self.ebb("generate", "--session=drawn", "It was a dark and stormy night", "--max-tokens=200", "--ignore-eos")
            cache = json.loads(self.ebb("cache", "drawn", f"--png={path}", "--json"))
            width, height, pixels = decode_png(path.read_bytes())
            tokens, lanes, layers = int(cache["session_tokens"]), len(cache["lanes"]), cache["layers"]
            self.assertEqual((width % tokens, height), (0, 12 * lanes + (lanes - layers) + 4 * (layers - 1)))
            kept = {int(token) for token in cache["lanes"][0]["tokens"]}
            dark, white = (8, 48, 107), (255, 255, 255)
            for token in range(tokens):
                self.assertEqual(pixels[6][token * (width // tokens)], dark if token in kept else white, f"token {token}")
            self.ebb("cache", "drawn", "--png=/nowhere/cache.png", check=2)
            self.assertIn("cannot write '/nowhere/cache.png'", self.server.stderr)
        self.assertIn("KEEP SCORE", self.ebb("cache", "drawn", "--shade=score"))
        self.ebb("cache", "drawn", "--shade=nonsense", check=2)
        self.ebb("sessions", "delete", "drawn")

    def test_policy_is_shown_tried_and_set_on_a_live_session(self):
        self.ebb("sessions", "create", "swap", "--policy=h2o", "--budget=96")
        self.ebb("policy", "try", "swap", check=2)
        self.assertIn("sessions/swap holds no tokens", self.server.stderr)
        self.assertEqual([row["tokens"] for row in lines(self.ebb("policy", "try", "swap", "--policies=tova", "--budget=60", "--json"))], [0])
        self.ebb("generate", "--session=swap", "It was a dark and stormy night", "--max-tokens=150", "--ignore-eos")
        self.assertIn("h2o, budget 96", self.ebb("policy", "show", "swap"))
        words = "streaming,h2o,h2o+caote,nacl,knorm:keep=long:recent=8,calibrated@pyramid:beta=4,tova@duo"
        tried = {row["policy"]: row for row in lines(self.ebb("policy", "try", "swap", f"--policies={words}", "--budget=60", "--json"))}
        self.assertEqual(list(tried), words.split(","))
        self.assertEqual(tried["h2o"]["tokens"], 36)
        self.assertEqual(tried["h2o"]["state"], "STATE_ORIGIN_CARRIED")
        self.assertGreater(tried["streaming"]["attention_mass"], 0)
        self.assertLess(tried["h2o"]["pages_after"], tried["h2o"]["pages_before"] + 1)
        self.assertEqual(tried["nacl"]["state"], "STATE_ORIGIN_EMPTY")
        self.assertEqual(tried["tova@duo"]["reason"], "HEAD_GATES_MISSING")
        self.assertIn("ebb-lab heads", tried["tova@duo"]["message"])
        self.assertIn("-  FAILED_PRECONDITION HEAD_GATES_MISSING: policy.duo: ", self.ebb("policy", "try", "swap", "--policies=tova@duo"))
        self.assertIn("h2o, budget 96", self.ebb("policy", "show", "swap"))
        every = self.ebb("policy", "try", "swap")
        for name in ("keydiff", "scissorhands", "STARTS FROM"):
            self.assertIn(name, every)
        for wrong in ("nobody", "h2o+nothing", "h2o:recent=x", "h2o@nowhere", "knorm:keep=sideways"):
            self.ebb("policy", "try", "swap", f"--policies={wrong}", check=2)
            self.assertIn("--p", self.server.stderr)
        change = ("policy", "set", "swap", "--policy=snapkv", "--budget=64", "--param=window=16", "--param=pooling=avg")
        trial = json.loads(self.ebb(*change, "--dry-run", "--json"))
        self.assertIn("h2o", self.ebb("policy", "show", "swap"))
        done = json.loads(self.ebb(*change, "--json"))
        self.assertEqual(trial["slots_evicted"], done["slots_evicted"])
        self.assertEqual(done["length_after"], 64)
        self.assertIn("snapkv window=16 kernel=7 pooling=AVG", self.ebb("policy", "show", "swap"))
        self.assertIn("knorm keep=LONG", self.ebb("policy", "set", "--all", "--policy=knorm", "--param=keep=long", "--budget=80"))
        for wrong in ("x=1", "keep=sideways", "keep"):
            self.ebb("policy", "set", "swap", "--policy=knorm", f"--param={wrong}", check=2)
            self.assertIn("--param", self.server.stderr)
        self.ebb("sessions", "delete", "swap")

    def test_experiment_is_started_ramped_reported_read_and_stopped(self):
        self.assertIn("no experiments", self.ebb("experiment", "list"))
        arms = ("--arm=control=streaming:budget=64", "--arm=h2o=h2o")
        start = ("experiment", "start", "trial", *arms, "--budget=96", "--metric=score", "--units-min=20", "--weights=1,1")
        started = json.loads(self.ebb(*start, "--json"))
        self.assertEqual([arm["policy"]["trigger"]["budget"] for arm in started["spec"]["arms"]], [64, 96])
        self.ebb(*start, check=1)
        self.assertIn("EXPERIMENT_EXISTS", self.server.stderr)
        units, text = 0, "It was a dark and stormy night"
        for user in range(60):
            session = json.loads(self.ebb("sessions", "create", f"of-{user}", f"--end-user=user-{user}", "--json"))
            self.assertEqual(session["experiment"], "experiments/trial")
            if user == 0:
                self.ebb("generate", f"--session=of-{user}", text, "--max-tokens=100", "--ignore-eos")
            score = (0.9 if session["arm"] == "h2o" else 0.3) + user % 7 / 100
            self.assertIn(f"counts for {session['arm']} of experiments/trial", self.ebb("experiment", "report", f"of-{user}", f"--score={score}"))
            units += 1
        self.ebb("sessions", "delete", *(f"of-{user}" for user in range(units)))
        page = self.ebb("experiment", "results", "trial")
        for part in ("running, 100 % of every tenant's units", "h2o is better than control by score.", "sample ratio as it should be", "score *", "|"):
            self.assertIn(part, page)
        results = json.loads(self.ebb("experiment", "results", "trial", "--json"))["results"]
        self.assertEqual(results["decision"], "EXPERIMENT_DECISION_FAVOURS_ARM")
        self.assertEqual(sum(int(arm["units"]) for arm in results["arms"]), units)
        score = next(metric for metric in results["arms"][1]["metrics"] if metric["metric"] == "EXPERIMENT_METRIC_SCORE")
        self.assertLess(score["difference_interval"]["low"], 0.6)
        self.assertGreater(score["difference_interval"]["high"], 0.6)
        self.assertIn("running     25 %", self.ebb("experiment", "ramp", "trial", "0.25"))
        self.assertIn("stopped, 25 %", self.ebb("experiment", "stop", "trial"))
        self.assertIn("control against h2o", self.ebb("experiment", "list"))
        self.assertEqual(json.loads(self.ebb("sessions", "create", "after", "--json"))["arm"], "")
        self.assertIn("in no experiment", self.ebb("experiment", "report", "after", "--up"))
        self.ebb("sessions", "delete", "after")
        self.ebb("experiment", "report", "after", "--down", check=1)
        for wrong in ("control", "control=nobody"):
            self.ebb("experiment", "start", "other", f"--arm={wrong}", check=2)
            self.assertIn("--arm", self.server.stderr)

    def test_experiment_results_of_two_servers_are_added_up(self):
        start = ("experiment", "start", "spread", "--arm=control=streaming:budget=64", "--arm=h2o=h2o:budget=64", "--metric=score", "--units-min=20")
        with Server() as one, Server() as other:
            for server in (one, other):
                server.ebb(*start)
            seen = set()
            for session in range(80):  # twenty users come to both
                user = session if session < 40 else session - 20
                server = (one, other)[session // 40]
                arm = json.loads(server.ebb("sessions", "create", f"s-{session}", f"--end-user=user-{user}", "--json"))["arm"]
                server.ebb("experiment", "report", f"s-{session}", f"--score={(0.9 if arm == 'h2o' else 0.3) + user % 7 / 100:.2f}")
                seen.add(user)
            both = ("experiment", "results", "spread", f"--from={one.addr},{other.addr}")
            page = one.ebb(*both)
            for part in (f"of {one.addr} and {other.addr} together", "running, 100 % of every tenant's units", "h2o is better than control by score."):
                self.assertIn(part, page)
            results = [json.loads(server.ebb(*words, "--json"))["results"] for server, words in ((one, both), (one, both[:3]), (other, both[:3]))]
            units = [sum(int(arm["units"]) for arm in each["arms"]) for each in results]
            self.assertEqual(units, [len(seen), 40, 40])
            self.assertEqual([sum(int(arm["sessions"]) for arm in each["arms"]) for each in results], [80, 40, 40])
            self.assertEqual(json.loads(one.ebb(*both[:3], f"--from={one.addr}", "--json"))["results"]["arms"][0]["units"], results[1]["arms"][0]["units"])

            one.ebb(*both[:3], f"--from={one.addr},{one.addr}", check=2)
            one.ebb("experiment", "results", "none", f"--from={one.addr},{other.addr}", check=1)
            self.assertIn(f"{one.addr}: there is no experiment experiments/none", one.stderr)
            one.ebb("experiment", "start", "odd", "--arm=control=streaming:budget=64", "--arm=h2o=h2o:budget=64", "--of=acme", "--ramp=0.5")
            other.ebb("experiment", "start", "odd", "--arm=control=streaming:budget=64", "--arm=h2o=h2o:budget=80", "--of=acme")
            one.ebb("experiment", "results", "odd", f"--from={one.addr}", f"--from={other.addr}", check=1)
            self.assertIn(f"is another experiment at {other.addr} than at {one.addr}", one.stderr)
            self.assertIn("arms[1].policy.trigger.budget: 64 -> 80", one.stderr)
            self.assertNotIn("ramp:", one.stderr)
            other.ebb("experiment", "stop", "spread")
            one.ebb(*both, check=1)
            self.assertIn(f"experiments/spread has stopped at {other.addr}", one.stderr)
            gone = other.addr
        one_left = ("experiment", "results", "spread", f"--from={gone}")
        self.ebb(*one_left, check=3)
        self.assertIn(gone, self.server.stderr)

    def test_tenant_is_given_settings_that_hold_at_once(self):
        settings = ("--priority=low", "--weight=3", "--calls-max=8", "--cache-max=64MiB", "--policy=h2o:budget=48")
        self.assertIn("tenants/batch has weight 3 and priority low", self.ebb("tenant", "set", "batch", *settings))
        self.assertIn("h2o", self.ebb("--tenant=batch", "sessions", "create", "mine"))
        (row,) = (line for line in self.ebb("tenant", "list").splitlines() if line.startswith("batch"))
        self.assertRegex(row, r"^batch +3 +low +1 +0/8 +0 .*/64\.0 MiB +h2o.* \(not configured\)$")
        self.ebb("--tenant=batch", "sessions", "delete", "mine")
        (batch,) = (tenant for tenant in lines(self.ebb("tenant", "list", "--json")) if tenant["name"] == "tenants/batch")
        self.assertEqual((batch["weight"], batch["calls_max"], batch["cache_max"]), (3, 8, str(64 << 20)))
        self.ebb("tenant", "set", "batch", "--weight=0", check=1)
        self.assertIn("tenant.weight: 0 is not in [1, 1000]", self.server.stderr)
        self.ebb("tenant", "set", "batch", "--priority=urgent", check=2)

    def test_evictions_tells_what_leaves_until_it_has_told_enough(self):
        self.ebb("sessions", "create", "watched", "--policy=h2o", "--budget=96")
        watch = [BIN / "ebb", "--addr", self.server.addr, "evictions", "--session=watched"]
        with subprocess.Popen([*watch, "--count=20", "--victims", "--json"], stdout=subprocess.PIPE, text=True) as watching, \
                subprocess.Popen([*watch, "--count=20"], stdout=subprocess.PIPE, text=True) as reading:
            while 'ebb_watchers{tenant="default"} 2' not in self.metrics():
                continue
            self.ebb("generate", "--session=watched", "It was a dark and stormy night", "--max-tokens=150", "--ignore-eos")
            told, shown = lines(watching.communicate()[0]), reading.communicate()[0].splitlines()
        self.assertEqual((watching.returncode, reading.returncode), (0, 0))
        self.assertEqual(len(told), 20)
        for event in told:
            self.assertEqual(event["eviction"]["session"], "sessions/watched")
            self.assertEqual(event["eviction"]["cause"], "EVICTION_CAUSE_DECODE")
            self.assertEqual(len(event["eviction"]["victims"][0]["tokens"]), 1)
        self.assertEqual(len(shown), 20)
        self.assertRegex(shown[0], r"sessions/watched  h2o  decode +97 tokens  97 -> 96 per lane, \d+ slots  0\.\d{4} of the attention")
        self.ebb("evictions", "--session=nobody", check=1)
        self.ebb("evictions", "--every=0", check=1)
        self.ebb("sessions", "delete", "watched")

    def test_edit_says_what_it_computed_and_what_holds(self):
        self.ebb("sessions", "create", "edited", "--policy=full", "--budget=300")
        self.ebb("generate", "--session=edited", "It was a dark and stormy night", "--max-tokens=8", "--ignore-eos")
        answer = json.loads(self.ebb("edit", "edited", "2", "4", " a bright", "--json"))
        self.assertEqual((answer["exactness"], answer["tokens_removed"], answer["tokens_stale"]), ("EDIT_EXACTNESS_EXACT", 2, 0))
        self.assertEqual(answer["tokens_recomputed"] + answer["tokens_reused"], answer["usage"]["cache_length"])
        self.assertRegex(self.ebb("edit", "edited", "3", "3", "--tokens=70,71", "--mode=reposition"),
                         r"^3 tokens computed anew, \d+ reused of which \d+ are stale, \d+\.\d ms: stale\n$")
        self.ebb("edit", "edited", "9", "10", "--exact", check=1)
        self.ebb("edit", "edited", "5", "4", "x", check=1)
        self.ebb("edit", "edited", "2", "3", "--expected-generation=1", check=1)
        self.ebb("edit", "edited", "2", "3", "--mode=sideways", check=2)
        self.assertRegex(self.ebb("edit", "edited", "2", "3", "--restore", "--exact"), ": exact\n$")
        self.ebb("sessions", "delete", "edited")

    def test_watch_keeps_a_session_in_step_with_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file, put = pathlib.Path(folder) / "night.txt", pathlib.Path(folder) / "night.txt~"
            file.write_text("It was a dark and stormy night. The rain fell in torrents.")
            flags = ["--session=followed", "--policy=full", "--budget=400", "--count=3", "--json"]
            with subprocess.Popen([BIN / "ebb", "--addr", self.server.addr, "watch", str(file), *flags], stdout=subprocess.PIPE, text=True) as watch:
                read = json.loads(watch.stdout.readline())
                self.assertEqual(read["tokens_done"], read["tokens_total"])
                file.write_text("It was a bright and stormy night. The rain fell in streams.")  # two places
                spread = json.loads(watch.stdout.readline())
                put.write_text("It was a bright and stormy night. The rain fell in streams. And then")  # as editors do
                put.rename(file)
                appended = json.loads(watch.stdout.readline())
            self.assertEqual(watch.returncode, 0)
            self.assertEqual({spread["exactness"], appended["exactness"]}, {"EDIT_EXACTNESS_EXACT"})
            self.assertGreater(spread["tokens_recomputed"], appended["tokens_recomputed"])
            self.ebb("sessions", "create", "fresh", "--policy=full", "--budget=400")
            goes_on = [self.ebb("generate", f"--session={name}", text, "--max-tokens=12", "--temperature=0", "-q")
                       for name, text in (("followed", " it"), ("fresh", file.read_text() + " it"))]
            self.assertEqual(*goes_on)
            file.write_text("It was.")  # the session is found again, and a save is one edit of what it holds now
            shown = self.ebb("watch", str(file), "--session=followed", "--count=1", "--mode=reposition")
            self.assertRegex(shown, r"^\d\d:\d\d:\d\d  \d spans?, -\d+ \+\d+ tokens: \d+ tokens computed anew, \d+ reused of which \d+ are stale")
            self.ebb("watch", str(put), check=2)
            self.ebb("sessions", "delete", "followed", "fresh")

    def test_policy_list_has_a_line_for_each_part_and_a_page_for_one(self):
        parts = json.loads(self.ebb("policy", "list", "--json"))
        table = self.ebb("policy", "list")
        for kind in ("scorers", "modifiers", "allocations"):
            for part in parts[kind]:
                self.assertIn(f"\n{part['name']} ", table)
                self.assertEqual(json.loads(self.ebb("policy", "list", part["name"], "--json")), part)
                page = self.ebb("policy", "list", part["name"])
                self.assertIn(part["equation"].splitlines()[0], page)
                self.assertIn(part["paper"], page)
        self.assertIn("arXiv:2306.14048", self.ebb("policy", "list", "h2o"))
        self.assertIn("--param window=32, in [1, 512]:", self.ebb("policy", "list", "snapkv"))
        self.assertIn("  --param seed=0, in [0, 9007199254740992]:", self.ebb("policy", "list", "random"))
        self.assertIn("  --allocation-param recent=256, in [1, 16777216]:", self.ebb("policy", "list", "duo"))
        self.ebb("policy", "list", "nope", check=2)
        self.assertIn("nope: no policy of this name", self.server.stderr)

    def test_chat_answers_shows_stats_and_changes_policy(self):
        out = self.ebb("chat", "--policy=h2o", "--budget=256", "--temperature=0", "--max-tokens=24",
                       stdin="The passkey of Clara is 90557. What is the passkey of Clara?\n/stats\n/policy streaming 128\n/policy\n/nonsense\n/quit\n")
        self.assertIn("90557", out)
        self.assertIn("h2o, budget 256", out)
        self.assertIn("streaming, budget 128", out)
        self.assertIn("no such command", out)
        self.assertEqual(self.ebb("sessions").strip(), "no sessions")

    def test_demo_speaks_json(self):
        cases = ROOT / "models" / "ebb-tiny.cases.json"
        story, full, streaming, h2o, server = lines(self.ebb("demo", "--json", "--dialogues=1", f"--cases={cases}"))
        self.assertEqual((story["story"]["cache_length"], story["story"]["position"] > 700), (256, True))
        self.assertEqual([row["policy"] for row in (full, streaming, h2o)], ["full", "streaming", "h2o"])
        self.assertEqual([row["right_first"] for row in (full, streaming, h2o)], [1, 1, 1])
        self.assertEqual([row["right_again"] for row in (full, streaming, h2o)], [1, 0, 1])
        self.assertEqual((full["evicted_tokens"], streaming["cache_length"], h2o["cache_length"]), (0, 512, 512))
        self.assertGreater(server["resident_bytes"], 0)

    def test_chat_speaks_json(self):
        out = self.ebb("chat", "--json", "--policy=h2o", "--budget=256", "--max-tokens=4", check=2,
                       stdin="Hello\n/stats\n/policy\n/policy streaming 128\n/policy nonsense\n/help\n/reset\n/nonsense\n/quit\n")
        objects = lines(out)  # and nothing but objects
        self.assertEqual(objects[0]["prefill"]["sequence"], "0")
        stats, policy, change, told, fresh = objects[-5:]
        self.assertGreater(int(stats["tokens"]), 0)
        self.assertEqual(policy["trigger"]["budget"], 256)
        self.assertIn("streaming", change["policy"])
        self.assertIn("/reset", told["help"])
        self.assertEqual(fresh["tokens"], "0")
        errors = [error["error"] for error in lines(self.server.stderr)]
        self.assertEqual([error["reason"] for error in errors], ["USAGE", "USAGE"])
        self.assertIn("no such policy: nonsense", errors[0]["message"])
        self.assertIn("no such command: /nonsense", errors[1]["message"])

    def test_ctrl_c_at_the_prompt_drops_the_line_and_ctrl_d_leaves_nothing_behind(self):
        with TerminalChat(self.server) as chat:
            chat.read_until("> ")
            chat.type("never sent\x03")
            chat.read_until("> ")
            time.sleep(1.5)  # the alarm that helps a Ctrl-C through must not end the next read
            chat.type("/stats\n")
            self.assertIn(": 0 tokens seen", chat.read_until("RIGINAL\r\n> "))
            self.assertEqual(chat.leave(), 0)
            self.assertEqual(self.ebb("sessions").strip(), "no sessions")
            self.assertIn("/stats", chat.history())
            self.assertNotIn("never", chat.history())

    def test_a_terminal_gets_styles_unless_no_color_is_set(self):
        for variables, greeting in (({}, "\x1b[2mh2o, budget 128"), ({"NO_COLOR": "1"}, "h2o, budget 128")):
            with self.subTest(variables), TerminalChat(self.server, **variables) as chat:
                said = chat.read_until("> ").partition("(/help for commands)")[0]
                self.assertTrue(said.startswith(greeting), repr(said))
                self.assertEqual("\x1b" in said, "\x1b" in greeting, repr(said))
                self.assertEqual(chat.leave(), 0)

    def test_ctrl_c_cancels_the_answer_and_the_chat_goes_on(self):
        with TerminalChat(self.server, "--max-tokens=1000000", "--ignore-eos") as chat:
            chat.read_until("> ")
            chat.type("Tell me everything.\n")
            chat.read_until("tok/s")  # the prompt's progress; what was typed may be echoed twice
            chat.type("\x03")
            chat.read_until("(cancelled)\x1b[0m\r\n> ")
            chat.type("/stats\n")
            self.assertIn(" tokens seen", chat.read_until("RIGINAL\r\n> "))
            self.assertIn("h2o, budget 128", self.ebb("sessions"))
            self.assertEqual(chat.leave(), 0)

    def test_a_chat_that_is_told_to_end_in_mid_answer_cancels_it_and_ends(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number), TerminalChat(self.server, "--max-tokens=1000000", "--ignore-eos") as chat:
                chat.read_until("> ")
                chat.type("Tell me everything.\n")
                chat.read_until("tok/s")
                chat.process.send_signal(number)
                chat.read_until("(cancelled)")
                self.assertEqual(chat.exit_code(), 130)
                self.assertEqual(self.ebb("sessions").strip(), "no sessions")
                self.assertIn("everything", chat.history())

    def test_a_chat_that_is_told_to_end_deletes_its_session_and_keeps_its_lines(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number), TerminalChat(self.server) as chat:
                chat.read_until("> ")
                chat.type("/policy\n")
                chat.read_until("RIGINAL\r\n> ")
                chat.process.send_signal(number)
                self.assertEqual(chat.exit_code(), 130)
                self.assertEqual(self.ebb("sessions").strip(), "no sessions")
                self.assertIn("/policy", chat.history())

    def twice(self, process):
        """Ctrl-C, and once more where the first has not ended it."""
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        self.assertIsNone(process.poll(), "one was enough")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(10), 130)
        process.stdin.close()
        process.stdout.close()

    def start(self, address, *words):
        return subprocess.Popen([BIN / "ebb", f"--addr={address}", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def test_a_second_ctrl_c_ends_an_answer_whose_reader_waits(self):
        def waiting():
            return struct.unpack("i", fcntl.ioctl(generate.stdout, termios.FIONREAD, b"\0" * 4))[0]

        def is_full():
            before = waiting()
            time.sleep(2)
            return before > 1000 and waiting() == before

        generate = self.start(self.server.addr, "generate", "x", "--max-tokens=1000000", "--ignore-eos")
        fcntl.fcntl(generate.stdout, fcntl.F_SETPIPE_SZ, 4096)
        eventually(is_full, "the pipe does not fill")
        self.twice(generate)

    def test_a_second_ctrl_c_ends_a_chat_whose_server_is_silent(self):
        with Gate(self.server.addr) as gate:
            chat = self.start(gate.addr, "chat")
            chat.stdin.write(b"/stats\n")
            chat.stdin.flush()
            self.assertIn(b"0 tokens seen", chat.stdout.readline())
            gate.silent, gate.cut_after = True, 0
            chat.stdin.write(b"/stats\n")
            chat.stdin.flush()
            eventually(lambda: gate.cuts == 1, "nothing was asked")
            self.twice(chat)
        for session in lines(self.ebb("sessions", "--json")):
            self.ebb("sessions", "delete", session["name"])

    def test_a_chat_without_a_terminal_ends_at_ctrl_c_and_deletes_its_session(self):
        chat = subprocess.Popen([BIN / "ebb", f"--addr={self.server.addr}", "chat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        chat.stdin.write("/stats\n")
        chat.stdin.flush()
        self.assertIn("0 tokens seen", chat.stdout.readline())
        chat.send_signal(signal.SIGINT)
        self.assertEqual(chat.wait(60), 130)
        chat.communicate()
        self.assertEqual(self.ebb("sessions").strip(), "no sessions")

    def test_a_server_that_falls_silent_is_found_out(self):
        answer = ("generate", "It was a dark and stormy night", "--max-tokens=768", "--ignore-eos", "--temperature=0")
        whole = self.ebb(*answer)
        for flags, code in (((), 3), ((f"--follow={self.server.addr}", "--session=silent"), 0)):
            with self.subTest(flags), Gate(self.server.addr) as gate:
                self.ebb("sessions", "create", "silent")
                gate.silent, gate.cut_after = True, len(whole.encode()) // 2
                done = subprocess.run([BIN / "ebb", f"--addr={gate.addr}", "--keepalive=1s", *answer, *flags], capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, gate.cuts, done.stdout == whole), (code, 1, code == 0), done.stderr)
                self.assertTrue(whole.startswith(done.stdout.rstrip("\n")))
                self.ebb("sessions", "delete", "silent")
        for wrong in ("soon", "0s"):
            self.ebb("status", f"--keepalive={wrong}", check=2)

    def test_refusal_names_reason_and_field(self):
        self.ebb("generate", "x", "--policy=h2o", "--budget=1", "--recent=1", "--json", check=1)
        error = json.loads(self.server.stderr)["error"]
        self.assertEqual(error["reason"], "BUDGET_TOO_SMALL")
        self.assertEqual(error["field"], "policy.trigger.budget")

    def test_a_dry_run_says_what_would_be_deleted(self):
        for name in ("first", "second"):
            self.ebb("sessions", "create", name, "--policy=h2o", "--budget=96")
            self.ebb("save", name)
        would = self.ebb("sessions", "delete", "first", "second", "--dry-run")
        self.assertRegex(would, r"^would delete first, 0 tokens, [\d.]+ KiB given back\nwould delete second, .*\n$")
        self.assertEqual([each["name"] for each in lines(self.ebb("sessions", "delete", "first", "--dry-run", "--json"))], ["sessions/first"])
        self.assertRegex(self.ebb("snapshots", "delete", "first", "second", "--dry-run"), r"^would delete first +[\d.]+ KiB .*\nwould delete second .*\n$")
        self.ebb("snapshots", "delete", "first", "third", "--dry-run", check=1)
        self.assertIn("there is no snapshots/third", self.server.stderr)
        self.ebb("sessions", "delete", "third", "--dry-run", check=1)
        self.assertIn("UNKNOWN_SESSION", self.server.stderr)
        self.assertEqual(len(lines(self.ebb("snapshots", "--json"))), 2)
        would = re.findall(r", ([\d.]+ KiB) given back", would)
        self.assertEqual(re.findall(r", ([\d.]+ KiB) given back", self.ebb("sessions", "delete", "first", "second")), would)
        self.ebb("snapshots", "delete", "first", "second")

    def test_session_lives_as_long_as_its_ttl_says(self):
        session = json.loads(self.ebb("sessions", "create", "brief", "--ttl=1h30m", "--json"))
        used, expires = (datetime.datetime.fromisoformat(session[key]) for key in ("last_used_time", "expire_time"))
        self.assertEqual(expires - used, datetime.timedelta(hours=1, minutes=30))
        self.ebb("sessions", "delete", "brief")
        self.ebb("sessions", "create", "--ttl=10ms", check=1)
        self.assertIn("OUT_OF_RANGE", self.server.stderr)
        for wrong in ("soon", "90", "inf"):
            self.ebb("sessions", "create", f"--ttl={wrong}", check=2)
            self.assertIn("is not a time such as 90s", self.server.stderr)

    def test_every_help_has_examples_of_its_own_with_flags_that_there_are(self):
        helps = {}

        def read(*verb):
            helps[verb] = text = self.ebb(*verb, "--help")
            listed = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.MULTILINE)
            for name in re.findall(r"^  ([a-z][a-z-]*)", listed[1], re.MULTILINE) if listed else ():
                read(*verb, name)
        read()
        self.assertIn(("experiment", "results"), helps)
        flags = {verb: set(re.findall(r"^ +(?:-\w,)?(--[\w-]+)", text, re.MULTILINE)) for verb, text in helps.items()}
        for verb, text in helps.items():
            examples = re.findall(r"^  ebb (.*)$", text.partition("\nExample")[2], re.MULTILINE)
            self.assertTrue(examples, verb)
            for example in examples:
                with self.subTest(example):
                    words = shlex.split(example)
                    called = tuple(words[2:] if words[0] == "--addr" else words)
                    of = max((each for each in helps if called[:len(each)] == each), key=len)
                    self.assertEqual(of[:len(verb)], verb, "it shows another verb")
                    self.assertLessEqual({word for word in words if word.startswith("--")}, flags[of] | flags[()])

    def test_unknown_command_is_named_beside_the_known_ones(self):
        for line, known in ((("nosuch",), "generate, chat, sessions"), (("sessions", "nosuch"), "create, get, delete")):
            with self.subTest(line):
                self.ebb(*line, check=2)
                self.assertIn(f"there is no command 'nosuch'; use {known}", self.server.stderr)
        lab = subprocess.run([BIN / "ebb-lab", "nosuch"], capture_output=True, text=True)
        self.assertEqual((lab.returncode, lab.stderr), (2, "ebb-lab: there is no command 'nosuch', see --help\n"))

    def test_missing_command_is_answered_with_those_there_are(self):
        for line, known in (((), "generate, chat, sessions"), (("policy",), "list, show, set"), (("experiment",), "start, ramp, stop")):
            with self.subTest(line):
                self.ebb(*line, check=2)
                self.assertIn(f"a command is missing; use {known}", self.server.stderr)

    def test_address_without_a_port_is_refused_and_not_asked_at_another(self):
        for address in ("localhost", "127.0.0.1", "[::1]"):
            with self.subTest(address):
                done = subprocess.run([BIN / "ebb", f"--addr={address}", "status"], capture_output=True, text=True)
                self.assertEqual(done.returncode, 2)
                self.assertIn(f"--addr: '{address}' has no port; say {address}:7700", done.stderr)

    def test_wrong_usage_is_an_object_where_json_is_asked_for(self):
        for line in (("nosuch", "--json"), ("generate", "--json"), ("generate", "x", "--budget", "--json"), ("--json", "evict"),
                     ("generate", "--file=/nowhere", "--json")):
            with self.subTest(line):
                self.ebb(*line, check=2)
                error = json.loads(self.server.stderr)["error"]
                self.assertEqual((error["code"], error["reason"]), ("INVALID_ARGUMENT", "USAGE"))
                self.assertTrue(error["message"])

    def test_wrong_usage_and_no_server_have_their_own_exit_codes(self):
        self.ebb("generate", check=2)
        self.ebb("nonsense", check=2)
        nobody = subprocess.run([BIN / "ebb", "--addr=127.0.0.1:1", "status"], capture_output=True, text=True)
        self.assertEqual(nobody.returncode, 3)
        self.assertIn("no server answers", nobody.stderr)

    def test_http_port_serves_metrics_and_health(self):
        def get(path):
            with urllib.request.urlopen(f"http://{self.server.http}{path}", timeout=10) as answer:
                return answer.read().decode()
        self.ebb("generate", "x", "--max-tokens=2")
        self.assertIn("ebb_completion_tokens_total", get("/metrics"))
        get("/healthz")
        get("/readyz")


class Process(unittest.TestCase):
    def test_terminate_drains_and_exits_zero(self):
        with Server() as server:
            server.ebb("generate", "x", "--max-tokens=4")
        self.assertEqual(server.process.returncode, 0)

    def test_a_server_that_is_told_to_end_leaves_its_sessions_to_the_next(self):
        write = ("generate", "--session=tale", "--max-tokens=40", "--ignore-eos", "--seed=3", " and")
        with tempfile.TemporaryDirectory() as store:
            flags = (f"--store.dir={store}", "--store.durability=drain")
            with Server(*flags) as server:
                server.ebb("sessions", "create", "tale", "--policy=snapkv", "--budget=96", "--param=window=16")
                server.ebb("generate", "--session=tale", "It was a dark and stormy night", "--max-tokens=150", "--ignore-eos", "--seed=2")
                server.ebb("save", "tale")
                before = json.loads(server.ebb("sessions", "get", "tale", "--json"))
                server.ebb("restore", "tale", "twin")
                right = server.ebb(*write[:1], "--session=twin", *write[2:])
            self.assertEqual(server.process.returncode, 0)
            with Server(*flags) as server:
                after = json.loads(server.ebb("sessions", "get", "tale", "--json"))
                self.assertEqual({**after, "last_used_time": ""}, {**before, "last_used_time": ""})
                self.assertEqual(server.ebb(*write), right)
                server.process.kill()
            with Server(*flags) as server:
                self.assertEqual(server.ebb("sessions"), "no sessions\n")

    def test_reload_prints_what_changed_and_refuses_what_needs_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "ebb.yaml"

            def write(text):
                new = file.with_suffix(".new")
                new.write_text(text)
                new.rename(file)

            def sessions(most):
                return f"tenants:\n  acme:\n    sessions_max: {most}\n"

            write(sessions(1))
            with Server(f"--config={file}", "--cache.arena=32MiB", "--server.reload=1h") as server:
                self.assertEqual(server.ebb("reload"), "nothing has changed\n")
                write(sessions(2))
                self.assertEqual(server.ebb("reload"), f"tenants.acme.sessions_max: 1 -> 2\ntaken: {file}\n")
                write("server: {listen: 127.0.0.1:1}\n")  # the flag is stronger: no change of it
                self.assertEqual(server.ebb("reload"), f"tenants.acme.sessions_max: 2 -> 0\ntaken: {file}\n")
                write("cache: {arena: 1GiB}\nstore: {lease: 20s}\n")  # likewise the arena
                server.ebb("reload", check=1)
                self.assertIn("NEEDS_RESTART", server.stderr)
                self.assertIn("store.lease: 10s -> 20s: only a restart can change that", server.stderr)

    def test_bad_start_gives_one_line_and_a_code(self):
        for flags, code in ([["--model=/nowhere.gguf"], 1], [["--nonsense=1"], 2], [["--listen=nonsense"], 2]):
            done = subprocess.run([BIN / "ebbd", *flags], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertTrue(done.stderr.strip(), flags)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
