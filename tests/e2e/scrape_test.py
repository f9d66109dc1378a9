#!/usr/bin/env python3
"""The metrics page stays small however many tenants and sessions a server has: 100 and 1,000 here. What it weighs is asserted; how long it
takes is printed, for docs/how-to/watch-with-grafana.md and whoever reads the log."""
import re
import statistics
import sys
import time
import unittest
import urllib.request

from binaries import Server
import python_package  # noqa: F401  makes the package that is imported next

import ebb

TENANTS, SESSIONS = 100, 1000
NAMED = 64  # tenants with a name of their own; the others share `other` (server/metrics.h)
BYTES_MAX = 2 << 20
SCRAPES = 50


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

            def series(text):
                return {line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")}
            self.assertEqual(series(many), series(few), "series of a session")
            self.assertNotIn("sessions/", many)
            self.assertLess(len(many.encode()), BYTES_MAX)
            before = cpu_seconds(self.page()[0])
            took = sorted(self.page()[1] for _ in range(SCRAPES))
            spent = (cpu_seconds(self.page()[0]) - before) / (SCRAPES + 1)
            print(f"{TENANTS} tenants, {SESSIONS} sessions: {len(series(many))} series, {len(many.encode()) / 1e6:.2f} MB; a scrape takes "
                  f"{1000 * spent:.1f} ms of a core, {1000 * statistics.median(took):.1f} ms (median of {SCRAPES}), {1000 * took[-1]:.1f} ms at most")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
