#!/usr/bin/env python3
"""Every query of the dashboards is asked of a real Prometheus that scrapes a real server under load, and is answered with numbers.

    dashboards_test.py           tests
    dashboards_test.py --draw    writes docs/how-to/images/ebb-*.svg: every panel, of two minutes of such a load
"""
import concurrent.futures
import contextlib
import html
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

from binaries import MODEL, ROOT, Server
import npm
from patience import eventually
from prometheus import Prometheus
import python_package  # noqa: F401  makes the package that is imported next

import ebb
from ebb.v1 import inference_pb2

FOLDER = ROOT / "deploy/grafana"
DASHBOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((FOLDER / "dashboards").glob("*.json"))}
PICTURES = ROOT / "docs/how-to/images"
RULES = ROOT / "deploy/prometheus/ebb.rules.yaml"
MAKE = ROOT / "tests/support/make_models.py"
TEXT = "It was a dark and stormy night, and the lamp was in the cellar. It was a dark and stormy night, and the lamp was in the cellar."


def panels():
    for uid, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            if panel["type"] != "row":
                yield uid, panel


def queries():
    """[(where it stands, the query)], without Grafana's variables."""
    found = [(f"{uid} / {panel['title']}", target["expr"]) for uid, panel in panels() for target in panel["targets"]]
    found += [(f"{uid} / annotation {each['name']}", each["expr"].removesuffix(" > 0")) for uid, dashboard in DASHBOARDS.items()
              for each in dashboard["annotations"]["list"]]
    found += [(f"{uid} / variable {each['name']}", re.sub(r"label_values\((.*), (\w+)\)", r"count by (\2) (\1)", each["query"]["query"]))
              for uid, dashboard in DASHBOARDS.items() for each in dashboard["templating"]["list"] if each["type"] == "query"]
    page = (ROOT / "docs/how-to/watch-with-grafana.md").read_text(encoding="utf-8")
    signals = re.findall(r"^\| [A-Z]\w+(?:, \w+)* \| `([^`]+)` \|", page, re.MULTILINE)  # for an inference gateway
    assert len(signals) == 4, signals
    found += [("watch-with-grafana.md", query) for query in signals]
    return [(where, plain(query)) for where, query in found]


def plain(query, interval="5m"):
    return re.sub(r"\$(job|instance|model|policy|tenant|experiment|arm)\b", ".*", query.replace("$__rate_interval", interval))


def gpu(folder):
    """Flags of a model beside the built-in one, which a GPU computes: the emulation of one, a third of a second for a token."""
    subprocess.run([sys.executable, "-B", MAKE, "--preset", "tiny-llama", "--type", "bf16", "-o", f"{folder}/tiny.gguf"], check=True, capture_output=True)
    return (f"--models.gpu.path={folder}/tiny.gguf", "--models.gpu.worker=emulated", "--models.gpu.gpu_arena=8MiB", "--models.gpu.arena=16MiB",
            "--models.gpu.threads=1")


@contextlib.contextmanager
def busy_server():
    """One that has something to say in every panel."""
    with tempfile.TemporaryDirectory() as folder:
        cert, key = f"{folder}/server.pem", f"{folder}/server.key"  # one panel is about certificates
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "60", "-subj",
                        "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
        flags = (f"--tls.cert={cert}", f"--tls.key={key}", "--quality.shadow_share=1", "--quality.shadow_tokens_max=256", "--quality.measure_every=1",
                 "--model.threads=1", "--cache.arena=64MiB", "--cache.swap_max=256MiB", "--store.durability=step", f"--store.dir={folder}/store",
                 "--tenants.acme.tokens_per_minute=1000000", "--tenants.small.sessions_max=1", "--cache.prefix_share=0.25", f"--model.draft={MODEL}",
                 "--model.draft_arena=16MiB", *gpu(folder))
        with unittest.mock.patch.dict(os.environ, EBB_CA=cert):
            with Server(*flags) as before:  # of which a session comes back
                before.ebb("sessions", "create", "old", "--policy=streaming", "--budget=32")
                before.ebb("generate", "--quiet", "--session=old", "--max-tokens=16", "--ignore-eos", TEXT)
            with Server(*flags) as server:
                yield server


