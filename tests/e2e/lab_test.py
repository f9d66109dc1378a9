#!/usr/bin/env python3
"""The laboratory's long commands are resumable: killed anywhere, they go on and say what they would have said at once."""
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import tempfile
import unittest

from binaries import BIN, MODEL, ROOT

TEXT = ROOT / "models/text/persuasion.txt"
PROMPTS, PROMPT, WINDOWS, WINDOW = 3, 160, 2, 96  # of the cut cases file
GRID = ["--policies=full,streaming,h2o", "--budgets=48"]

# command: what it measures, then a second value for each flag that decides numbers and is not in the names of what is measured.
COMMANDS = {
    "ppl": ([TEXT, *GRID, "--window=96", "--windows=2", "--block=16"],
            {"--window": 64, "--windows": 1, "--block": 8, "--seed": 1, "--positions": "compacted", "--kv-dtype": "f16", "--rope-cache": "rk"}),
    "agree": ([TEXT, *GRID, "--window=96", "--windows=2", "--block=16"],
              {"--window": 64, "--windows": 1, "--block": 8, "--seed": 1, "--positions": "compacted", "--kv-dtype": "int8", "--rope-cache": "rk"}),
    "passkey": ([TEXT, *GRID, "--depths=0,0.25,1", "--length=256", "--prompts=2", "--distractors=1"],
                {"--length": 300, "--prompts": 1, "--distractors": 0, "--protocol": "prefill", "--seed": 1}),
    "recall": (["CASES", *GRID, "--prompts=2"], {"--prompts": 1, "--seed": 1}),
    "outerr": (["CASES", "--policies=h2o,h2o+caote,tova", "--budgets=48", "--block=8"], {"--block": 4, "--seed": 1, "--on": "h2o"}),
    "outerr --on": (["CASES", "--policies=h2o,h2o+caote", "--budgets=48,64", "--block=8", "--on=h2o", "--every=2"],
                    {"--block": 4, "--on": "h2o+caote", "--every": 1, "--seed": 1}),
    "lazy": (["CASES", "--policies=streaming,h2o", "--budgets=48", "--overflows=1,8", "--slacks=0", "--max-drops=0,4", "--prompts=1", "--block=16"],
             {"--protocol": "stream", "--prompts": 2, "--block": 8, "--seed": 1, "--positions": "original", "--kv-dtype": "bf16",
              "--rope-cache": "rk"}),
    "cases": (["CARD", "--outcomes=OUTCOMES", "--policies=full,longkey,random", "--budgets=128", "--tasks=prefill,again,text"],
              {"--prompts": 1, "--seed": 1}),
    "compare": (["CASES", *GRID, "--prompts=2", "--csv=OUT.csv", "--markdown=OUT.md", "--svg=OUT.svg"], {"--prompts": 1, "--seed": 1}),
}
# Flags whose values are in the names of what is measured, so that a file goes on with other ones, and flags that decide no number.
IN_NAMES = {"--policies", "--budgets", "--tasks", "--depths", "--overflows", "--slacks", "--max-drops"}
INERT = {"--help", "--threads", "--csv", "--markdown", "--svg", "--outcomes", "--rows", "--resume", "--pack-cache"}
OF_ALL = {"--isa": "scalar", "--accuracy": "fast", "--calibration": "/nosuch"}


