#!/usr/bin/env python3
"""`ebb bench`: every verb runs, and its answer has the shape it promises; how fast anything is decides nothing here."""
import json
import subprocess
import unittest

from binaries import BIN, MODEL, Server

QUICK = ("--rounds=2", "--read-mib=4", "--threads=2")


def bench(*args, check=0):
    """Runs `ebb bench` and returns what it printed."""
    done = subprocess.run([BIN / "ebb", "bench", *map(str, args)], capture_output=True, text=True, timeout=120)
    assert done.returncode == check, f"ebb bench {args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if check == 0 else done.stderr


class Bench(unittest.TestCase):
    def rows(self, *args):
        """The rows of a verb's JSON, each with machine and command."""
        rows = [json.loads(line) for line in bench(*args, *QUICK, "--json").splitlines()]
        self.assertTrue(rows)
        for row in rows:
            self.assertEqual(row["bench"], args[0])
            self.assertIn(f"ebb bench {args[0]}", row["command"])
            self.assertEqual((row["threads"], row["rounds"], row["seed"]), (2, 2, 1))
            self.assertTrue(row["cpu"])
            self.assertGreaterEqual(row["cores"], 1)
        return rows

    def check_spread(self, value):
        """A median between its quartiles, of something that took time."""
        self.assertEqual(set(value), {"median", "low", "high"})
        self.assertLess(0, value["low"])
        self.assertLessEqual(value["low"], value["median"])
        self.assertLessEqual(value["median"], value["high"])

    def test_ceilings_are_of_one_thread_and_of_all(self):
        rows = {row["ceiling"]: row for row in self.rows("ceilings")}
        self.assertLessEqual({"read_memory", "int8", "bf16", "fma", "clock"}, set(rows))
        self.assertEqual([rows[name]["unit"] for name in ("read_memory", "int8", "clock")], ["B/s", "op/s", "Hz"])
        for row in rows.values():
            self.check_spread(row["one_thread"])
            self.check_spread(row["all_threads"])
            self.assertTrue(row["instruction"])

    def test_decode_is_one_session(self):
        (row,) = self.rows("decode", MODEL, "--slots=32", "--steps=1")
        self.assertEqual((row["sessions"], row["slots"], row["policy"], row["model"]), (1, 32, "streaming", MODEL.name))
        self.assertIn("ebb-tiny", row["engine"])
        for key in ("tokens_per_second", "step_seconds", "roofline_seconds", "share", "read_bytes_per_second"):
            self.check_spread(row[key])

    def test_batch_has_a_row_for_each_number_of_sessions(self):
        rows = self.rows("batch", MODEL, "--sessions=1,3", "--slots=32", "--steps=1", "--policy=h2o")
        self.assertEqual([row["sessions"] for row in rows], [1, 3])
        for row in rows:
            for key in ("tokens_per_second", "step_seconds", "share"):
                self.check_spread(row[key])

    def test_batch_compares_with_a_cache_that_keeps_everything(self):
        rows = self.rows("batch", MODEL, "--sessions=2", "--slots=16", "--steps=1", "--compare=full", "--depths=64,16")
        self.assertEqual([row["depth"] for row in rows], ["16", "64", "mean"])
        self.assertEqual(rows[0]["drift"], 1)
        for row in rows[:2]:
            self.check_spread(row["ratio"])
        low, high = sorted(row["tokens_per_second"] for row in rows[:2])
        self.assertTrue(low <= rows[2]["tokens_per_second"] <= high, rows)

    def test_batch_compares_with_a_cache_in_order(self):
        rows = self.rows("batch", MODEL, "--sessions=2", "--slots=16", "--steps=1", "--compare=shift")
        self.assertEqual([row["depth"] for row in rows], ["16", "mean"])
        self.check_spread(rows[0]["ratio"])
        self.assertIn("--kv-dtype", bench("batch", MODEL, "--slots=16", "--compare=shift", "--kv-dtype=int8", *QUICK, check=2))

    def test_prefill_has_a_row_for_each_length(self):
        rows = self.rows("prefill", MODEL, "--tokens=64,16")
        self.assertEqual([row["tokens"] for row in rows], [64, 16])
        for row in rows:
            for key in ("tokens_per_second", "seconds", "roofline_seconds", "share"):
                self.check_spread(row[key])

    def test_attention_is_measured_in_memory_and_in_cache(self):
        rows = self.rows("attention", "--slots=32,64", "--groups=2", "--kv-dtype=bf16,int8,fp8", "--sessions=1", "--kv-heads=2", "--head-dim=32")
        places = [(32, "memory"), (32, "cache"), (64, "memory")]
        self.assertEqual([(row["kv_dtype"], row["slots"], row["place"]) for row in rows],
                         [(kind, *place) for kind in ("bf16", "int8", "fp8") for place in places])
        for row in rows:
            self.assertEqual(row["group"], 2)
            for key in ("kv_bytes_per_second", "share", "rope_cost", "observed_cost", "scattered_cost"):
                self.check_spread(row[key])

    def test_kv_update_is_measured_against_two_ways_of_keeping_order(self):
        rows = self.rows("kv-update", "--tokens=64", "--heads=2", "--head-dim=16", "--batches=2", "--replaced=1,8", "--kv-dtype=f32")
        self.assertEqual([(row["replaced"], row["victims"]) for row in rows],
                         [(1, "oldest"), (1, "random"), (8, "oldest"), (8, "random")])
        for row in rows:
            for key in ("in_place_seconds", "shift_ratio", "concatenate_ratio", "shift_share"):
                self.check_spread(row[key])
        self.assertIn("--replaced", bench("kv-update", "--tokens=64", "--replaced=61", *QUICK, check=2))

    def test_serve_has_a_row_for_each_load(self):
        with Server() as server:
            out = bench("serve", server.addr, "--clients=2", "--rate=50", "--requests=4", "--prompt-tokens=16", "--max-tokens=8",
                        "--warm-up=1", "--ttft-limit=60000", "--json")
            rows = [json.loads(line) for line in out.splitlines()]
            self.assertEqual([row["load"] for row in rows], ["2 clients", "50/s"])
            for row in rows:
                self.assertEqual((row["answered"], row["failed"], row["max_tokens"]), (4, 0, 8))
                self.assertTrue(0 < row["ttft_p50"] <= row["ttft_p95"] <= row["ttft_p99"])
                self.assertTrue(0 < row["itl_p50"] <= row["itl_p99"])
                self.assertGreater(row["tpot_p50"], 0)
                self.assertGreater(row["tokens_per_second"], 0)
                self.assertGreater(row["goodput"], 0)
            # Nobody keeps a limit of a nanosecond; a prompt that does not fit the policy fails.
            (row,) = (json.loads(line) for line in bench("serve", server.addr, "--clients=1", "--requests=1", "--max-tokens=2",
                                                         "--tpot-limit=0.000001", "--ttft-limit=0.000001", "--json").splitlines())
            self.assertEqual(row["goodput"], 0)
            self.assertIn("budget", bench("serve", server.addr, "--requests=1", "--policy=streaming", "--budget=8", "--sinks=16", check=1))
        self.assertIn("no server answers", bench("serve", server.addr, "--requests=1", check=3))

    def test_verify_has_a_row_for_each_policy_batch_and_draft(self):
        rows = self.rows("verify", MODEL, "--slots=32", "--sessions=1,2", "--tokens=1,4")
        self.assertEqual([(row["policy"], row["sessions"], row["tokens"]) for row in rows],
                         [(policy, sessions, tokens) for policy in ("streaming", "h2o") for sessions in (1, 2) for tokens in (1, 4)])
        for row in rows:
            for key in ("run_seconds", "keep_seconds", "token_seconds", "ratio", "keep_ratio"):
                self.check_spread(row[key])
            if row["tokens"] == 1:
                self.assertEqual((row["ratio"]["low"], row["ratio"]["high"]), (1, 1))

    def test_speculate_drafts_by_lookup_and_by_model_and_says_the_same(self):
        with Server(f"--model.draft={MODEL}") as server:
            out = subprocess.run([BIN / "ebb", "--addr", server.addr, "--json", "status"], capture_output=True, text=True, timeout=60, check=True).stdout
            name = json.loads(out)["model"]["draft_model"]
            for flags in ([], [f"--draft-model={name}", "--draft-tokens=4"]):
                rows = [json.loads(line) for line in bench("speculate", server.addr, "--rounds=2", "--max-tokens=24", "--clients=1,2", *flags,
                                                           "--json").splitlines()]
                self.assertEqual([(row["text"], row["clients"]) for row in rows],
                                 [("repetitive", 1), ("repetitive", 2), ("ordinary", 1), ("ordinary", 2)])
                for row in rows:
                    self.assertEqual((row["rounds"], row["max_tokens"], row["drafts"]), (2, 24, name if flags else "ngram"))
                    for key in ("without_tokens_per_second", "with_tokens_per_second", "ratio"):
                        self.check_spread(row[key])
                    self.assertTrue(0 <= row["accepted_share"] <= 1)
                self.assertGreater(rows[0]["drafted_share"], 0)
                self.assertGreater(rows[0]["accepted_share"], 0)
            self.assertIn("no draft model 'nobody'", bench("speculate", server.addr, "--draft-model=nobody", check=1))
        self.assertIn("no server answers", bench("speculate", server.addr, check=3))

    def test_a_table_states_machine_command_and_rows(self):
        lines = bench("decode", MODEL, "--slots=32", "--steps=1", *QUICK, "--markdown").splitlines()
        self.assertIn("threads 2", lines[0])
        self.assertTrue(lines[2].startswith("    ebb bench decode "), lines[2])
        self.assertTrue(lines[4].startswith("| sessions | tokens/s |"), lines[4])
        self.assertEqual(len(lines), 7)

    def test_what_cannot_be_measured_is_refused(self):
        self.assertIn("use ceilings, decode", bench("speed", check=2))
        self.assertIn("--rounds", bench("ceilings", "--rounds=0", check=2))
        self.assertIn("--depths", bench("batch", MODEL, "--depths=16", check=2))
        self.assertIn("--sessions", bench("batch", MODEL, "--sessions=0", check=2))
        self.assertIn("no scorer named 'best'", bench("decode", MODEL, "--policy=best", check=1))
        self.assertIn("policy.trigger.budget", bench("decode", MODEL, "--policy=h2o:sinks=16", "--slots=8", check=2))
        error = json.loads(bench("decode", "nowhere.gguf", "--json", check=1))["error"]
        self.assertEqual(error["code"], "NOT_FOUND")
        self.assertIn("nowhere.gguf", error["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
