#!/usr/bin/env python3
"""Every alert of deploy/prometheus fires when it should and at no other time, and has a section in docs/how-to/answer-alerts.md.

promtool plays the rules over series that go well, then badly, then well again. At the end of each of the three phases exactly the
alerts that are due fire: none, those of the case, none.
"""
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from reference import reasons  # noqa: E402

RULES = ROOT / "deploy/prometheus/ebb.rules.yaml"
TEXT = RULES.read_text(encoding="utf-8")
ALERTS = re.findall(r"^ +- alert: (\w+)$", TEXT, re.MULTILINE)
GROUPS = re.findall(r"^  - name: (\S+)$", TEXT, re.MULTILINE)  # records first, since alerts read them; promtool's own order is random
WHO = 'job="ebb",instance="ebb-0:7701"'
ALWAYS = ('ebb_refusals_total{tenant="default",reason="DRAINING"}', 'ebb_requests_late_total{tenant="default"}')  # from the start, at zero
# What Prometheus may have of these where some are not scraped, or relabelled away.
LESS = ((), ALWAYS[:1], ALWAYS[1:])


def gauge(values, steps):
    """One value for each phase; None for no sample."""
    return " ".join(" ".join(["_" if value is None else str(value)] * n) for value, n in zip(values, steps))


def counter(rates, steps):
    """What is added at each step of each phase."""
    total, values = 0, []
    for rate, n in zip(rates, steps):
        for _ in range(n):
            total += rate
            values.append(f"{total:.12g}")
    return " ".join(values)


@dataclasses.dataclass
class Case:
    alert: str
    steps: tuple  # of each phase
    gauges: dict = dataclasses.field(default_factory=dict)
    counters: dict = dataclasses.field(default_factory=dict)
    also: tuple = ()  # other alerts that fire with it, rightly
    after: tuple = ()  # those that still do when it has recovered
    minutes: int = 1  # of a step
    beside: tuple = ALWAYS  # see play()

    def test(self):
        series = [(name, gauge(values, self.steps)) for name, values in {"ebb_build_info": (1, 1, 1), **self.gauges}.items()]
        series += [(name, counter(rates, self.steps)) for name, rates in self.counters.items()]
        ends = [sum(self.steps[:phase + 1]) - 1 for phase in range(3)]
        due = ((), (self.alert, *self.also), self.after)
        return play(self.alert, series, [(end * self.minutes, alerts) for end, alerts in zip(ends, due)], self.minutes, self.beside)


def selector(name):
    metric, _, labels = name.partition("{")
    return f"{metric}{{{WHO}{',' + labels if labels else '}'}"