def tried(server, users):
    """End users `users` of the experiment that runs for acme, with a session each, of which they say how it went."""
    with ebb.Client(server.addr, tenant="acme", ca=os.environ["EBB_CA"]) as client, concurrent.futures.ThreadPoolExecutor(4) as threads:
        report = client.stubs.methods()["ReportOutcome"]

        def one(user):
            with client.create_session(end_user=f"user-{user}") as session:
                for _ in session.generate(TEXT, max_tokens=48, ignore_eos=True, seed=user):
                    pass
                whose = [("x-ebb-tenant", "acme")]
                report(inference_pb2.ReportOutcomeRequest(session=session.name, score=(user % 10) / 10), metadata=whose)
                report(inference_pb2.ReportOutcomeRequest(session=session.name, thumb_up=user % 3 != 0), metadata=whose)
        list(threads.map(one, users))


def work(server):
    """Something of everything that the panels show."""
    ebb = server.ebb
    ebb("bench", "serve", "--clients=4", "--requests=12", "--prompt-tokens=48", "--max-tokens=48", "--warm-up=0", "--policy=h2o", "--budget=64")
    ebb("--tenant=acme", "generate", "--quiet", "--max-tokens=16", "--ignore-eos", TEXT)
    ebb("sessions", "create", "tale", "--policy=streaming", "--budget=32")
    ebb("generate", "--quiet", "--session=tale", "--max-tokens=48", "--ignore-eos", TEXT)
    ebb("policy", "set", "tale", "--policy=h2o", "--budget=24")
    ebb("edit", "tale", "80", "82", " a cellar")
    ebb("fork", "tale", "branch")
    ebb("generate", "--quiet", "--session=branch", "--max-tokens=16", "--ignore-eos", TEXT)
    ebb("experiment", "start", "trial", "--of=acme", "--arm=control=streaming", "--arm=h2o=h2o", "--budget=64", "--units-min=20", "--units-planned=100")
    tried(server, range(60))
    ebb("sessions", "create", "there", "--model=gpu", "--policy=h2o", "--budget=16")
    ebb("generate", "--quiet", "--session=there", "--max-tokens=12", "--ignore-eos", "once")
    ebb("save", "tale")
    ebb("restore", "tale", "again")
    ebb("sessions", "create", "tale", check=1)  # it exists
    ebb("--tenant=small", "sessions", "create", "only")
    ebb("--tenant=small", "sessions", "create", "second", check=1)  # over its quota
    for name in ("large", "larger", "largest"):  # for which others leave
        ebb("sessions", "create", name, "--policy=full", "--budget=8000")
        ebb("generate", "--quiet", f"--session={name}", "--max-tokens=4", "--ignore-eos", TEXT)
    ebb("generate", "--quiet", "--session=large", "--max-tokens=4", "--ignore-eos", TEXT)  # and which comes back


