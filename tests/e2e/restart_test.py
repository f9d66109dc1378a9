#!/usr/bin/env python3
"""One server that is restarted in its place: it drains, is gone, and comes back. Clients as they are unless told otherwise notice that their
calls take longer."""
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

from binaries import BIN, Server
from node_client_test import missing, node, PREFACE
from patience import eventually, PATIENCE
import python_package  # noqa: F401, where ebb comes from

import ebb
import grpc
from ebb.v1 import admin_pb2

POLICY = ebb.policy("h2o", budget=48)
ANSWER = {"max_tokens": 64, "temperature": 0.0, "ignore_eos": True}
PROMPT = "It was a dark and stormy night"
REFUSED = 5  # times that each is refused by the server that drains: more than any client's attempts


def drains(client):
    try:
        return client.stubs.admin.GetStatus(admin_pb2.GetStatusRequest()).state == admin_pb2.SERVER_STATE_DRAINING
    except grpc.RpcError:  # it is being asked for another connection
        return False


class Told(ebb.Retry):
    """The default, which notes what it was asked about."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "failures", [])

    def delay(self, attempt, error, away=0.0):
        self.failures.append(error)
        return super().delay(attempt, error, away)


class Restart(unittest.TestCase):
    def setUp(self):
        store = self.enterContext(tempfile.TemporaryDirectory())
        self.flags = (f"--store.dir={store}", "--store.durability=drain", "--server.drain_timeout=300s", "--server.reader_patience=300s",
                      "--model.threads=1", "--cache.arena=64MiB")
        self.server = Server(*self.flags).__enter__()
        self.addCleanup(lambda: self.server.process.poll() is None and self.server.__exit__())
        self.texts, self.retry = {}, Told()

    def refusals(self, tenant):
        page = urllib.request.urlopen(f"http://{self.server.http}/metrics", timeout=PATIENCE).read().decode()
        series = f'ebb_refusals_total{{tenant="{tenant}",reason="DRAINING"}} '
        return next(float(line[len(series):]) for line in page.splitlines() if line.startswith(series))

    def by_threads(self):
        """Without `resume`: a call that changes a session, and is repeated only where nobody can have done it."""
        with ebb.Client(self.server.addr, tenant="threads", retry=self.retry, resume=None) as client:
            return client.session("s").generate(PROMPT, **ANSWER).read()

    def by_asyncio(self):
        async def read():
            async with ebb.aio.Client(self.server.addr, tenant="asyncio") as client:
                return await client.session("s").generate(PROMPT, **ANSWER).read()
        return asyncio.run(read())

    def by_node(self):
        done = node(["-e", PREFACE + """(async () => {
            const client = new ebb.Client(process.env.EBB_ADDR, { tenant: "node" });
            const answer = client.session("s").generate(prompt, { maxTokens: 64, temperature: 0, ignoreEos: true });
            let text = "";
            for await (const piece of answer) text += piece;
            tell(text);
            client.close();
        })();"""], self.server.addr)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def by_ebb(self):
        done = subprocess.run([BIN / "ebb", f"--addr={self.server.addr}", "--tenant=ebb", "generate", "--quiet", "--session=s", "--max-tokens=64",
                               "--temperature=0", "--ignore-eos", PROMPT], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("DRAINING", done.stderr, "whoever sits at a terminal is told why it takes so long")
        return done.stdout.removesuffix("\n")

    def test_every_client_waits_for_the_server_that_takes_its_place(self):
        callers = {"threads": self.by_threads, "asyncio": self.by_asyncio, "ebb": self.by_ebb}
        if missing() is None:
            callers["node"] = self.by_node
        for tenant in callers:
            with ebb.Client(self.server.addr, tenant=tenant) as client:
                client.create_session(POLICY, id="s")
        with ebb.Client(self.server.addr) as client:
            with client.create_session(POLICY) as session:
                right = session.generate(PROMPT, **ANSWER).read()
            with client.create_session(POLICY).generate(PROMPT, max_tokens=1 << 20, ignore_eos=True) as under_way:
                next(iter(under_way))
                self.server.process.send_signal(signal.SIGTERM)
                eventually(lambda: drains(client), "it does not drain")
                threads = [threading.Thread(target=lambda tenant=tenant, call=call: self.texts.update({tenant: call()}))
                           for tenant, call in callers.items()]
                for thread in threads:
                    thread.start()
                for tenant in callers:
                    eventually(lambda tenant=tenant: self.refusals(tenant) >= REFUSED, f"{tenant} does not come back")
        self.assertEqual(self.server.process.wait(PATIENCE), 0)
        self.server.__exit__()
        eventually(lambda: any(not failure.was_sent for failure in self.retry.failures), "nobody finds it gone")
        self.enterContext(Server(*self.flags, listen=self.server.addr))
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(self.texts, dict.fromkeys(callers, right))

    def test_patience_ends(self):
        clients = [ebb.Client(self.server.addr, retry=retry) for retry in (ebb.Retry(attempts=1), ebb.Retry(patience=0.1))]
        for client in clients:
            client.tokenize("x")
        self.server.__exit__()
        for client in clients:
            with client, self.assertRaises(ebb.Unavailable) as gone:
                client.tokenize("x")
            self.assertEqual((gone.exception.is_away, gone.exception.was_sent), (True, False))
        with ebb.Client(self.server.addr) as client, self.assertRaises(ebb.Unavailable) as gone:
            client.tokenize("x")
        self.assertFalse(gone.exception.is_away, "a server that never answered is not waited for")
        done = subprocess.run([BIN / "ebb", f"--addr={self.server.addr}", "status"], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 3, done.stderr)

    @unittest.skipIf(missing(), missing())
    def test_node_knows_what_was_never_sent(self):
        done = node(["-e", PREFACE + """(async () => {
            const client = new ebb.Client(process.env.EBB_ADDR, { retry: { patience: 0.1 } });
            await client.tokenize("x");
            process.kill(Number(process.env.SERVER), "SIGTERM");
            for (;;) {
              try {
                await client.tokenize("x");
              } catch (error) {
                if (error.wasSent) continue; // it goes, and is not gone
                tell([error.code, error.isAway, error.known]);
                return client.close();
              }
            }
        })();"""], self.server.addr, SERVER=str(self.server.process.pid))
        self.assertEqual((done.returncode, done.stdout), (0, '["UNAVAILABLE",true,true]\n'), done.stderr)
        self.server.__exit__()


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
