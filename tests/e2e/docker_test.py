#!/usr/bin/env python3
"""The image of `make image-test`, and docker/compose.yaml, by a real Docker daemon: the commands of docs/how-to/run-with-docker.md, README.md and
docs/how-to/put-a-proxy-in-front.md as they stand, but for what would compile in the image.

Redis, HAProxy and Prometheus are Debian's, in images of the names that the compose file has, as no registry is asked; they run with the users and
commands of the registry's. Grafana, of which Debian has none, is left out.
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import unittest

from binaries import BIN, MODEL, ROOT
from built_image_test import IMAGE, STALE
import docker_daemon
from patience import PATIENCE, eventually

DOCKER_PAGE = ROOT / "docs/how-to/run-with-docker.md"
PROXY_PAGE = ROOT / "docs/how-to/put-a-proxy-in-front.md"
PROMPT = "It was a dark and stormy night"
STAND_INS = {  # service: program, what the registry's image says, a folder of its user's
    "redis": ("redis-server", ("WORKDIR /data", "VOLUME /data"), [("data", 999)]),
    "haproxy": ("haproxy", ("USER 99:99", "WORKDIR /var/lib/haproxy",
                            'ENTRYPOINT ["haproxy", "-W", "-db"]', 'CMD ["-f", "/usr/local/etc/haproxy/haproxy.cfg"]'), [("var/lib/haproxy", 99)]),
    "prometheus": ("prometheus", ("USER 65534:65534", "WORKDIR /prometheus", "VOLUME /prometheus", 'ENTRYPOINT ["prometheus"]',
                                  'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]'), [("prometheus", 65534)])}
V2 = shutil.which("docker") is not None and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
COMPOSE = "docker compose" if V2 else "docker-compose"
WHY_NOT = (docker_daemon.why_not() or (None if IMAGE.exists() else f"there is no image at {IMAGE}: make image-test")
           or (f"{IMAGE} is older than build/bin/{STALE}, so that it has another one: make image-test" if STALE else None))


def commands(page, begins):
    """Those of a page's blocks for a shell that begin so."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if re.match(begins, line)]


def only(found):
    (one,) = found
    return one


def shell(command, cwd=ROOT, check=True, **environment):
    """What a command for a shell says on stdout; on both, where it need not succeed."""
    done = subprocess.run(["bash", "-euc", command], cwd=cwd, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE)
    if not check:
        return done.returncode, done.stdout + done.stderr
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def inspect(container, path):
    return json.loads(shell(f"docker inspect --format '{{{{json {path}}}}}' {container}"))


def get(port, path):
    """What a port of loopback answers without TLS."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def said():
    """What all containers are doing, for a message."""
    return shell("docker ps --all; "
                 "for each in $(docker ps --all --quiet); do docker inspect --format '{{.Name}}:' $each; docker logs --tail 5 $each 2>&1; done")


def serves(*client):
    """Whether the server that `ebb` is told takes calls, as it is after a while."""
    command = [BIN / "ebb", *client, "health"]
    eventually(lambda: subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode == 0, lambda: f"no server for {client}\n{said()}")


def generated(*client):
    """What `ebb`, of this machine, is answered by the server that it is told."""
    return shell(shlex.join(map(str, [BIN / "ebb", *client, "generate", "--quiet", "--max-tokens=48", PROMPT])))


def setUpModule():
    if WHY_NOT:
        raise unittest.SkipTest(WHY_NOT)
    try:
        unittest.enterModuleContext(docker_daemon.Daemon())
    except docker_daemon.Daemon.NotHere as error:
        raise unittest.SkipTest(str(error)) from error
    name = only(commands(DOCKER_PAGE, "docker load "))
    shell(name if IMAGE == ROOT / "build/image/ebb.tar" else f"docker load -i {shlex.quote(str(IMAGE))}")


class Docker(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        # What the one before left; what the last one leaves goes with the daemon.
        shell("docker ps --all --quiet | xargs --no-run-if-empty docker rm --force; docker volume ls --quiet | xargs --no-run-if-empty docker volume rm")

    def may_do_little(self, container, user):
        """By what the kernel says of its first process, not Docker."""
        process = pathlib.Path("/proc", str(inspect(container, ".State.Pid")))
        status = dict(re.findall(r"^(\w+):\s*(.*)$", (process / "status").read_text(), re.MULTILINE))
        self.assertEqual(set(status["Uid"].split() + status["Gid"].split()), {str(user)}, status["Name"])
        self.assertEqual({status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}, {"0" * 16}, status["Name"])
        self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"), status["Name"])
        root = only(re.findall(r"^\d+ \d+ \S+ \S+ / (\S+)", (process / "mountinfo").read_text(), re.MULTILINE))
        self.assertEqual(root.split(",")[0], "ro", status["Name"])

    def healthy(self, container):
        """By the image's own check, the first of which comes ten seconds after the start."""
        eventually(lambda: inspect(container, ".State.Health.Status") == "healthy", lambda: f"it is not healthy: {inspect(container, '.State.Health')}")

    def only_loopback_listens(self):
        for table in ("tcp", "tcp6"):
            rows = [line.split() for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]]
            self.assertEqual({row[1].split(":")[0] for row in rows if row[3] == "0A"} - {"0100007F"}, set(), table)

    def stopped(self, container, command):
        shell(command)
        self.assertEqual(inspect(container, ".State.ExitCode"), 0)
        self.assertIn('"event":"stopped"', shell(f"docker logs {container} 2>&1"))


