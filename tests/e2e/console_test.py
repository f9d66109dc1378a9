#!/usr/bin/env python3
"""The console in a real browser: Debian's chromium, driven by tests/e2e/console/drive.mjs. Skipped, with a line that says what is missing,
where there is no chromium, no Node, or no playwright-core or axe-core, which Debian 12 does not have: scripts/setup test installs all it can.

    tests/e2e/console_test.py --pictures    makes the pictures of docs/how-to/images again
"""
import functools
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from binaries import BIN, MODEL, ROOT, Server
from patience import eventually

DRIVER = ROOT / "tests/e2e/console"
PICTURES = ROOT / "docs/how-to/images"
PICTURE_BYTES_MAX = 150_000
CHROMIUM = shutil.which("chromium")


def missing():
    if CHROMIUM is None:
        return "there is no chromium: scripts/setup test"
    if shutil.which("node") is None:
        return "there is no node"
    for name in ("playwright-core", "axe-core"):
        if not (ROOT / "tests/e2e/node_modules" / name).is_dir() or not (ROOT / "tests/e2e/node_modules/.package-lock.json").exists():
            return f"there is no {name}: npm install --prefix tests/e2e"
    return None


def drive(scenario, server, *arguments):
    """What the scenario saw."""
    done = subprocess.run(["node", DRIVER / "drive.mjs", scenario, f"http://{server.http}", *arguments], capture_output=True, text=True,
                          timeout=240, env={**os.environ, "CHROMIUM": CHROMIUM})
    assert done.returncode == 0, f"{scenario}: {done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


