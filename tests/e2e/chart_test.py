#!/usr/bin/env python3
"""The Helm chart: its values, its schema and the server's configuration agree, and what it renders is what Kubernetes and ebbd take.

What has to be rendered needs `helm` on the PATH, which Debian does not have; those tests are skipped without it.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from binaries import BIN, ROOT, Server

try:
    import yaml
except ModuleNotFoundError:
    yaml = None

HELM = shutil.which("helm")
CHART = ROOT / "deploy/helm/ebb"
TEMPLATES = {path: path.read_text(encoding="utf-8") for path in sorted(CHART.glob("templates/**/*")) if path.is_file()}
CHARTS_OWN = {"server.listen", "server.http_listen", "server.drain_timeout", "model.path", "store.dir", "auth.token_file", "tls.cert", "tls.key",
              "tls.client_ca"}
ON = ("serviceMonitor.enabled=true", "prometheusRule.enabled=true", "prometheusRule.runbookBase=https://example.org/ebb/",
      "dashboards.enabled=true", "replicas=3", "model.file=llama.gguf", "model.existingClaim=models", "config.store.durability=drain",
      "config.tenants.acme.weight=3", "config.cache.sessions_max=1000000", "config.cache.arena=512MiB", "image.pullSecrets={registry}",
      "drain.timeoutSeconds=120", "ports.grpc=9700", "tolerations[0].key=gpu", "nodeSelector.disk=ssd", "commonLabels.team=serving")


def leaves(schema, path=""):
    """{path: schema} of the keys below which the schema names no further ones."""
    found = {}
    for key, inner in schema.get("properties", {}).items():
        name = f"{path}.{key}" if path else key
        found.update(leaves(inner, name) if "properties" in inner else {name: inner})
    return found


def objects(schema):
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from objects(inner)


@unittest.skipIf(yaml is None, "PyYAML is not installed (Debian: python3-yaml)")
class Values(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
        cls.schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def test_readme_and_schema_are_what_the_script_writes(self):
        done = subprocess.run([sys.executable, "-B", ROOT / "deploy/helm/generate.py", "--check"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_schema_is_closed(self):
        for schema in objects(self.schema):
            if schema.get("type") == "object" and schema != {"type": "object"}:  # Helm's own `global`
                self.assertIn("additionalProperties", schema, schema)

    def test_templates_use_every_value_and_no_other(self):
        used = {name for text in TEMPLATES.values() for name in re.findall(r"\.Values\.([\w.]+)", text)}
        # Sections that a template takes into a variable.
        used |= {f"image.{name}" for text in TEMPLATES.values() for name in re.findall(r"\$image\.(\w+)", text)}
        used |= {f"drain.{name}" for text in TEMPLATES.values() for name in re.findall(r"\$drain\.(\w+)", text)}
        known = {name for name in leaves(self.schema) if not name.startswith(("config.", "global"))} | {"config"}
        self.assertEqual(used - {"image", "drain"}, known)

    def test_config_is_the_servers(self):
        told = subprocess.run([BIN / "ebbd", "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
        keys = set(re.findall(r"--([a-z_]+(?:\.[a-z_]+)+)", told))  # but for those of a NAME
        self.assertGreater(len(keys), 20)
        known = {name.removeprefix("config.") for name, schema in leaves(self.schema).items()
                 if name.startswith("config.") and not schema.get("additionalProperties")}
        self.assertEqual(keys - CHARTS_OWN, known)
        self.assertIn("weight", self.schema["properties"]["config"]["properties"]["tenants"]["additionalProperties"]["properties"])


@unittest.skipUnless(HELM and yaml, "helm or python3-yaml is not installed: nothing is rendered")
class Rendered(unittest.TestCase):
    def helm(self, *arguments):
        return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=120)

    def render(self, *values):
        done = self.helm("template", "x", CHART, "--namespace=models", "--kube-version=1.29.0", *(f"--set={value}" for value in values))
        self.assertEqual(done.returncode, 0, done.stderr)
        return {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(done.stdout) if each}

    def test_lint(self):
        done = self.helm("lint", "--strict", CHART)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_objects(self):
        plain = {"ConfigMap/x", "NetworkPolicy/x", "PodDisruptionBudget/x", "Service/x", "Service/x-pods", "ServiceAccount/x", "StatefulSet/x",
                 "Pod/x-test"}
        self.assertEqual(set(self.render()), plain)
        more = {"ServiceMonitor/x", "PrometheusRule/x", "ConfigMap/x-ebb-service", "ConfigMap/x-ebb-eviction", "ConfigMap/x-ebb-tenants"}
        self.assertEqual(set(self.render(*ON)), plain | more)
        self.assertEqual(set(self.render("networkPolicy.enabled=false", "podDisruptionBudget.enabled=false")),
                         plain - {"NetworkPolicy/x", "PodDisruptionBudget/x"})

    def test_ebbd_takes_the_configuration(self):
        for values, says in (((), ("drain_timeout: 1m", "listen: 0.0.0.0:7700", "dir: /var/lib/ebb")),
                             (("store.enabled=false",), ('dir: ""',)),
                             (ON, ("listen: 0.0.0.0:9700", "path: /models/llama.gguf", "weight: 3", "sessions_max: 1000000", "drain_timeout: 2m",
                                   "durability: drain"))):
            text = self.render(*values)["ConfigMap/x"]["data"]["ebb.yaml"]
            with self.subTest(values=values), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(text)
                file.flush()
                clean = {name: value for name, value in os.environ.items() if not name.startswith("EBB_")}
                done = subprocess.run([BIN / "ebbd", "--config", file.name, "--print-config"], env=clean, capture_output=True, text=True,
                                      timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr + text)
                for line in says:
                    self.assertIn(line, done.stdout)

    def test_pods_may_do_little_and_have_time_to_drain(self):
        for values, grace in (((), 15 + 60 + 20 + 15), (ON, 15 + 120 + 20 + 15), (("terminationGracePeriodSeconds=300",), 300)):
            made = self.render(*values)
            pod = made["StatefulSet/x"]["spec"]["template"]["spec"]
            self.assertEqual(pod["terminationGracePeriodSeconds"], grace)
            for spec in (pod, made["Pod/x-test"]["spec"]):
                self.assertFalse(spec["automountServiceAccountToken"])
                self.assertTrue(spec["securityContext"]["runAsNonRoot"])
                (container,) = spec["containers"]
                self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                                "capabilities": {"drop": ["ALL"]}})
            (container,) = pod["containers"]
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                self.assertIn(container[probe]["httpGet"]["port"], ports)
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            claims = {claim["metadata"]["name"] for claim in made["StatefulSet/x"]["spec"].get("volumeClaimTemplates", ())}
            self.assertEqual(mounts, {volume["name"] for volume in pod["volumes"]} | claims)

    def test_labels_lead_to_the_pods(self):
        made = self.render(*ON)
        labels = made["StatefulSet/x"]["spec"]["template"]["metadata"]["labels"]
        for selector in (made["Service/x"]["spec"]["selector"], made["Service/x-pods"]["spec"]["selector"],
                         made["StatefulSet/x"]["spec"]["selector"]["matchLabels"], made["NetworkPolicy/x"]["spec"]["podSelector"]["matchLabels"],
                         made["PodDisruptionBudget/x"]["spec"]["selector"]["matchLabels"]):
            self.assertLessEqual(selector.items(), labels.items())
            self.assertFalse(selector.items() <= made["Pod/x-test"]["metadata"]["labels"].items(), "the test is no server")
        self.assertEqual(made["StatefulSet/x"]["spec"]["serviceName"], "x-pods")
        monitored = made["ServiceMonitor/x"]["spec"]["selector"]["matchLabels"]
        self.assertLessEqual(monitored.items(), made["Service/x-pods"]["metadata"]["labels"].items())
        self.assertFalse(monitored.items() <= made["Service/x"]["metadata"]["labels"].items(), "each pod is scraped once")
        self.assertEqual(made["ConfigMap/x-ebb-service"]["metadata"]["labels"]["grafana_dashboard"], "1")

    def test_another_configuration_is_another_pod(self):
        def checksum(*values):
            return self.render(*values)["StatefulSet/x"]["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        self.assertEqual(checksum(), checksum("replicas=2"))
        self.assertNotEqual(checksum(), checksum("config.log.level=warn"))
        self.assertEqual(checksum(), checksum("config.tenants.acme.weight=3"), "a running server takes it")

    def test_rules_and_dashboards_arrive_whole(self):
        made = self.render(*ON)
        for uid in ("ebb-service", "ebb-eviction", "ebb-tenants"):
            self.assertEqual(json.loads(made[f"ConfigMap/x-{uid}"]["data"][f"{uid}.json"]),
                             json.loads((ROOT / f"deploy/grafana/dashboards/{uid}.json").read_text()))
        rules = made["PrometheusRule/x"]["spec"]
        source = yaml.safe_load((ROOT / "deploy/prometheus/ebb.rules.yaml").read_text().replace("runbook_url: ", "runbook_url: https://example.org/ebb/"))
        self.assertEqual(rules, source)

    def test_what_helm_test_runs_passes(self):
        (container,) = self.render()["Pod/x-test"]["spec"]["containers"]
        with Server() as server:
            done = subprocess.run([*container["command"], *container["args"]], capture_output=True, text=True, timeout=120,
                                  env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "EBB_ADDR": server.addr})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("SERVING\n"))

    def test_the_values_of_the_page_are_taken(self):
        page = (ROOT / "docs/how-to/run-on-kubernetes.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(blocks), 2)
        for block in blocks:
            with self.subTest(block), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(block)
                file.flush()
                done = self.helm("template", "x", CHART, "--kube-version=1.29.0", "--values", file.name)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_bad_values_are_refused_with_what_is_wrong(self):
        for value, says in (("replica=2", "replica is not allowed"), ("config.server.listen=x", "listen is not allowed"),
                            ("config.scheduling.rows_max=0", "greater than or equal to 1"), ("config.cache.arena=big", "cache.arena"),
                            ("config.log.format=xml", "config.log.format"), ("image.tag=latest", "image.tag"),
                            ("terminationGracePeriodSeconds=50", "below the 110 that drain takes"),
                            ("model.file=a.gguf", "set model.existingClaim"),
                            ("store.enabled=false,config.store.durability=drain", "which needs store.enabled")):
            with self.subTest(value):
                done = self.helm("template", "x", CHART, "--kube-version=1.29.0", f"--set={value}")
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(says, done.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