class Run(Docker):
    """docker run."""

    def test_a_server_and_its_sessions_over_a_stop(self):
        build, run, generate, stop = commands(DOCKER_PAGE, "docker (build .*-t ebb |run --name|exec|stop)")
        self.assertRegex(build, "^docker build ")
        shell(run)
        serves()
        self.assertGreater(len(shell(generate)), 48)
        self.may_do_little("ebb", 65532)
        self.only_loopback_listens()
        self.assertIn("\nebb_build_info{", get(7701, "/metrics"))
        for path in ("/", "/etc/ebb", "/tmp"):
            self.assertRegex(shell(f"docker exec ebb touch {path}/x", check=False)[1], "Read-only file system")
        shell("docker exec ebb ebb sessions create tour --policy=streaming --budget=32")
        for again in ("docker start ebb", f"docker rm ebb && {run}"):  # the same container, and another one with its volume
            self.stopped("ebb", stop)
            shell(again)
            serves()
            self.assertIn("sessions/tour", shell("docker exec ebb ebb --json sessions"), again)
            self.assertGreater(len(shell(f"docker exec ebb ebb generate --quiet --session=tour --max-tokens=48 '{PROMPT}'")), 48)

    def test_sessions_outlive_a_container_that_is_killed(self):
        self.assertIn("`-e EBB_STORE_DURABILITY=step`", DOCKER_PAGE.read_text(encoding="utf-8"))
        run = only(commands(DOCKER_PAGE, "docker run --name"))
        shell(re.sub(" ebb$", " -e EBB_STORE_DURABILITY=step ebb", run))
        serves()
        shell("docker exec ebb ebb sessions create tour")
        shell("docker kill ebb && docker start ebb")
        serves()
        self.assertIn("sessions/tour", shell("docker exec ebb ebb --json sessions"))

    def test_what_runs_in_the_foreground(self):
        os.makedirs(f"{self.folder}/models")
        shutil.copy(MODEL, f"{self.folder}/models/llama.gguf")
        os.makedirs(f"{self.folder}/tls")
        shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=ebb -addext subjectAltName=DNS:localhost "
              "-keyout tls/server.key -out tls/server.pem", cwd=self.folder)
        shell(only(re.findall(r"`(chown 65532 \S+)`", DOCKER_PAGE.read_text(encoding="utf-8"))), cwd=self.folder)
        plain, tls = ("--addr=127.0.0.1:7700",), ("--addr=localhost:7700", f"--ca={self.folder}/tls/server.pem")
        found = [*commands(ROOT / "README.md", "docker run "), *commands(DOCKER_PAGE, "docker run --rm --read-only ")]  # all but those with a GPU
        self.assertEqual(len(found), 3)
        for command in found:
            client = tls if "EBB_TLS" in command else plain
            with self.subTest(command):
                running = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                try:
                    serves(*client)
                    self.assertGreater(len(generated(*client)), 48)
                finally:
                    running.send_signal(signal.SIGTERM)  # which docker hands on
                    log = running.communicate(timeout=PATIENCE)[0]
                self.assertEqual(running.returncode, 0, log)
                self.assertEqual("EBB_LOG_LEVEL=warn" in command, '"level":"info"' not in log, log)