@unittest.skipIf(missing(), missing())
class Console(unittest.TestCase):
    def test_a_conversation_goes_past_its_budget_and_its_policy_is_changed_meanwhile(self):
        with Server() as server:
            seen = drive("conversation", server)
            self.assertEqual(server.ebb("sessions").strip(), "no sessions")
        self.assertEqual(seen["complaints"], [])
        logged, live, slots, left = map(int, re.findall(r"\d+", seen["counts"]))
        self.assertGreater(logged, 256)
        self.assertEqual((live, left), (96, logged - 96))
        self.assertLessEqual(live, slots)
        self.assertGreater(seen["answer"], 200)
        gone, recent = seen["places"]
        self.assertRegex(gone, r"^Layer \d, head \d: token \d+ (has left|is in slot \d+, position \d+, keep score [\d.e+-]+, above \d+ % of its lane)$")
        self.assertRegex(recent, r"^Layer 3, head 0: token \d+ is in slot \d+")
        self.assertGreater(seen["drawn"], 6)  # shades
        self.assertEqual(seen["table"], 1 + 96)
        self.assertGreater(seen["lines"], 0, "a plot that has drawn nothing")
        self.assertRegex(seen["change"], r"^streaming, budget 48 is in force; it starts from: \w+; \d+ slots left at once$")

    def test_among_more_sessions_than_a_page_has_the_chosen_one_stays(self):
        with Server() as server:
            seen = drive("crowd", server)
        self.assertEqual(seen["complaints"], [])
        pages, rows, about, chosen = seen["first"]
        self.assertRegex(pages, r"^Sessions 1 to 100, and there are more; playground-\w+, which is shown, is on another page$")
        self.assertRegex(about, r"^playground-\w+: \d+ tokens so far, 96 live")
        self.assertEqual((rows, chosen), (100, []))
        pages, rows, about, (chosen,) = seen["second"]
        self.assertEqual((pages, rows), ("Sessions 101 to 121", 21))
        self.assertEqual(chosen.removeprefix("sessions/"), about.split(":")[0])
        pages, rows, about, chosen = seen["back"]
        self.assertEqual(pages, "Sessions 1 to 100, and there are more; crowd-219, which is shown, is on another page")
        self.assertEqual((rows, about.split(":")[0], chosen), (100, "crowd-219", []))

    def test_a_session_that_is_swapped_out_is_left_there(self):
        with Server("--cache.arena=4MiB", "--cache.swap_max=64MiB") as server:  # room for one
            for name in ("away", "here"):
                server.ebb("sessions", "create", name)
                server.ebb("generate", f"--session={name}", "It was a dark and stormy night", "--max-tokens=8", "--ignore-eos")
            seen = drive("swapped", server)
        self.assertEqual(seen, {"about": "away is swapped out, and stays so until it is called.", "states": ["swapped", "idle"],
                                "swapped": [True, False], "complaints": []})

    def test_where_there_are_several_models_one_is_chosen(self):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "ebb.yaml"
            config.write_text(f"model: {{name: main}}\nmodels:\n  other: {{path: {MODEL}, arena: 16MiB, threads: 1}}\n", encoding="utf-8")
            with Server(f"--config={config}") as server:
                eventually(lambda: '"MODEL_STATE_LOADING"' not in server.ebb("models", "--json"), "other is not loaded")
                seen = drive("models", server)
        self.assertEqual(seen, {"models": ["other"], "compared": "other", "turns": ["You", "other"], "faults": [], "complaints": []})

    def test_three_policies_answer_one_prompt_side_by_side(self):
        with Server() as server:
            seen = drive("compare", server)
        self.assertEqual(seen["complaints"], [])
        full, h2o, streaming = seen["facts"]
        self.assertRegex(full, r"^\d+ live, 0 left, first after \d+ ms, then \d+ a second$")
        for facts in (h2o, streaming):
            self.assertRegex(facts, r"^64 live, [1-9]\d+ left, .* a second; the first \d+ of 96 tokens are those of policy 1$")
        self.assertEqual(seen["marks"], sum("the first 96 of" not in facts for facts in (h2o, streaming)))
        self.assertTrue(all(seen["answers"]))

    def test_an_experiment_is_started_and_shows_its_intervals_as_the_server_tells_them(self):
        with Server("--quality.measure_every=1") as server:
            seen = drive("experiments", server)
        self.assertEqual((seen["complaints"], seen["faults"]), ([], []))
        self.assertEqual(seen["refused"], "experiment.arms[1].name: another arm is called 'control'")
        self.assertGreaterEqual(seen["contrast"][0]["ratio"], 4.5, seen["contrast"])
        arms = seen["results"]["arms"]
        self.assertEqual([row.count("control") + row.count("h2o") >= 1 for row in seen["arms"]], [False, True, True])
        self.assertEqual(sum(int(arm["sessions"]) for arm in arms), 72)
        self.assertTrue(all(int(arm["units"]) >= 20 for arm in arms), arms)
        self.assertRegex(seen["ratio"], r"^Sample ratio as it should be \(p [\d.e-]+\)\.$")
        told, drawn, cells = seen["told"], seen["drawn"], seen["cells"]
        low, high = (told["differenceInterval"].get(key, 0) for key in ("low", "high"))
        self.assertEqual(cells[-1], "open" if low <= 0 <= high else "worse" if low > 0 else "better")  # less is better
        self.assertEqual(drawn["side"], f"interval {cells[-1]}")
        scale = (drawn["middle"] - 4) / max(abs(low), abs(high))
        for x, number in ((drawn["bar"][0], low), (drawn["bar"][1], high), (drawn["dot"], told["difference"])):
            self.assertAlmostEqual(x, drawn["middle"] + scale * number, delta=0.06)
        self.assertEqual(seen["decision"], {"open": "Nothing is decided in attention mass lost yet.", "better": "h2o is better than control in attention mass lost.",
                                            "worse": "control is better in attention mass lost."}[cells[-1]])
        self.assertTrue(seen["stop"])

    def test_the_keyboard_alone_is_enough(self):
        with Server() as server:
            seen = drive("keyboard", server)
        self.assertEqual(seen["complaints"], [])
        self.assertEqual(seen["skip"]["text"], "Skip to the panels")
        for place in seen["path"]:
            self.assertTrue(place["seen"] and place["outline"] == "solid", place)
        self.assertRegex(seen["last"], r"^Layer 0, head 0: token \d+ is in slot \d+")
        self.assertRegex(seen["next"], r"^Layer 0, head 1: token \d+ is in slot \d+")
        token = [int(re.search(r"token (\d+)", seen[key])[1]) for key in ("last", "next")]
        self.assertEqual(token[1], token[0] - 1)

    def test_it_reads_well_light_and_dark_and_for_who_listens(self):
        with Server() as server:
            seen = drive("reader", server)
        self.assertNotEqual(seen["light"]["page"], seen["dark"]["page"])
        for scheme, other in (("light", "dark"), ("dark", "light")):
            with self.subTest(scheme):
                self.assertEqual(seen[scheme]["complaints"], [])
                self.assertEqual(seen[scheme]["faults"], [])
                self.assertGreaterEqual(seen[scheme]["contrast"][0]["ratio"], 4.5, seen[scheme]["contrast"])
                self.assertEqual((seen[scheme]["chosen"], seen[scheme]["kept"]), (seen[other]["page"],) * 2)

    def test_an_admins_token_is_asked_for_and_kept_nowhere(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            lines, tokens = "", {}
            for tenant, *admin in (("acme",), ("ops", "--admin")):
                lines += subprocess.run([BIN / "ebb", "token", tenant, *admin, "--out", folder / tenant], capture_output=True, text=True, check=True).stdout
                tokens[tenant] = (folder / tenant).read_text().strip()
            (folder / "tokens").write_text(lines)
            with Server("--auth.mode=token", f"--auth.token_file={folder}/tokens") as server:
                seen = drive("token", server, "wrong", tokens["acme"], tokens["ops"])
        self.assertEqual(seen["complaints"], [])
        asked, wrong, tenants = seen["why"]
        self.assertIn("admin’s token", asked)
        self.assertIn("not a valid one", wrong)
        self.assertEqual(tenants, "PERMISSION_DENIED: the console needs an admin's token")
        self.assertNotIn(tokens["ops"], seen["kept"])

    def test_a_page_of_another_origin_cannot_call(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "index.html").write_text("<!doctype html><title>elsewhere</title>")
            handler = functools.partial(type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None}), directory=folder)
            with Server() as server, http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as elsewhere:
                thread = threading.Thread(target=elsewhere.serve_forever)
                thread.start()
                try:
                    seen = drive("foreign", server, f"http://127.0.0.1:{elsewhere.server_port}/index.html")
                finally:
                    elsewhere.shutdown()
                    thread.join()
                self.assertEqual(seen, ["TypeError", "TypeError"])  # what a browser says of an answer that it may not show
                self.assertEqual(server.ebb("sessions").strip(), "no sessions")

    def test_the_pictures_of_the_documentation_are_small(self):
        for name in ("console-light.png", "console-dark.png", "console-side-by-side.png", "console-experiments.png"):
            self.assertLess((PICTURES / name).stat().st_size, PICTURE_BYTES_MAX, name)


