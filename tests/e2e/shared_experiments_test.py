#!/usr/bin/env python3
"""Servers without a folder that share a Redis, as a Deployment's pods do: experiments outlive each of them, killed or drained. Needs
Debian's redis-server, python3-grpcio and protoc."""
import contextlib
import json
import re
import signal
import unittest
import urllib.request

from binaries import Server
from patience import PATIENCE, eventually
from shared_store_test import Redis

LEASE = 1  # seconds
START = ("experiment", "start", "spread", "--arm=control=streaming:budget=64", "--arm=h2o=h2o:budget=64", "--metric=score", "--units-min=20")


class SharedExperiments(unittest.TestCase):
    def setUp(self):
        self.redis = self.enterContext(Redis())
        self.servers = self.enterContext(contextlib.ExitStack())

    def server(self):
        return self.servers.enter_context(Server(f"--store.redis=127.0.0.1:{self.redis.port}", "--store.durability=step", "--store.dir=",
                                                 f"--store.lease={LEASE}s", "--cache.arena=64MiB", "--model.threads=1"))

    @staticmethod
    def come(server, users):
        for user in users:
            session = f"of-{user}-at-{server.addr.rsplit(':', 1)[-1]}"
            arm = json.loads(server.ebb("sessions", "create", session, f"--end-user=user-{user}", "--json"))["arm"]
            server.ebb("experiment", "report", session, f"--score={0.9 if arm == 'h2o' else 0.3}")
            server.ebb("sessions", "delete", session)

    @staticmethod
    def writes(server):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{server.http}/metrics", timeout=PATIENCE) as page:
            return int(re.search(r'^ebb_experiment_file_writes_total\{result="ok"\} (\d+)', page.read().decode(), re.M).group(1))

    @staticmethod
    def units(server):
        arms = json.loads(server.ebb("experiment", "results", "spread", "--json"))["results"]["arms"]
        return sum(int(arm["units"]) for arm in arms), sum(int(arm["sessions"]) for arm in arms)

    def await_units(self, server, expected):
        eventually(lambda: self.units(server) == expected, lambda: f"{self.units(server)} units and sessions, not {expected}")

    def test_experiments_outlive_servers_that_have_only_redis(self):
        killed, other = self.server(), self.server()
        for server in (killed, other):
            server.ebb(*START)
        self.come(killed, range(24))
        self.come(other, range(16, 40))
        before = self.writes(killed)
        killed.ebb("experiment", "ramp", "spread", "0.75")  # which is written with all that units have shown so far
        eventually(lambda: self.writes(killed) > before, "the ramp was not written")
        killed.process.kill()
        self.await_units(other, (40, 48))
        self.assertIn("running, 100 % of", other.ebb("experiment", "results", "spread"), "a ramp is each server's own")

        other.process.send_signal(signal.SIGTERM)
        self.assertEqual(other.process.wait(timeout=60), 0)
        last = self.server()
        self.await_units(last, (40, 48))
        self.come(last, [3, 50])
        self.assertEqual(self.units(last), (41, 50), "of which one had come to the server that was killed")


if __name__ == "__main__":
    unittest.main(verbosity=2)