@unittest.skipIf(shutil.which(COMPOSE.split()[0], path=docker_daemon.PATH) is None, "there is no docker compose (Debian: docker-compose)")
@unittest.skipUnless(all(shutil.which(each[0], path=docker_daemon.PATH) for each in STAND_INS.values()), "redis-server, haproxy or prometheus is not installed")
class Up(Docker):
    """docker compose up, in a copy of what it reads."""

    def setUp(self):
        super().setUp()
        text = (ROOT / "docker/compose.yaml").read_text(encoding="utf-8")
        for service, (program, changes, folders) in STAND_INS.items():
            docker_daemon.stand_in(only(re.findall(rf"^    image: (\S*{service}:\S+)$", text, re.MULTILINE)), program, *changes, folders=folders)
        for each in ("docker", "deploy"):
            shutil.copytree(ROOT / each, f"{self.folder}/{each}", ignore=lambda *_: ["ebb.pem", "node_modules"])
        if COMPOSE == "docker-compose":  # Debian's, 1.29, which the Compose Specification's `name` is too new for
            pathlib.Path(self.folder, "docker/compose.yaml").write_text(re.sub(r"(?m)^name: ebb$", "", text))
        self.compose = f"{COMPOSE} -p ebb -f docker/compose.yaml"

    def up(self, command, services):
        """A page's command, of these services."""
        self.assertRegex(command, r"docker compose -f docker/compose.yaml .*up -d --build$")
        shell(command.replace("docker compose -f docker/compose.yaml", self.compose).replace(" --build", f" {services}"), cwd=self.folder)

    def container(self, service):
        return shell(f"docker ps --quiet --filter label=com.docker.compose.service={service}").strip()

    def watched(self, servers):
        """Prometheus sees so many servers, and that they are up."""
        def up():
            with contextlib.suppress(OSError):  # it starts
                found = json.loads(get(9090, "/api/v1/targets?state=active"))["data"]["activeTargets"]
                return [each["health"] for each in found] == ["up"] * servers
        eventually(up, lambda: f"not {servers} targets are up: {get(9090, '/api/v1/targets')}\n{said()}")

    def complete(self, **body):
        """An answer of the OpenAI port, by way of HAProxy. A session's server is chosen by its name. Who is told to try again does."""
        trust = ssl.create_default_context(cafile=f"{self.folder}/docker/ebb.pem")
        headers = {"content-type": "application/json", **({"x-ebb-session": body["ebb"]["session"]} if "ebb" in body else {})}

        def answer():
            with contextlib.closing(http.client.HTTPSConnection("localhost", 7742, timeout=PATIENCE, context=trust)) as connection:
                connection.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "temperature": 0, "max_tokens": 24, **body}), headers)
                given = connection.getresponse()
                text = given.read().decode()
            if given.headers["x-should-retry"] == "true":
                return None
            self.assertEqual(given.status, 200, text)
            return json.loads(text)
        found = eventually(answer, lambda: f"no answer\n{said()}")
        return found["choices"][0]["text"], found["usage"]["ebb"]["session_tokens"]

    def test_a_server_then_two_that_share_sessions(self):
        self.up(only(commands(DOCKER_PAGE, r"docker compose .*yaml up")), "ebb prometheus")
        serves()
        self.assertGreater(len(generated()), 48)
        pages, size = map(int, re.search(r'ebb_cache_config_info\{pages="(\d+)",page_bytes="(\d+)"', get(7701, "/metrics")).groups())
        self.assertLessEqual(pages * size, 1 << 30, "half of mem_limit")
        self.watched(1)  # while there is no ebb-1
        rules = [rule["name"] for group in json.loads(get(9090, "/api/v1/rules"))["data"]["groups"] for rule in group["rules"]]
        shipped = re.findall(r"(?m)^ +- (?:alert|record): (\S+)$", (ROOT / "deploy/prometheus/ebb.rules.yaml").read_text(encoding="utf-8"))
        self.assertEqual(sorted(rules), sorted(shipped))
        self.assertGreater(len(rules), 20)

        for command in commands(PROXY_PAGE, "openssl req .*ebb.pem|chmod .*ebb.pem"):
            shell(command, cwd=self.folder)
        self.up(only(commands(DOCKER_PAGE, "EBB_STORE_REDIS=")), "ebb ebb-1 redis haproxy prometheus")
        serves()
        through = ("--addr=localhost:7743", f"--ca={self.folder}/docker/ebb.pem")
        serves(*through)
        self.assertGreater(len(generated(*through)), 48)
        self.assertGreater(len(self.complete()[0]), 24)
        self.watched(2)
        users = {"ebb": 65532, "ebb-1": 65532, "redis": 999, "haproxy": 99, "prometheus": 65534}
        containers = {name: self.container(name) for name in users}
        for name, user in users.items():
            self.may_do_little(containers[name], user)
        self.only_loopback_listens()
        for name in ("ebb", "ebb-1"):
            self.healthy(containers[name])

        # What a session says after its server was stopped is what one says whose server was not.
        undisturbed = [self.complete(ebb={"session": "undisturbed"}) for _ in range(2)]
        begun = self.complete(ebb={"session": "tour"})
        self.assertEqual(begun, undisturbed[0])
        there = only([name for name in ("ebb", "ebb-1") if "sessions/tour" in shell(f"docker exec {containers[name]} ebb --json sessions")])
        self.stopped(containers[there], f"cd {self.folder} && {self.compose} --profile proxy stop {there}")
        self.assertEqual(self.complete(ebb={"session": "tour"}), undisturbed[1])


if __name__ == "__main__":
    if WHY_NOT or docker_daemon.inside():
        sys.exit(unittest.main(verbosity=2))
    sys.exit(docker_daemon.within(__file__))
