#!/usr/bin/env python3
"""The metrics page stays small however many tenants and sessions a server has, 100 and 1,000 here, also with as many experiments as may run at
once. What it weighs is asserted; how long it
takes is printed, for docs/how-to/watch-with-grafana.md and whoever reads the log."""
import concurrent.futures
import re
import statistics
import sys
import time
import unittest
import urllib.request

import grpc

from binaries import Server
from patience import connected
import python_package  # noqa: F401  makes the package that is imported next

import ebb
from ebb.v1 import inference_pb2, inference_pb2_grpc

TENANTS, SESSIONS = 100, 1000
NAMED = 64  # tenants with a name of their own; the others share `other` (server/metrics.h)
BYTES_MAX = 2 << 20
SCRAPES = 50
EXPERIMENTS, ARMS = 16, 8  # as many as may run, and as many arms as one may have
ALL_ARMS = [f"--arm=arm-{arm}=streaming:budget={16 + arm}" for arm in range(ARMS)]
USERS = 288  # of each experiment


def series(page):
    return {line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")}


def cpu_seconds(page):
    return float(re.search(r"^process_cpu_seconds_total (\S+)$", page, re.MULTILINE)[1])


class Scrape(unittest.TestCase):
    def page(self):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        begin = time.perf_counter()
        with opener.open(f"http://{self.server.http}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return text, time.perf_counter() - begin

    def open_sessions(self, each):
        """`each` more sessions for every tenant, with something in one of them."""
        for tenant in range(TENANTS):
            with ebb.Client(self.server.addr, tenant=f"tenant-{tenant}") as client:
                made = [client.create_session(ebb.policy("streaming", budget=16)) for _ in range(each)]
                made[0].prefill("It was a dark and stormy night")

    def test_it_is_small_and_does_not_grow_with_sessions(self):
        with Server("--cache.arena=768MiB") as self.server:
            self.open_sessions(1)
            few, _ = self.page()
            self.open_sessions(SESSIONS // TENANTS - 1)
            many, _ = self.page()
            sessions = dict(re.findall(r'^ebb_sessions\{tenant="([^"]+)"\} (\S+)$', many, re.MULTILINE))
            self.assertEqual(sum(map(float, sessions.values())), SESSIONS)
            self.assertIn("other", sessions)
            self.assertLessEqual(len(sessions), NAMED + 1)
            self.assertEqual(float(sessions["other"]), SESSIONS - 10 * sum(name.startswith("tenant-") for name in sessions), "none is lost")

            self.assertEqual(series(many), series(few), "series of a session")
            self.assertNotIn("sessions/", many)
            self.assertLess(len(many.encode()), BYTES_MAX)
            self.measure(f"{TENANTS} tenants, {SESSIONS} sessions")

    def compare(self, number):
        """An experiment that says all it can: each arm has the units that it takes."""
        tenant = f"tenant-{number}"
        self.server.ebb("experiment", "start", f"experiment-{number}", f"--of={tenant}", "--units-min=20", *ALL_ARMS)
        with ebb.Client(self.server.addr, tenant=tenant) as client, connected(grpc.insecure_channel(self.server.addr)) as channel:
            calls = inference_pb2_grpc.InferenceServiceStub(channel)
            for user in range(USERS):
                with client.create_session(end_user=f"user-{user}") as session:
                    session.generate("It was a dark and stormy night, and the old man sat by the fire.", max_tokens=4).read()
                    for outcome in ({"score": user / USERS}, {"thumb_up": user % 2 == 0}):
                        calls.ReportOutcome(inference_pb2.ReportOutcomeRequest(session=session.name, **outcome), metadata=[("x-ebb-tenant", tenant)])

    def test_it_is_small_with_as_many_experiments_as_may_run(self):
        with Server("--cache.arena=768MiB", "--quality.measure_every=1", "--quality.shadow_share=1", "--quality.shadow_tokens_max=64") as self.server:
            self.open_sessions(SESSIONS // TENANTS)
            with concurrent.futures.ThreadPoolExecutor(EXPERIMENTS) as pool:
                list(pool.map(self.compare, range(EXPERIMENTS)))
            self.server.ebb("experiment", "start", "another", f"--of=tenant-{EXPERIMENTS}", *ALL_ARMS, check=1)
            self.assertIn("EXPERIMENTS_FULL", self.server.stderr)
            page, _ = self.page()
            effects = re.findall(r'^ebb_experiment_effect\{experiment="(.*?)",arm="(.*?)",metric="(.*?)",stat="estimate"\}', page, re.MULTILINE)
            self.assertEqual({(experiment, arm) for experiment, arm, _ in effects},
                             {(f"experiment-{number}", f"arm-{arm}") for number in range(EXPERIMENTS) for arm in range(1, ARMS)})
            self.assertLess(len(page.encode()), BYTES_MAX)
            print("effects in", ", ".join(sorted({metric for _, _, metric in effects})))
            self.measure(f"{TENANTS} tenants, {SESSIONS} sessions, {EXPERIMENTS} experiments of {ARMS} arms")

    def measure(self, what):
        page, _ = self.page()
        before = cpu_seconds(self.page()[0])
        took = sorted(self.page()[1] for _ in range(SCRAPES))
        spent = (cpu_seconds(self.page()[0]) - before) / (SCRAPES + 1)
        print(f"{what}: {len(series(page))} series, {len(page.encode()) / 1e6:.2f} MB; a scrape takes "
              f"{1000 * spent:.1f} ms of a core, {1000 * statistics.median(took):.1f} ms (median of {SCRAPES}), {1000 * took[-1]:.1f} ms at most")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