class Resumes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.record = cls.folder / "record.jsonl"
        cases = json.loads((ROOT / "models/ebb-tiny.cases.json").read_text())
        cut = {name: cases[name][:PROMPTS] for name in ("passkey", "again")}
        cut["windows"] = [window[:WINDOW] for window in cases["windows"][:WINDOWS]]
        (cls.folder / "CARD").write_text(json.dumps(cut))
        for prompt in cut["passkey"] + cut["again"]:
            prompt["prompt"] = prompt["prompt"][-PROMPT:]
        (cls.folder / "CASES").write_text(json.dumps(cut))
        outcomes = json.loads((ROOT / "models/ebb-tiny.outcomes.json").read_text())
        (cls.folder / "OUTCOMES").write_text(json.dumps([{**row, "right": row["right"][:PROMPTS]} for row in outcomes]))
        cls.measured = {}

    def start(self, command, words, *flags, killed_at=None):
        """The run's exit status, output and errors. `killed_at`: the kernel kills it where its files grow beyond so many bytes."""
        def limit():
            if killed_at is not None:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (killed_at, killed_at))
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        return subprocess.run([BIN / "ebb-lab", command.split()[0], MODEL, *words, *flags], cwd=self.folder, preexec_fn=limit, capture_output=True,
                              text=True, timeout=120)

    def whole(self, command, words, *flags):
        """What a run says and writes that nothing interrupts, its files named OUT included."""
        done = self.start(command, words, *flags)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [done.stdout, *(path.read_bytes() for path in sorted(self.folder.glob("OUT.*")))]

    def recorded(self, command):
        """What the command of the table says and writes, and the whole of its record, which is there again."""
        if command not in self.measured:
            self.record.unlink(missing_ok=True)
            said = self.whole(command, COMMANDS[command][0], f"--resume={self.record}")
            self.measured[command] = said, self.record.read_bytes()
        self.record.write_bytes(self.measured[command][1])
        return self.measured[command]

    def test_every_command_goes_on_from_wherever_it_was_killed(self):
        resume = f"--resume={self.record}"
        for command, (words, _) in COMMANDS.items():
            with self.subTest(command):
                said, record = self.recorded(command)
                self.assertEqual(self.whole(command, words), said, "without a record")
                # Killed in the middle of the first line, before, in and after others, and near the end, each from where the last one was.
                ends = [match.end() for match in re.finditer(b"\n", record)]
                cuts = sorted({10, ends[0], ends[0] + 1, ends[1] - 1, (ends[0] + len(record)) // 2, ends[-2] + 5, len(record) - 1})
                self.record.unlink()
                for cut in cuts:
                    self.assertEqual(self.start(command, words, resume, killed_at=cut).returncode, -signal.SIGXFSZ)
                    self.assertEqual(self.record.read_bytes(), record[:cut], "what was there stays, and what comes is the same")
                for rest in ("goes on", "is whole"):
                    self.assertEqual(self.whole(command, words, resume), said, rest)
                    self.assertEqual(self.record.read_bytes(), record, rest)

    def test_what_the_record_knows_is_not_measured_again(self):
        for command, (words, _) in COMMANDS.items():
            with self.subTest(command):
                said, record = self.recorded(command)
                first, *lines = record.decode().splitlines()
                other = []
                for line in map(json.loads, lines):
                    known = line["is"]
                    if isinstance(known, str):
                        line["is"] = known.translate(str.maketrans("01", "10"))
                    else:
                        known.update(loss=2 * known["loss"] + 1, divergence=2 * known["divergence"] + 1, lost={"mass": 9.0, "error": 9.0})
                    other.append(json.dumps(line))
                self.record.write_text("\n".join([first, *other, ""]))
                done = self.start(command, words, f"--resume={self.record}")
                self.assertEqual(done.stderr, "")
                self.assertNotEqual(done.stdout, said[0])

    def test_a_grid_may_grow(self):
        said, record = self.recorded("recall")
        self.record.write_bytes(b"".join(line for line in record.splitlines(keepends=True) if b"h2o" not in line))
        self.assertEqual(self.whole("recall", COMMANDS["recall"][0], f"--resume={self.record}"), said)
        self.assertEqual(sorted(self.record.read_bytes().splitlines()), sorted(record.splitlines()))

    def test_the_record_of_another_run_is_refused_with_what_differs(self):
        for command, (words, others) in COMMANDS.items():
            _, record = self.recorded(command)
            for flag, value in {**others, **OF_ALL}.items():
                with self.subTest(f"{command} {flag}"):
                    without = [word for word in words if not str(word).startswith(flag + "=")]
                    refused = self.start(command, without, f"{flag}={value}", f"--resume={self.record}")
                    named = {"--isa": "engine", "--accuracy": "engine"}.get(flag, flag)
                    self.assertEqual((refused.returncode, refused.stdout), (1, ""))
                    self.assertRegex(refused.stderr, rf"record.jsonl is of another run: {named} is [^;]+ there and [^;]+ here\. Name another")
                    self.assertEqual(self.record.read_bytes(), record)
        self.assertRegex(self.start("recall", COMMANDS["recall"][0], f"--resume={self.record}").stderr, "ebb-lab is compare there and recall here")

    def test_a_folder_is_no_file(self):
        for refused in (self.start("recall", [self.folder]), self.start("recall", COMMANDS["recall"][0], f"--resume={self.folder}")):
            self.assertEqual(refused.returncode, 1)
            self.assertRegex(refused.stderr, f"^ebb-lab: .*{self.folder}: cannot be (read|written)$")

    def test_the_record_of_other_files_is_refused(self):
        self.recorded("recall")
        cases = json.loads((self.folder / "CASES").read_text())
        cases["windows"][1].pop()
        (self.folder / "OTHER").write_text(json.dumps(cases))
        refused = self.start("recall", ["OTHER", *COMMANDS["recall"][0][1:]], f"--resume={self.record}")
        self.assertRegex(refused.stderr, "another run: CASES is [0-9a-f]{16} there and [0-9a-f]{16} here")

    def test_each_flag_of_each_command_is_known_here(self):
        for command, (_, others) in COMMANDS.items():
            shown = subprocess.run([BIN / "ebb-lab", command.split()[0], "--help"], capture_output=True, text=True, check=True).stdout
            flags = set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", shown, re.MULTILINE))
            with self.subTest(command):
                self.assertGreater(len(flags), 8)
                self.assertIn("--resume", flags)
                forgotten = flags - IN_NAMES - INERT - others.keys() - OF_ALL.keys()
                self.assertLessEqual(forgotten, {"--every"} if command == "outerr" else set(), "decides it numbers? see COMMANDS")


class SaysWhatAModelTakes(unittest.TestCase):
    def info(self, *flags):
        return subprocess.run([BIN / "ebb-lab", "info", MODEL, *flags], check=True, capture_output=True, text=True, timeout=60).stdout

    def test_people_are_told_too(self):
        plan = json.loads(self.info("--sessions=4", "--budget=256", "--json"))["memory"]
        self.assertEqual(plan["total"], plan["weights"] + plan["caches"] + plan["scratch"])
        self.assertIn("4 sessions of ", self.info("--sessions=4"))
        self.assertNotIn("In memory", self.info())


if __name__ == "__main__":
    os.environ.pop("EBB_ISA", None)
    unittest.main(verbosity=2)
