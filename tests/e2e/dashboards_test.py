#!/usr/bin/env python3
"""Every query of the dashboards is asked of a real Prometheus that scrapes a real server under load, and is answered with numbers."""
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from binaries import ROOT, Server
import npm
from patience import eventually
from prometheus import Prometheus

FOLDER = ROOT / "deploy/grafana"
DASHBOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((FOLDER / "dashboards").glob("*.json"))}
RULES = ROOT / "deploy/prometheus/ebb.rules.yaml"
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
    return [(where, re.sub(r"\$(job|instance|policy|tenant)\b", ".*", query.replace("$__rate_interval", "5m"))) for where, query in found]


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
    ebb("experiment", "start", "trial", "--of=acme", "--arm=control=streaming", "--arm=h2o=h2o", "--budget=64")
    ebb("--tenant=acme", "sessions", "create", "tried", "--end-user=ann")
    ebb("save", "tale")
    ebb("restore", "tale", "again")
    ebb("sessions", "create", "tale", check=1)  # it exists
    for name in ("large", "larger", "largest"):  # for which others leave
        ebb("sessions", "create", name, "--policy=full", "--budget=8000")
        ebb("generate", "--quiet", f"--session={name}", "--max-tokens=4", "--ignore-eos", TEXT)
    ebb("generate", "--quiet", "--session=large", "--max-tokens=4", "--ignore-eos", TEXT)  # and which comes back


class Dashboards(unittest.TestCase):
    def test_they_are_what_the_script_writes(self):
        done = subprocess.run([sys.executable, "-B", FOLDER / "generate.py", "--check"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(DASHBOARDS), 3)

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
        folder = self.enterContext(tempfile.TemporaryDirectory())
        cert, key = f"{folder}/server.pem", f"{folder}/server.key"  # one panel is about certificates
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                        "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
        self.enterContext(unittest.mock.patch.dict(os.environ, EBB_CA=cert))
        flags = (f"--tls.cert={cert}", f"--tls.key={key}", "--quality.shadow_share=1", "--quality.shadow_tokens_max=256", "--quality.measure_every=1", "--model.threads=1", "--cache.arena=64MiB", "--cache.swap_max=256MiB",
                 "--store.durability=step", "--tenants.acme.tokens_per_minute=1000000")
        with Server(*flags) as server, Prometheus(server.http, RULES) as prometheus:
            eventually(lambda: prometheus.query("ebb_build_info"), "prometheus does not scrape the server")  # before anything counts
            work(server)
            left = {query: where for where, query in queries()}  # one that stands twice is asked once
            self.assertGreater(len(left), 80)

            def answered():
                for query in list(left):
                    if any(math.isfinite(value) for _, value in prometheus.query(query)):
                        del left[query]
                return not left

            eventually(answered, lambda: "no data:\n" + "\n".join(f"{where}: {query}" for query, where in left.items()))
            for query, least in (("sum(ebb_completion_tokens_total)", 12 * 48), ("sum(ebb_evicted_tokens_total)", 12 * 32),
                                 ("sum(ebb_shadow_tokens_total)", 1), ("sum(ebb_policy_changes_total)", 1)):
                eventually(lambda: prometheus.query(query)[0][1] >= least, f"{query} stays below {least}")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
