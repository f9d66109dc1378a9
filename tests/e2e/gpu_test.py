#!/usr/bin/env python3
"""A server whose sessions a GPU computes: what they yield is what the CPU's yield, whatever is done to them, over a kill too. The GPU is the
emulation, loaded as a device's library is, with a model so small that it answers within seconds. Needs numpy."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from binaries import BIN, ROOT, Server
import python_package  # noqa: F401, where ebb comes from

import ebb

MAKE = ROOT / "tests" / "support" / "make_models.py"
PROMPT = "It was a dark and stormy night, and the lamp was in the cellar."
# Rounding of K and V to fewer bits could turn a near tie.
KV = "--kv-dtype=f32"
POLICIES = {"h2o": ("--policy=h2o", "--budget=24"), "tova": ("--policy=tova", "--budget=24"), "full": ("--policy=full",),
            "streaming": ("--policy=streaming", "--budget=24", "--positions=original"), "sage": ("--policy=sage", "--budget=24"),
            "caote": ("--policy=h2o", "--budget=24", "--modifier=caote"), "keydiff": ("--policy=keydiff", "--budget=48")}


def counted(server, what="ebb_gpu_"):
    """{series: value} of the GPU."""
    with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith(what))}


class Rows:
    """Rows of logits that a server's GPU had since this was made, by fate, and its steps."""

    def __init__(self, server):
        self.server, self.before = server, counted(server)

    def __getattr__(self, fate):
        return self.since(f"ebb_gpu_logits_rows_total{{fate=\"{fate}\"}}")

    def since(self, *series):
        return sum(counted(self.server)[name] - self.before[name] for name in series)

    @property
    def steps(self):
        return self.since("ebb_gpu_steps_total{phase=\"decode\"}", "ebb_gpu_steps_total{phase=\"prefill\"}")


class Gpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.model = cls.folder / "tiny.gguf"
        cls.make("tiny-llama", cls.model)
        cls.flags = (f"--model={cls.model}", "--model.worker=emulated", "--model.gpu_kv_type=f32", "--model.gpu_arena=4MiB")
        cls.gpu = cls.enterClassContext(Server(*cls.flags))
        cls.cpu = cls.enterClassContext(Server(f"--model={cls.model}"))

    @staticmethod
    def make(preset, path, *options):
        subprocess.run([sys.executable, "-B", MAKE, "--preset", preset, "--type", "f32", *options, "-o", path], check=True, capture_output=True)

    def tokens(self, server, session, *args):
        """The answer's tokens, as the server counts them in the session's log: text alone hides what is no text."""
        return server.ebb("generate", "--session", session, "--temperature=0", "--max-tokens=12", "--ignore-eos", *args, PROMPT)

    def test_models_of_other_families_yield_what_the_cpu_yields(self):
        for family, names in (("gemma3", ("full", "h2o", "streaming")), ("gptneox", ("h2o",)), ("gpt2", ("tova",)), ("bloom", ("h2o",)), ("qwen3moe", ("h2o", "tova"))):
            with self.subTest(family):
                self.check_family(family, names)

    def check_family(self, family, names):
        model = self.folder / f"{family}.gguf"
        self.make(f"tiny-{family}", model)
        with Server(f"--model={model}", *self.flags[1:]) as gpu, Server(f"--model={model}") as cpu:
            for name in names:
                with self.subTest(name):
                    before = counted(gpu)["ebb_gpu_steps_total{phase=\"decode\"}"]
                    for server in (gpu, cpu):
                        server.ebb("sessions", "create", name, *POLICIES[name], KV)
                    self.assertEqual(self.tokens(gpu, name), self.tokens(cpu, name))
                    self.assertEqual(counted(gpu)["ebb_gpu_steps_total{phase=\"decode\"}"] - before, 12)

    def test_sessions_yield_what_the_cpu_yields_and_it_computes_those_that_it_can(self):
        for name, policy in POLICIES.items():
            with self.subTest(name):
                before = counted(self.gpu)["ebb_gpu_steps_total{phase=\"decode\"}"]
                for server in (self.gpu, self.cpu):
                    server.ebb("sessions", "create", name, *policy, KV)
                self.assertEqual(self.tokens(self.gpu, name), self.tokens(self.cpu, name))
                self.assertEqual(counted(self.gpu)["ebb_gpu_steps_total{phase=\"decode\"}"] - before, 12)
        before = counted(self.gpu)
        for reason, flags in (("policy", ("--policy=scissorhands", "--budget=24", KV)), ("kv_type", ("--policy=h2o", "--budget=24", "--kv-dtype=bf16"))):
            self.gpu.ebb("generate", *flags, "--max-tokens=4", PROMPT)
            before[f"ebb_gpu_sessions_on_cpu_total{{reason=\"{reason}\"}}"] += 1
        self.assertEqual(counted(self.gpu), before, "another scorer and another type of K and V are the CPU's")
        self.assertNotIn("ebb_gpu_up", str(counted(self.cpu)))

    def test_where_a_session_is_computed_is_said_and_why_and_that_the_usual_ones_are_the_cpus(self):
        shown = self.gpu.ebb("sessions", "create", "usual")
        self.assertIn("  on cpu: policy.cache.kv_dtype: bf16, and the GPU computes sessions of f32 (model.gpu_kv_type)", shown)
        self.assertIn("  on cpu: policy.scorer: 'scissorhands'", self.gpu.ebb("sessions", "create", "unknown", "--policy=scissorhands", "--budget=24", KV))
        self.assertIn("  on emulated32:0\n", self.gpu.ebb("sessions", "create", "known", "--policy=h2o", "--budget=24", KV))
        self.assertIn("  on cpu: ", self.gpu.ebb("sessions", "get", "usual"))
        self.assertNotIn("  on cpu", self.cpu.ebb("sessions", "create", "usual"), "there is no other")
        warned = self.logged(self.gpu, "gpu_kv_type")
        self.assertEqual((warned["level"], warned["gpu"], warned["sessions"]), ("warn", "f32", "bf16"))
        self.assertFalse([entry for entry in self.cpu.log if entry.get("event") == "gpu_kv_type"])
        usual = json.dumps({"h2o": {}, "trigger": {"budget": 24}, "cache": {"kv_dtype": "KV_TYPE_F32"}})
        with Server(*self.flags, f"--tenant_defaults.policy={usual}") as server:
            self.assertIn("  on emulated32:0\n", server.ebb("sessions", "create", "usual"))
            self.assertFalse([entry for entry in server.log if entry.get("event") == "gpu_kv_type"])

    def test_what_is_done_to_a_session_is_done_at_home_and_it_goes_back(self):
        for server in (self.gpu, self.cpu):
            server.ebb("sessions", "create", "s", "--policy=h2o", "--budget=32", KV)
        answers = {}
        for server in (self.gpu, self.cpu):
            steps = [self.tokens(server, "s")]
            server.ebb("save", "s", "kept")
            server.ebb("fork", "s", "branch")
            steps.append(self.tokens(server, "s"))
            steps.append(self.tokens(server, "branch"))
            server.ebb("policy", "set", "s", "--policy=tova", "--budget=24", KV)
            steps.append(self.tokens(server, "s"))
            server.ebb("restore", "kept", "again")
            steps.append(self.tokens(server, "again"))
            steps.append(json.loads(server.ebb("cache", "s", "--json"))["session_tokens"])
            answers[server] = steps
        self.assertEqual(answers[self.gpu], answers[self.cpu])
        self.assertEqual(answers[self.gpu][1], answers[self.gpu][2], "a branch goes on as the session does")
        self.assertEqual(answers[self.gpu][1], answers[self.gpu][4], "and so does a copy")
        self.assertGreater(counted(self.gpu)["ebb_gpu_cache_moves_total{direction=\"out\"}"], 0)

    def talk(self, server, name, **always):
        """[tokens] of calls that decide by few of a row's logits, and of calls that need the row, on a session that is branched, saved and drafted for
        in between. `always`: options of every call."""
        said = []
        server.ebb("sessions", "create", name, "--policy=h2o", "--budget=32", KV)
        with ebb.Client(server.addr) as client:
            session = client.session(name)

            def say(of, prompt=None, **options):
                options = {"max_tokens": 3, "ignore_eos": True, **options, **always}
                answer = of.generate(prompt, **options) if prompt else of.decode(**options)
                answer.read()
                self.assertEqual(len(answer.tokens), options["max_tokens"])
                said.append(answer.tokens)

            say(session, PROMPT, temperature=0)
            say(session, temperature=0.9, top_k=6, seed=5)
            say(session, temperature=1.1, top_k=4, seed=6, repetition_penalty=1.3, penalty_window=16)
            say(session, temperature=1, seed=7)
            say(session, temperature=0.3, top_p=0.9, seed=14)
            say(session, temperature=0.3, min_p=0.2, top_p=0.95, seed=15)
            say(session, temperature=0.5, min_p=0.3, seed=16, presence_penalty=0.5)
            say(session, temperature=0.7, typical_p=0.9, seed=17)
            for round_ in range(2):  # of a row that its step left on the GPU, since greedy needs few
                say(session, temperature=0, max_tokens=1)
                say(session, temperature=1, seed=8 + round_, max_tokens=1)
                server.ebb("cache", name)
            session.prefill(" and")
            say(session, temperature=1, seed=10)
            say(session, temperature=0)
            with session.fork(id=f"{name}-branch") as branch:
                say(branch, temperature=1, seed=11)
            session.save(f"{name}-kept")
            say(session, temperature=0.7, top_k=3, seed=12)
            with client.restore(f"{name}-kept", id=f"{name}-again") as again:
                say(again, temperature=0.7, top_k=3, seed=12)
            self.assertEqual(said[-1], said[-2], "a copy goes on as the session did")
            say(session, temperature=0)
            verdict = session.verify(said[-1], temperature=1, seed=13)
            said.append([verdict.accepted, verdict.next.token])
            say(session, temperature=0)
        return said

    def test_tokens_drawn_from_the_largest_logits_are_those_drawn_from_all(self):
        rows = Rows(self.gpu)
        few = self.talk(self.gpu, "few")
        self.assertGreater(rows.kept, 2 * rows.copied)
        self.assertGreater(rows.fetched, 4)
        rows = Rows(self.gpu)
        self.assertEqual(self.talk(self.gpu, "all", logprobs=1), few)
        self.assertGreater(rows.copied, 20)
        self.assertEqual(self.talk(self.cpu, "few"), few)

    def test_a_row_leaves_the_gpu_for_those_alone_who_need_it(self):
        for options, kept in ((("--temperature=0",), True), (("--top-k=8", "--seed=1", "--repetition-penalty=1.1"), True), (("--seed=1",), True),
                              (("--temperature=0.2", "--top-p=0.9", "--seed=1"), True), (("--temperature=0.2", "--min-p=0.1", "--seed=1"), True),
                              (("--typical-p=0.9", "--seed=1"), False)):
            with self.subTest(options):
                rows = Rows(self.gpu)
                self.gpu.ebb("generate", "--policy=h2o", "--budget=24", KV, "--max-tokens=4", "--ignore-eos", *options, PROMPT)
                self.assertGreaterEqual(rows.steps, 4)
                self.assertEqual((rows.kept, rows.copied) if kept else (rows.copied, rows.kept), (rows.steps, 0))
                self.assertEqual(rows.fetched, 0)

    def test_a_shadow_sees_the_whole_row(self):
        with Server(*self.flags, "--quality.shadow_share=1") as server:
            server.ebb("sessions", "create", "s", "--policy=h2o", "--budget=24", KV)
            self.gpu.ebb("sessions", "create", "no-shadow", "--policy=h2o", "--budget=24", KV)
            self.assertEqual(self.tokens(server, "s"), self.tokens(self.gpu, "no-shadow"))
            self.assertGreater(sum(counted(server, "ebb_shadow_tokens_total").values()), 10)
            self.assertGreater(Rows(server).before["ebb_gpu_logits_rows_total{fate=\"copied\"}"], 12)

    def test_a_session_that_is_swapped_takes_its_row_along(self):
        names = [f"swapped-{i}" for i in range(6)]
        with Server(*self.flags, "--cache.arena=1MiB", "--cache.swap_max=64MiB") as server:
            for name in names:
                for of in (server, self.gpu):
                    of.ebb("sessions", "create", name, "--policy=h2o", "--budget=200", KV)
                self.assertEqual(self.tokens(server, name), self.tokens(self.gpu, name))
            for name in names:  # the row of its last token, which greedy decoding left on the GPU
                with ebb.Client(server.addr) as swapping, ebb.Client(self.gpu.addr) as calm:
                    answers = [client.session(name).decode(temperature=1, seed=1, max_tokens=2, ignore_eos=True) for client in (swapping, calm)]
                    for answer in answers:
                        answer.read()
                    self.assertEqual(answers[0].tokens, answers[1].tokens)
            self.assertGreater(counted(server, "ebb_swaps_total")["ebb_swaps_total{direction=\"out\"}"], 3)

    def test_a_killed_server_goes_on_with_the_tokens_of_one_that_was_not(self):
        with tempfile.TemporaryDirectory() as store:
            flags = (*self.flags, f"--store.dir={store}", "--store.durability=step")
            said = []
            for round_ in range(2):
                with Server(*flags) as server:
                    if round_ == 0:
                        server.ebb("sessions", "create", "s", "--policy=h2o", "--budget=24", KV)
                    said.append(self.tokens(server, "s"))
                    os.kill(server.process.pid, signal.SIGKILL)
            with Server(*flags) as calm:
                calm.ebb("sessions", "create", "calm", "--policy=h2o", "--budget=24", KV)
                self.assertEqual([self.tokens(calm, "calm") for _ in said], said)

    def test_who_multiplies_prompts_is_said_and_why(self):
        why = {"auto": "own kernels: there is no library of products for emulated32", "own": "own kernels: model.gpu_products is own"}
        for products, said in why.items():
            with self.subTest(products), Server(*self.flags, f"--model.gpu_products={products}") as server:
                model = json.loads(server.ebb("status", "--json"))["model"]
                self.assertTrue(model["gpu_products"].startswith(said), model)
                self.assertTrue(model["fingerprint"].endswith(" emulated, f32"), "alike, as the bits are")
                self.assertIn(f"prompts by {said}", server.ebb("status"))
                self.assertIn(said, self.logged(server, "gpu_products")["by"])
        self.assertNotIn("prompts by", self.cpu.ebb("status"))

    def test_snapshots_of_other_arithmetic_are_refused(self):
        servers = {"cpu": self.cpu.flags, "f32": self.flags, "bf16": (*self.flags[:2], "--model.gpu_kv_type=bf16", *self.flags[3:])}
        with tempfile.TemporaryDirectory() as store:
            for saves, flags in servers.items():
                with Server(*flags, f"--store.dir={store}") as server:
                    server.ebb("sessions", "create", "s", "--policy=h2o", "--budget=24", KV)
                    server.ebb("generate", "--session=s", "--max-tokens=2", PROMPT)
                    server.ebb("save", "s", f"of-{saves}")
            for restores, flags in servers.items():
                with Server(*flags, f"--store.dir={store}") as server:
                    for saves in servers:
                        with self.subTest(saves=saves, restores=restores):
                            server.ebb("restore", f"of-{saves}", f"at-{restores}-of-{saves}", check=0 if saves == restores else 1)
                            if saves != restores:
                                self.assertIn("SNAPSHOT_FOREIGN", server.stderr)

    @staticmethod
    def logged(server, event):
        return next(entry for entry in server.log if entry.get("event") == event)

    def refusal(self, *flags):
        done = subprocess.run([BIN / "ebbd", "--listen=127.0.0.1:0", *flags], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_what_cannot_be_is_refused_by_name(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.assertIn(f"{empty}/libebb_cuda.so: not loaded",
                      self.refusal(f"--model={self.model}", "--model.worker=cuda", f"--model.gpu_libraries={empty}"))
        narrow = self.folder / "narrow.gguf"
        self.make("tiny-opt", narrow, "--heads", "8")
        self.assertIn("heads of 8 components", self.refusal(f"--model={narrow}", "--model.worker=emulated"))
        self.assertRegex(self.refusal(*self.flags[:3], "--model.gpu_arena=8GiB"), r"the model \([0-9]+ bytes\), the cache's arena \(8589934592\): needs [0-9]+ bytes of the GPU, and [0-9]+ of its [0-9]+ are free")
        self.assertIn("model.gpu_arena: ", self.refusal(*self.flags[:3], "--model.gpu_arena=1KiB"))
        self.assertIn("there is no library of products for emulated32", self.refusal(*self.flags, "--model.gpu_products=library"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