class Configuration(unittest.TestCase):
    """Which servers have a console; needs no browser."""

    def status(self, server):
        port = server.http.rsplit(":", 1)[1]
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{port}/console", timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def test_on_loopback_it_is_there_unless_it_is_switched_off(self):
        for flags, status in (((), 200), (("--server.console=off",), 404)):
            with self.subTest(flags), Server(*flags) as server:
                self.assertEqual(self.status(server), status)

    def test_elsewhere_it_has_to_be_asked_for_and_the_log_warns(self):
        for flags, status in (((), 404), (("--server.console=on",), 200)):
            with self.subTest(flags), Server("--server.http_listen=0.0.0.0:0", *flags) as server:
                self.assertEqual(self.status(server), status)
            self.assertEqual("console_is_open" in server.rest, status == 200, server.rest)

    def test_what_cannot_be_is_refused_at_the_start(self):
        for flags, words in ((["--server.http_listen="], "server.http_listen, which is empty"),
                             (["--auth.mode=mtls", "--tls.cert=a", "--tls.key=b", "--tls.client_ca=c"], "which a page cannot show")):
            with self.subTest(flags):
                done = subprocess.run([BIN / "ebbd", f"--model={MODEL}", "--listen=127.0.0.1:0", "--server.console=on", *flags], capture_output=True,
                                      text=True, timeout=60)
                self.assertEqual(done.returncode, 2)
                self.assertIn("server.console: on: ", done.stderr)
                self.assertIn(words, done.stderr)


def pictures():
    PICTURES.mkdir(exist_ok=True)
    with Server("--quality.measure_every=1") as server:
        drive("pictures", server, PICTURES)


if __name__ == "__main__":
    sys.exit(pictures() if "--pictures" in sys.argv else unittest.main(verbosity=2))