class Dashboards(unittest.TestCase):
    def test_they_are_what_the_script_writes(self):
        done = subprocess.run([sys.executable, "-B", FOLDER / "generate.py", "--check"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(DASHBOARDS), 4)

    @unittest.skipIf(npm.missing("typescript", "@grafana/schema"), npm.missing("typescript", "@grafana/schema"))
    def test_they_are_of_grafanas_types(self):
        schema = "./node_modules/@grafana/schema/dist/esm/raw"
        given = []
        for uid, dashboard in DASHBOARDS.items():
            # Annotations are left out: of their queries the type has Grafana's own alone, not a data source's.
            dashboard = {**dashboard, "annotations": {}}
            given.append({"name": uid, "type": "Dashboard", "module": f"{schema}/dashboard/x/dashboard_types.gen", "value": dashboard})
        for uid, panel in panels():  # the dashboard's type has any options; each panel's own has its options
            folder = f"{schema}/composable/{panel['type']}/panelcfg/x"
            (module,) = (ROOT / "tests/e2e" / folder).glob("*.d.ts")
            given.append({"name": f"{uid} / {panel['title']}", "type": "Options", "module": f"{folder}/{module.name.removesuffix('.d.ts')}",
                          "value": panel["options"], "partial": True})  # Grafana puts in what is missing
        dashboard, lines = given[0], next(each for each in given if "timeseries" in each["module"])
        given += [{**dashboard, "name": "wrong 1", "value": {**dashboard["value"], "refreshes": "30s"}},
                  {**lines, "name": "wrong 2", "value": {"legend": {"placement": "below"}}}]
        problems = npm.type_problems(given)
        for wrong in ("wrong 1: refreshes: ", "wrong 2: legend.placement: "):
            self.assertTrue(any(problem.startswith(wrong) for problem in problems), f"{wrong}is not noticed: {problems}")
        self.assertEqual([problem for problem in problems if not problem.startswith("wrong")], [])

    def test_every_panel_says_what_it_shows_and_of_which_servers(self):
        for uid, panel in panels():
            with self.subTest(dashboard=uid, panel=panel["title"]):
                self.assertTrue(panel["description"].endswith("."))
                self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])
                for target in panel["targets"]:
                    self.assertRegex(target["expr"], r'job=~"\$job"')
                    # A counter only as a rate, over the interval that fits the picture.
                    self.assertEqual(len(re.findall(r"(?<!:)\b\w+_(?:total|sum|count|bucket)\{", target["expr"])),
                                     target["expr"].count("[$__rate_interval]"))

    def test_variables_are_used_where_they_stand(self):
        for uid, dashboard in DASHBOARDS.items():
            named = {each["name"] for each in dashboard["templating"]["list"]} - {"datasource"}
            used = set(re.findall(r'"\$(?!__)(\w+)"', " ".join(target["expr"] for of, panel in panels() if of == uid for target in panel["targets"])))
            self.assertEqual(named, used, uid)
        self.assertEqual({uid: [each["name"] for each in dashboard["templating"]["list"][3:]] for uid, dashboard in DASHBOARDS.items()},
                         {"ebb-service": ["model"], "ebb-eviction": ["model", "policy"], "ebb-experiments": ["experiment", "arm"],
                          "ebb-tenants": ["model", "tenant"]})

    def test_red_is_what_an_alert_is_about(self):
        limits = {panel["title"]: [(step["color"], step["value"]) for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
                  for _, panel in panels() if "thresholds" in panel["fieldConfig"]["defaults"]}
        rules = RULES.read_text(encoding="utf-8")
        for title, rule in (("Sample ratio", "ebb_experiment_sample_ratio_p < 0.001"), ("Pages reserved", "ebb:pages_reserved:ratio > 0.95"),
                            ("File descriptors", "process_open_fds / process_max_fds > 0.8"), ("GPU up", "ebb_gpu_up == 0"),
                            ("Worker busy with one thing", "ebb_worker_busy_seconds > 120"), ("Leaked pages", 'state=~"free|owned"}) > 0'),
                            ("Speed of burning the error budget", "ratio_rate1h > 14.4 * 0.001")):
            with self.subTest(title):
                self.assertIn(rule, rules)
                steps = limits.pop(title)
                colours = dict((value, colour) for colour, value in steps)
                number = float(rule.split()[2 if "*" in rule else -1])
                if " < " in rule or "== 0" in rule:  # red below
                    self.assertEqual(steps[0], ("red", None))
                    self.assertEqual(colours[1 if "== 0" in rule else number], "green")
                else:
                    self.assertEqual((steps[0], colours[number or 1]), (("green", None), "red"))
        self.assertEqual(limits, {"Error budget left": [("red", None), ("orange", 0), ("green", 0.25)]}, "the promise is broken below 0")

    def test_every_panel_is_in_its_picture(self):
        for uid, dashboard in DASHBOARDS.items():
            picture = PICTURES.joinpath(f"{uid}.svg").read_text(encoding="utf-8")
            missing = [panel["title"] for panel in dashboard["panels"] if f">{html.escape(panel['title'])}<" not in picture]
            self.assertEqual(missing, [], f"{uid}: draw it again, dashboards_test.py --draw")

    def test_panels_have_a_place_of_their_own(self):
        for uid, dashboard in DASHBOARDS.items():
            taken = set()
            for panel in dashboard["panels"]:
                at = panel["gridPos"]
                cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
                self.assertFalse(cells & taken, f"{uid}: {panel['title']} covers another panel")
                self.assertLessEqual(at["x"] + at["w"], 24)
                taken |= cells
            ids = [panel["id"] for panel in dashboard["panels"]]
            self.assertEqual(len(ids), len(set(ids)))

    @unittest.skipUnless(Prometheus.installed(), "prometheus is not installed")
    def test_every_query_returns_data(self):
        with busy_server() as server, Prometheus(server.http, RULES) as prometheus:
            eventually(lambda: prometheus.query("ebb_build_info"), "prometheus does not scrape the server")  # before anything counts
            work(server)
            left = {query: where for where, query in queries()}  # one that stands twice is asked once
            self.assertGreater(len(left), 80)

            def answered():
                server.ebb("--tenant=small", "sessions", "create", "second", check=1)  # the first began a series; a rate is of further ones
                for query in list(left):
                    if any(math.isfinite(value) for _, value in prometheus.query(query)):
                        del left[query]
                return not left

            eventually(answered, lambda: "no data:\n" + "\n".join(f"{where}: {query}" for query, where in left.items()))
            self.models_have_what_is_chosen_by_model(prometheus)
            for query, least in (("sum(ebb_completion_tokens_total)", 12 * 48), ("sum(ebb_evicted_tokens_total)", 12 * 32),
                                 ("sum(ebb_shadow_tokens_total)", 1), ("sum(ebb_gpu_replays_total)", 1), ("sum(ebb_policy_changes_total)", 1)):
                eventually(lambda: prometheus.query(query)[0][1] >= least, f"{query} stays below {least}")


    def models_have_what_is_chosen_by_model(self, prometheus):
        """A query heeds $model exactly where a model beside the main one has series of its own."""
        theirs = {labels["__name__"] for labels, _ in prometheus.query('count by (__name__) ({model="gpu"})')}
        self.assertIn("ebb_kv_pages_limit", theirs)
        for uid, panel in panels():
            for target in panel["targets"]:
                for name, matchers in re.findall(r"\b((?:ebb|process)_\w+)\{([^}]*)\}", target["expr"]):
                    self.assertEqual('model=~"$model"' in matchers, name in theirs, f"{uid} / {panel['title']}: {name}")


def draw(seconds=120, step=2):
    """Writes the pictures: the test's work, conversations of changing policies, and an experiment, while Prometheus looks on."""
    sys.path.insert(0, str(FOLDER))
    import draw as pen
    with busy_server() as server, Prometheus(server.http, RULES) as prometheus, concurrent.futures.ThreadPoolExecutor(2) as threads:
        eventually(lambda: prometheus.query("ebb_build_info"), "prometheus does not scrape the server")
        begin, over = time.time(), threading.Event()

        def converse():
            for policy, clients in itertools.cycle((("h2o", 4), ("streaming", 2), ("tova", 6), ("snapkv", 3))):
                if over.wait(2):  # bursts, so that what comes and goes is seen
                    return
                server.ebb("bench", "serve", f"--clients={clients}", f"--requests={2 * clients}", "--prompt-tokens=96", "--max-tokens=48", "--warm-up=0",
                           f"--policy={policy}", "--budget=96")

        def go_on():
            work(server)
            for round_ in itertools.count(1):
                if over.wait(4):
                    return
                tried(server, range(60 * round_, 60 * round_ + 12))
                for drafts in ("--ngram", "--draft-model=ebb-tiny"):
                    server.ebb("generate", "--quiet", "--session=tale", "--max-tokens=32", "--ignore-eos", drafts, TEXT)
                server.ebb("generate", "--quiet", "--max-tokens=16", "--ignore-eos", "--policy=h2o", "--budget=128", TEXT * 4)  # begins as the last one
                server.ebb("policy", "set", "tale", f"--policy={('streaming', 'h2o', 'tova')[round_ % 3]}", "--budget=24")
                server.ebb("edit", "tale", "80", "82", " a cellar")
                server.ebb("--tenant=small", "sessions", "create", "second", check=1)
                server.ebb("--tenant=small", "generate", "--quiet", "--session=only", "--max-tokens=16", "--ignore-eos", TEXT)
        running = [threads.submit(converse), threads.submit(go_on)]
        concurrent.futures.wait(running, timeout=seconds, return_when=concurrent.futures.FIRST_EXCEPTION)
        over.set()
        for each in running:
            each.result()

        def ranged(query):
            found = prometheus.range(plain(query, "10s"), moments[0], moments[-1], step)
            return [({**labels, "instance": "ebbd"}, series) for labels, series in found]  # its port was one of this day
        moments = [begin + step * i for i in range(seconds // step + 1)]
        for uid, dashboard in DASHBOARDS.items():
            picture = pen.drawing(dashboard, moments, lambda query: prometheus.query(plain(query)), ranged,
                                  f"{seconds // 60} minutes of the built-in model on one thread, drawn by deploy/grafana/draw.py of Prometheus' answers to the panels' "
                                  "queries. Grafana draws them otherwise.")
            PICTURES.joinpath(f"{uid}.svg").write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(draw() if "--draw" in sys.argv[1:] else unittest.main(verbosity=2))