def play(name, series, checks, minutes=1, beside=ALWAYS):
    """A test of promtool; `checks` are (minute, the names of all alerts that fire then). A server that counts calls has those `beside` it, too."""
    if any(metric.startswith("ebb_rpc_handled_total") for metric, _ in series):
        series = [*series, *((metric, f"0x{checks[-1][0] // minutes}") for metric in beside)]
    return {"name": name, "interval": f"{minutes}m",
            "input_series": [{"series": selector(metric), "values": values} for metric, values in series],
            "promql_expr_test": [{"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": f"{minute}m",
                                  "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]}
                                 for minute, alerts in checks]}


CALLS = 'ebb_rpc_handled_total{method="InferenceService/Generate",code="OK"}'
FAULTS = 'ebb_rpc_handled_total{method="InferenceService/Generate",code="INTERNAL"}'
AWAY = 'ebb_rpc_handled_total{method="InferenceService/Generate",code="UNAVAILABLE"}'
OVERDUE = 'ebb_rpc_handled_total{method="InferenceService/Generate",code="DEADLINE_EXCEEDED"}'
FIRST = "ebb_ttft_seconds_count"
IN_TIME = 'ebb_ttft_seconds_bucket{le="2.5"}'
QUIET = (5, 30, 60)

# Reasons of UNAVAILABLE: those that are no error, as the server knows them, and the others that an RPC may have.
LOAD = re.findall(r'"(\w+)"', re.search(r"kLoadReasons\[\] = \{([^}]*)\}", (ROOT / "server/metrics.cc").read_text(encoding="utf-8"))[1])
OF_LOAD = {"NO_PAGES": ("EbbAdmissionRefusing",), "SESSIONS_FULL": ("EbbAdmissionRefusing",), "QUEUE_FULL": ("EbbQueueFull",)}  # alerts that watch them
ERRORS = ("GPU_FAULT", "JOURNAL_FAILED", "NO_MEMORY", "STORE_FAILED", "STORE_FULL")
# STORE_LOST is named by JOURNAL_FAILED, which callers get; HTTP ports have these two, which are no RPCs.
OF_NO_RPC = ("CONSOLE_BUSY", "FRONT_BUSY", "STORE_LOST")

CASES = (
    Case("EbbDown", (5, 5, 20), {"up": (1, 0, 1), "ebb_build_info": (1, None, 1)}),
    Case("EbbAbsent", (5, 30, 20), {"ebb_build_info": (1, None, 1)}),
    Case("EbbErrorBudgetFast", (60, 60, 60), {}, {CALLS: (60, 54, 60), AWAY: (0, 6, 0)}, also=("EbbErrorBudgetSlow",),
         after=("EbbErrorBudgetSlow",)),
    Case("EbbErrorBudgetSlow", (36, 72, 21), {}, {CALLS: (1200, 1194, 1200), AWAY: (0, 6, 0)}, minutes=20),
    Case("EbbTTFTBudgetFast", (60, 60, 60), {}, {FIRST: (60, 60, 60), IN_TIME: (60, 30, 60)}, also=("EbbTTFTBudgetSlow",),
         after=("EbbTTFTBudgetSlow",)),
    Case("EbbTTFTBudgetSlow", (36, 72, 21), {}, {FIRST: (1200, 1200, 1200), IN_TIME: (1200, 1164, 1200)}, minutes=20),
    Case("EbbFaults", (5, 3, 30), {}, {FAULTS: (0, 1, 0)}),
    Case("EbbQueueFull", QUIET, {}, {'ebb_refusals_total{reason="QUEUE_FULL"}': (0, 10, 0)}),
    Case("EbbAdmissionRefusing", QUIET, {}, {'ebb_refusals_total{reason="NO_PAGES"}': (0, 10, 0)}),
    Case("EbbKVReservedHigh", QUIET, {"ebb_kv_pages_limit": (100, 100, 100), 'ebb_kv_pages{state="owned"}': (50, 97, 50),
                                      'ebb_kv_pages{state="free"}': (50, 3, 50)}),
    Case("EbbSwapFailing", (5, 3, 30), {}, {'ebb_swap_failures_total{direction="in"}': (0, 1, 0), 'ebb_swap_failures_total{direction="out"}': (1, 1, 1)}),
    Case("EbbJournalSlow", QUIET, {}, {'ebb_journal_commit_seconds_bucket{le="0.5"}': (60, 50, 60), 'ebb_journal_commit_seconds_bucket{le="1"}': (60, 60, 60),
                                       'ebb_journal_commit_seconds_bucket{le="+Inf"}': (60, 60, 60)}),
    # As a server with a stuck worker shows it: what the worker would count stands still, and the queue is as it was before the step.
    Case("EbbStepStalled", QUIET, {"ebb_worker_busy_seconds": (0.2, 900, 0), 'ebb_queue_depth{tenant="default"}': (0, 0, 0),
                                   "ebb_requests_running": (12, 12, 12)}, {"ebb_step_tokens_count": (9, 0, 9)}),
    Case("EbbFilesHigh", QUIET, {"process_open_fds": (50, 900, 50), "process_max_fds": (1024, 1024, 1024)}),
    # Within half an hour from half full to nearly full: at that speed it would be over soon.
    Case("EbbDiskNearlyFull", QUIET, {"ebb_store_size_bytes": (1000, 1000, 1000), "ebb_store_free_bytes": (500, 40, 500)}, also=("EbbDiskFillingIn4h",)),
    Case("EbbConnectionsRefused", (5, 3, 30), {}, {'ebb_connections_refused_total{reason="files"}': (0, 7, 0)}),
    Case("EbbCertExpiring", QUIET, {"ebb_certificate_end_timestamp_seconds": (90 * 86400, 13 * 86400, 90 * 86400)}),
    Case("EbbAuthFailures", QUIET, {}, {'ebb_auth_failures_total{reason="BAD_CREDENTIAL"}': (1, 20, 1),
                                        'ebb_auth_failures_total{reason="NO_CREDENTIAL"}': (1, 1, 1)}),
    Case("EbbPageLeak", QUIET, {"ebb_kv_pages_limit": (100, 100, 100), 'ebb_kv_pages{state="owned"}': (50, 50, 50),
                                'ebb_kv_pages{state="free"}': (50, 49, 50), 'ebb_kv_pages{state="shared"}': (1, 1, 1)}),
    Case("EbbGpuFailed", (5, 3, 30), {"ebb_gpu_up": (1, 0, 1)}),
    Case("EbbSnapshotFailing", (5, 3, 30), {},
         {'ebb_rpc_handled_total{method="SessionService/SaveSession",code="UNAVAILABLE"}': (0, 1, 0)}),
    Case("EbbJournalFailing", (5, 3, 30), {}, {"ebb_journal_failures_total": (0, 1, 0)}),
    Case("EbbSessionsNotRecovered", (5, 5, 70), {'ebb_recovered_sessions_total{result="ok"}': (9, 9, 9), 'ebb_recovered_sessions_total{result="left"}': (0, 3, 3),
                                                 "process_start_time_seconds": (0, 300, 300)}),
    Case("EbbConfigRefused", QUIET, {"ebb_config_failing": (0, 1, 0)}),
    Case("EbbNaNScores", (5, 3, 30), {}, {'ebb_nan_scores_total{policy="h2o"}': (0, 1, 0)}),
    Case("EbbQualityDrop", (144, 18, 18), {}, {'ebb_shadow_kl_divergence_sum{policy="h2o"}': (10, 50, 10),
                                               'ebb_shadow_kl_divergence_count{policy="h2o"}': (1000, 1000, 1000),
                                               'ebb_shadow_tokens_total{policy="h2o"}': (1000, 1000, 1000)}, minutes=20),
    Case("EbbSampleRatioBroken", QUIET, {'ebb_experiment_sample_ratio_p{experiment="trial"}': (1, 0.0004, None)}),
    Case("EbbLogLinesDropped", (5, 3, 30), {}, {"ebb_log_lines_dropped_total": (0, 7, 0)}),
)

# What no phases describe.
OTHERS = (
    play("EbbRestartLoop", [("ebb_build_info", "1x120"), ("process_cpu_seconds_total", "50 60 5 60 5 60 5 60 5 60x120")],
         [(7, ()), (8, ("EbbRestartLoop",)), (100, ())]),
    play("EbbDiskFillingIn4h", [("ebb_build_info", "1x240"), ("ebb_store_size_bytes", "1000x240"), ("ebb_store_free_bytes", "400x30 397-3x59 220x150")],
         [(29, ()), (88, ("EbbDiskFillingIn4h",)), (170, ())]),
    play("a disk that fills slowly, or is nearly empty", [("ebb_build_info", "1x240"), ("ebb_store_size_bytes", "100000x240"),
                                                          ("ebb_store_free_bytes", "90000-300x60 72000-3x180")], [(60, ()), (240, ())]),
    play("a certificate that ends is one alert until it is replaced, also past its end",
         [("ebb_build_info", "1x60"), ("ebb_certificate_end_timestamp_seconds", "1800x45 7776000x15")],
         [(9, ()), (11, ("EbbCertExpiring",)), (44, ("EbbCertExpiring",)), (50, ())]),
    play("a server that restarts forgets its refusals", [("ebb_build_info", "1x60"), ('ebb_connections_refused_total{reason="files"}', "9x30 0x30"),
                                                         ('ebb_auth_failures_total{reason="BAD_CREDENTIAL"}', "900x30 0x30")], [(35, ()), (60, ())]),
    play("nothing is scraped", [], [(9, ()), (30, ("EbbAbsent",))]),
    play("a leak is found in each of a server's models",
         [("ebb_build_info", "1x60"), ("ebb_kv_pages_limit", "100x60"), ('ebb_kv_pages{state="owned"}', "50x60"), ('ebb_kv_pages{state="free"}', "50x60"),
          ('ebb_kv_pages_limit{model="qwen"}', "40x60"), ('ebb_kv_pages{model="qwen",state="owned"}', "10x60"),
          ('ebb_kv_pages{model="qwen",state="free"}', "30x30 29x30")], [(29, ()), (45, ("EbbPageLeak",))]),
    play("a model that stands still is none that has nothing to do, and is seen beside one that works",
         [("ebb_build_info", "1x120"), ('ebb_queue_depth{tenant="default"}', "3x120"), ("ebb_step_tokens_count", "0+9x120"),
          ('ebb_queue_depth{model="qwen",tenant="default"}', "0x60 3x60"), ('ebb_step_tokens_count{model="qwen"}', "9x120")],
         [(59, ()), (90, ("EbbStepStalled",))]),
    play("a worker that leaves requests waiting is found though it is at nothing", [("ebb_build_info", "1x60"), ("ebb_worker_busy_seconds", "0x60"),
         ('ebb_queue_depth{tenant="default"}', "3x60"), ("ebb_step_tokens_count", "0+9x20 180x40")], [(19, ()), (40, ("EbbStepStalled",))]),
    play("one of two models' workers is stuck, the other works",
         [("ebb_build_info", "1x60"), ("ebb_worker_busy_seconds", "0.1x60"), ('ebb_worker_busy_seconds{model="qwen"}', "0.1x20 15+60x39")],
         [(22, ()), (30, ("EbbStepStalled",))]),
    play("steps that take a minute each are slow, and not stuck", [("ebb_build_info", "1x60"), ("ebb_worker_busy_seconds", "1 16 31 46 59 1 16 31 46 59x50"),
         ('ebb_queue_depth{tenant="default"}', "2x60"), ("ebb_step_tokens_count", "0+1x60")], [(10, ()), (60, ())]),
    play("a GPU that fails is one alert, beside another that does not, until the server is started again without one",
         [("ebb_build_info", "1x60"), ("ebb_gpu_up", "1x60"), ('ebb_gpu_up{model="qwen"}', "1x20 0x19 _x20")],
         [(19, ()), (22, ("EbbGpuFailed",)), (39, ("EbbGpuFailed",)), (50, ())]),
    play("a server shows nothing but that it is there", [("up", "1x60"), ("ebb_build_info", "1x60")], [(60, ())]),
    play("nobody calls: every ratio is 0 / 0", [("ebb_build_info", "1x90"), *((name, "0x90") for name in (CALLS, FAULTS, FIRST, IN_TIME))],
         [(30, ()), (90, ())]),
    play("a few calls fail where there are only a few", [("ebb_build_info", "1x120"), (CALLS, "0+1x120"), (AWAY, "0x60 1x60")],
         [(62, ()), (120, ())]),
    play("counters begin anew", [("ebb_build_info", "1x120"), (CALLS, "0+600x60 0+600x60"), (AWAY, "5x60 0x60"), (FAULTS, "5x60 0x60"),
                                 (FIRST, "0+60x60 0+60x60"), (IN_TIME, "0+60x60 0+60x60")], [(61, ()), (65, ()), (120, ())]),
    *(play(f"{reason} says when to come back, from the first on",
           [("ebb_build_info", "1x50"), (CALLS, "0+60x50"), (AWAY, "0x19 300+20x30"), (f'ebb_refusals_total{{tenant="a",reason="{reason}"}}', "0x19 300+20x30")],
           [(22, ()), (50, OF_LOAD.get(reason, ()))]) for reason in LOAD),
    play("an OpenAI port without a place left is a queue that is full", [("ebb_build_info", "1x50"), ('ebb_refusals_total{reason="FRONT_BUSY"}', "0x19 10+10x30")],
         [(18, ()), (50, ("EbbQueueFull",))]),
    play("calls of which nothing came by their deadline are errors, where that was long enough",
         [("ebb_build_info", "1x90"), (CALLS, "0+60x90"), (AWAY, "0x90"), (OVERDUE, "0+20x90"), ('ebb_requests_late_total{tenant="a"}', "0x40 0+6x50")],
         [(40, ()), (90, ("EbbErrorBudgetFast", "EbbErrorBudgetSlow"))]),
    *(Case("EbbErrorBudgetFast", (60, 60, 60), {}, {CALLS: (60, 54, 60), AWAY: (0, 6, 0)}, also=("EbbErrorBudgetSlow",),
           after=("EbbErrorBudgetSlow",), beside=beside).test() for beside in LESS),
    play("a full disk does not, beside a server that drains",
         [("ebb_build_info", "1x50"), (CALLS, "0+60x50"), (AWAY, "0+20x50"), ('ebb_refusals_total{tenant="a",reason="STORE_FULL"}', "0+15x50"),
          ('ebb_refusals_total{tenant="a",reason="DRAINING"}', "0+5x50")], [(50, ("EbbErrorBudgetFast", "EbbErrorBudgetSlow"))]),
)

# Of rules that dashboards and autoscalers read, or a person: (name, series, labels and value of what comes out).
RECORDS = (
    ("ebb:error_budget:ratio", [("ebb_build_info", "1x9")], 'job="ebb"', 0.001),
    ("ebb:goodput:rate5m", [('ebb_requests_in_time_total{tenant="a"}', "0+60x9"), ('ebb_requests_in_time_total{tenant="b"}', "0+30x9")], 'job="ebb"', 1.5),
    ("ebb:queue:ratio", [('ebb_queue_depth{tenant="a"}', "3x9"), ('ebb_queue_depth{tenant="b"}', "2x9"), ("ebb_requests_running", "5x9"),
                         ("ebb_requests_limit", "40x9")], WHO, 0.25),
)


class Alerts(unittest.TestCase):
    def promtool(self, *arguments):
        if not shutil.which("promtool"):
            self.skipTest("promtool is not installed (Debian: prometheus)")
        done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def played(self, tests):
        with tempfile.TemporaryDirectory() as folder:
            for interval in sorted({test["interval"] for test in tests}):  # days are played in larger steps than hours
                path = pathlib.Path(folder, f"{interval}.json")
                path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": interval, "group_eval_order": GROUPS,
                                            "tests": [test for test in tests if test["interval"] == interval]}))  # JSON is YAML
                self.promtool("test", "rules", path)

    def test_the_rules_are_well_formed(self):
        self.promtool("check", "rules", RULES)

    def test_each_fires_and_recovers_and_nothing_fires_beside_it(self):
        self.assertEqual(sorted([case.alert for case in CASES] + ["EbbDiskFillingIn4h", "EbbRestartLoop"]), sorted(ALERTS), "a case for each alert")
        tests = [case.test() for case in CASES] + list(OTHERS)
        self.played(tests)

    def test_errors_are_counted_without_what_is_added_to_them_or_taken_off(self):
        records = re.findall(r"^ +- record: (ebb:request_errors:ratio_rate\w+)$", TEXT, re.MULTILINE)
        self.assertEqual(len(records), 5, "one for each window")
        tests = [play("", [(CALLS, "0+54x90"), (AWAY, "0+6x90")], [(90, ())], beside=beside) for beside in LESS]
        for test in tests:
            test["promql_expr_test"] = [{"expr": f"round({name}, 1e-6)", "eval_time": "90m", "exp_samples": [{"labels": '{job="ebb"}', "value": 0.1}]}
                                        for name in records]
        self.played(tests)

    def test_what_no_alert_reads_is_recorded_too(self):
        self.assertEqual([name for name in re.findall(r"^ +- record: (\S+)$", TEXT, re.MULTILINE) if TEXT.count(name) == 1], [name for name, *_ in RECORDS])
        series = [{"series": selector(metric), "values": values} for _, given, *_ in RECORDS for metric, values in given]
        self.played([{"interval": "1m", "input_series": series,
                      "promql_expr_test": [{"expr": name, "eval_time": "9m", "exp_samples": [{"labels": f"{name}{{{labels}}}", "value": value}]}
                                           for name, _, labels, value in RECORDS]}])

    def test_each_has_its_page(self):
        page = (ROOT / "docs/how-to/answer-alerts.md").read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"^## (Ebb\w+)$", page, re.MULTILINE), ALERTS, "a section for each alert, in their order")
        links = re.findall(r"^ +runbook_url: (\S+)$", TEXT, re.MULTILINE)
        self.assertEqual(links, [f"docs/how-to/answer-alerts.md#{alert.lower()}" for alert in ALERTS])

    def test_they_agree_with_the_server_on_what_is_no_error(self):
        named = re.findall(r'- \(sum by \(namespace, job\) \(rate\(ebb_refusals_total\{reason=~"([A-Z_|]+)"\}', TEXT)
        self.assertEqual(len(named), 5, "one for each window")
        for each in named:
            self.assertEqual(sorted(each.split("|")), sorted(LOAD))
        codes, rows = reasons.of_tree(ROOT), (ROOT / "docs/reference/errors.tsv").read_text(encoding="utf-8").splitlines()
        of_calls = {row.split("\t")[1] for row in rows if row.startswith("call\t")}
        for reason in LOAD:  # else more would be taken off than was counted
            self.assertEqual(codes[reason], {"UNAVAILABLE"}, reason)
        self.assertEqual(sorted({*LOAD, *ERRORS, *OF_NO_RPC}), sorted(reason for reason in of_calls if "UNAVAILABLE" in codes[reason]),
                         "say of each whether it is an error")

    def test_what_they_name_is_exported(self):
        known = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8"), re.MULTILINE))
        named = set(re.findall(r"(?<![:\w])(?:ebb|process)_\w+", TEXT))
        self.assertGreater(len(named), 10)
        self.assertEqual({name for name in named if re.sub(r"_(bucket|sum|count)$", "", name) not in known}, set())


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
