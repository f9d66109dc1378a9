"""The program that `make gpu-bundle` carries away, run in the emulation: it finds what fails, measures every row of the table of
targets, writes both files, and says plainly where there is no device. No time is looked at."""

import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ["EBB_GPU_CHECK"]
# A number for each thing that PyTorch would be asked for: which numbers does not matter.
PEERS = {name: 1.0 for name in ("copy", "matmul", "sdpa_4096", "sdpa_1024", "sdpa_256", "sdpa_prompt", "gather_cat", "prompt_by_library",
                              "prompt_by_library_last", "prompt_by_library_sums")}
# Of which the last is judged to be too slow.
PROMPTS_BY_LIBRARY = {"prompt_by_library": 1e-3, "prompt_by_library_last": 1.02e-3, "prompt_by_library_sums": 1.2e-3}


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = pathlib.Path(self.folder.name)

    def run_check(self, *arguments):
        return subprocess.run([PROGRAM, "--out", self.out, *arguments], capture_output=True, text=True, timeout=250)

    def report(self):
        return json.loads((self.out / "gpu.json").read_text())

    def test_measures_every_row_and_writes_both_files(self):
        peers = self.out / "peers.json"
        peers.write_text(json.dumps(PEERS))
        done = self.run_check("--kind", "emulated", "--tiny", "--tests", "GpuGreedy.*:GpuRmsNorm.*", "--peers", peers,
                              "--fact", "commit=abc")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = self.report()
        self.assertTrue(report["emulated"])
        self.assertEqual(report["facts"]["commit"], "abc")
        self.assertEqual(report["missing"], [])
        self.assertGreaterEqual(len(report["checks"]), 2)
        self.assertTrue(all(check["passed"] for check in report["checks"]))
        rows = {row["what"]: row for row in report["rows"]}
        for part in ("decode attention, BF16", "decode attention, INT8", "decode attention, FP8", "prompt attention, BF16", "SDPA over contiguous, rotated", "RoPE on the read",
                     "scores and the smallest", "updated in place",
                     "kept", "what the output loses, caote", "what the output loses, fast_caote", "likeness of keys", "the largest,", "the L2 norm",
                     "the union", "chance", "caused by eviction", "decode step", "what leaves each of", "after prompts in blocks of 16, 41 slots", "bounded to", "prompt of", "scores of the last query",
                     "sums over all queries", "products by the maker's library", "rows with BF16 weights", "65 rows with Q8_0 weights", "65 rows with Q4_K weights", "65 rows with Q5_K weights", "found and copied out", "the mass of"):
            self.assertTrue(any(part in what for what in rows), part)
        synchronisations = next(row for what, row in rows.items() if "caused by eviction" in what)
        self.assertEqual(synchronisations["ratio"], 0)  # the one row that is no matter of time
        self.assertTrue(synchronisations["met"])
        page = (self.out / "gpu.md").read_text()
        self.assertIn("Emulated on the host, not run on a device", page)
        for what in rows:
            self.assertIn(f"| {what} |", page)

    def test_what_has_no_peer_is_named(self):
        done = self.run_check("--kind", "emulated", "--tiny", "--tests", "GpuGreedy.*")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        missing = self.report()["missing"]
        self.assertTrue(missing)
        said = ("no PyTorch was found", "neither PyTorch nor cuBLASLt was found", "no result of it is there")
        self.assertTrue(all(any(text in what for text in said) for what in missing), missing)
        # A prompt stands beside the own product then, which is no ceiling, and no target is judged by it.
        prompt = next(row for row in self.report()["rows"] if row["what"] == "prompt of 32, 8B shape, BF16")
        self.assertIn("the own kernel's product", prompt["against"])
        self.assertNotIn("target", prompt)

    # Seconds of a prompt alone, as an older program prints them, are no row: its scores are not beside it.
    def test_a_prompt_of_the_library_without_its_scores_is_named(self):
        peers = self.out / "prompt.json"
        peers.write_text(json.dumps({"prompt_by_library": 1e-3}))
        self.run_check("--kind", "emulated", "--tiny", "--tests", "GpuGreedy.*", "--part", "prompts", "--peers", peers)
        report = self.report()
        self.assertFalse(any("maker's library" in row["what"] for row in report["rows"]))
        self.assertTrue(any("prompts whose products the maker's library makes" in what for what in report["missing"]))

    # Prefill has a ceiling where either library is there; the page says which, and takes the faster where both are.
    def test_the_dense_product_is_of_the_library_that_was_found(self):
        for torch, cublaslt, by, other in ((0, 5e12, "cuBLASLt", "itself"), (4e12, 5e12, "cuBLASLt", "PyTorch's 4.00 TFLOP/s"),
                                           (5e12, 4e12, "PyTorch", "cuBLASLt's 4.00 TFLOP/s")):
            files = []
            for name, rate in (("matmul", torch), ("cublaslt", cublaslt)):
                files.append(self.out / f"{name}.json")
                files[-1].write_text(json.dumps({name: rate, **PROMPTS_BY_LIBRARY} if rate else {}))
            self.run_check("--kind", "emulated", "--tiny", "--tests", "GpuGreedy.*", "--peers", files[0], "--peers", files[1])
            report = self.report()
            rows = {row["what"]: row for row in report["rows"]}
            ceiling = rows[f"ceiling: {by}'s product of 8192^3, BF16"]
            self.assertEqual((ceiling["measured"], ceiling["against"]), ("5.00 TFLOP/s", other))
            prompt = "prompt of 32, 8B shape, BF16"
            for what in ("prompt attention, BF16, 8 rows over 64 slots", prompt, f"{prompt}, products by the maker's library"):
                self.assertEqual(rows[what]["against"], f"{by}'s product of 8192^3 5.00 TFLOP/s")
            by_library = f"{prompt}, products by the maker's library"
            self.assertTrue(rows[by_library]["measured"].startswith("1.00 ms, "), rows)
            page = (self.out / "gpu.md").read_text()
            for scores, measured, ratio, target, met in (("scores of the last query", "1.02 ms", "1.020", "at most 1.03", "yes"),
                                                         ("sums over all queries", "1.20 ms", "1.200", "at most 1.1", "**no**")):
                self.assertEqual(rows[f"{by_library}, {scores}"]["met"], met == "yes")
                self.assertIn(f"| {by_library}, {scores} | {measured} | without 1.00 ms | {ratio} | {target} | {met} |\n", page)
                self.assertIn("target", rows[f"{prompt}, {scores}"])
            self.assertFalse(any("dense" in what for what in report["missing"]), report["missing"])

    def test_what_the_maker_s_library_does_is_a_number_or_a_reason(self):
        for flag, name in (("--dense", "cublaslt"), ("--prompt", "prompt_by_library")):
            done = self.run_check(flag, "--kind", "emulated")
            self.assertEqual(done.returncode, 1)
            self.assertEqual(json.loads(done.stdout).keys(), {f"{name}_why"})
            self.assertIn("there is no library of products for emulated32", done.stdout)
            self.assertEqual(list(self.out.iterdir()), [])
        peers = self.out / "prompt.json"
        peers.write_text(done.stdout)
        self.run_check("--kind", "emulated", "--tiny", "--tests", "GpuGreedy.*", "--peers", peers)
        self.assertIn("there is no library of products for emulated32", str(self.report()["missing"]))

    def test_no_time_left_is_said(self):
        self.run_check("--kind", "emulated", "--tiny", "--tests", "GpuGreedy.*", "--seconds", "0")
        report = self.report()
        self.assertEqual(report["rows"], [])
        self.assertTrue(all("no time was left" in what for what in report["missing"]))

    # Killed in the midst of its checks, it leaves a page that says what is not on it.
    def test_a_page_that_was_cut_off_says_what_it_lacks(self):
        with subprocess.Popen([PROGRAM, "--out", self.out, "--kind", "emulated", "--tiny", "--tests", "GpuGreedy.*:GpuOracle.*"],
                              stdout=subprocess.DEVNULL) as running:
            while not (self.out / "gpu.json").exists() and running.poll() is None:
                time.sleep(0.01)
            running.kill()
        report = self.report()
        self.assertEqual(report["rows"], [])
        self.assertEqual(len(report["missing"]), 12)
        self.assertTrue(all("was ended before it came there" in what for what in report["missing"]))

    def test_a_run_that_checked_nothing_failed(self):
        self.assertEqual(self.run_check("--kind", "emulated", "--tiny", "--seconds", "0", "--tests", "None.*").returncode, 1)

    def test_no_device_is_said_and_is_an_exit_code_of_its_own(self):
        done = self.run_check("--kind", "cuda", "--libraries", self.out)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("no device: ", done.stdout)

    def test_only_the_part_that_is_asked_for_is_measured(self):
        done = self.run_check("--kind", "emulated", "--tiny", "--tests", "GpuGreedy.*", "--part", "selection")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        report = self.report()
        beside = [row["what"] for row in report["rows"] if " kept, " not in row["what"]]
        self.assertEqual(len(beside), len(report["rows"]) - 1)
        self.assertTrue(all("copy on the device" in what or "product of" in what for what in beside), beside)
        self.assertEqual(sum("not asked for" in what for what in report["missing"]), 10)

    def test_a_part_that_there_is_not_is_refused_with_those_that_there_are(self):
        done = self.run_check("--kind", "emulated", "--part", "selction")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'selction' is none of: ceilings, attention, ", done.stderr)

    def test_wrong_arguments_are_refused(self):
        self.assertEqual(self.run_check("--knd", "cuda").returncode, 2)
        self.assertEqual(self.run_check("--kind").returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
