#!/usr/bin/env python3
"""The documentation does what it says: its commands and its files, run as they stand, against a real server.

A command in a block of `sh` that is neither run here nor named in SKIPPED fails, so that none is forgotten. What measured is run by
measurements_test.py.
"""
import contextlib
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from binaries import BIN, ROOT, Server
from measurements_test import measures
from pages import OTHERS, PAGES, VARIABLE, blocks, commands, fences, parts, spans
import python_package
import reflection

import ebb
from google.protobuf import descriptor_pool, json_format

sys.path.insert(0, str(ROOT / "scripts"))
from reference import proto  # noqa: E402

# Commands that are not run here, each with the test that does what they do, or with what they need that is not at hand.
SKIPPED = {
    r"make demo$": "a stage of CI",
    r"make test$": "this",
    r"build/bin/ebbd( --log\.level warn &|$| --listen localhost:7700 --auth| --openai\.listen | --model | --store\.dir | --config ebb\.yaml$)":
        "servers, which never end: those of this test stand for them, and their flags are read by --print-config",
    r"build/bin/ebb evictions( |$)": "cli_test.py, with an end: some of them never do",
    r"build/bin/ebb watch ": "cli_test.py, with an end: it never does",
    r"grpcurl -cacert ": "docs_test.py, SecurityPage: by the proto files, where reflection is off",
    r"build/bin/ebb (token|--token-file|--addr ebb\.example\.org:7700|--ca) |for name in |done$|openssl ": "docs_test.py, SecurityPage",
    r"build/bin/ebb experiment results h2o-at-96 --from ": "cli_test.py, of two servers",
    r"chmod a\+r ": "proxy_test.py, with a certificate of its own",
    r"client/python/|PYTHONPATH=": "python_client_test.py, hub_test.py and examples_test.py",
    r"npm install --prefix client/node$|node client/node/": "node_client_test.py",
    r"pip install ": "python_client_test.py, into a folder",
    r"deploy/grafana/generate\.py": "dashboards_test.py",
    r"sed .* > ebb\.rules\.yaml$": "docs_test.py, with what it makes for promtool",
    r"helm ": "chart_test.py: rendered and checked; there is no cluster to install into",
    r"sudo make image$": "make image-test, but for the stage that compiles; what that made is run by built_image_test.py, where it is there",
    r"docker |EBB_STORE_REDIS=\S+ EBB_STORE_DURABILITY=step docker ":
        "docker_test.py, where there are an image and a dockerd, but for what compiles in an image or needs a GPU; what these lines name is looked up here",
    r"curl -s http://127\.0\.0\.1:7702": "openai_test.py",
    r"python3 tests/support/make_models\.py ": "the build of the tests",
    r"cmake |ctest ": "the build",
    r"build/bin/ebb-lab golden FOLDER": "tests/golden/logits_test.cc, by the same code",
    r"ssh ": "another machine",
}
NOT_RUN = re.compile("|".join(SKIPPED))
# Of the pages whose commands measure or build, what does neither, with what it needs.
ELSEWHERE = {
    r"\./(run|ebb_gpu_check) ": "a GPU",
    r"(mkdir|cd|go|protoc|cp client/go/\S+) |\./chat |for file in ": "Go",
    r"for on in |done$": "the line between them",
    r"build/bin/ebbd ": "as for the others, its flags are read by --print-config",
    r"export PYTHONPATH=": "python_client_test.py",
    r"sudo apt-get install ": "a machine that lacks them",
}
NOT_LOOKED_UP = re.compile("|".join([*SKIPPED, *ELSEWHERE]))


# YAML of the pages that is no configuration of ebbd, with what reads it.
OTHER_YAML = {
    "docs/how-to/run-on-kubernetes.md": "chart_test.py",
    "docs/how-to/watch-with-grafana.md": "promtool",
}
EXPERIMENTS = "docs/how-to/compare-policies-on-real-traffic.md"


def server_of(words):
    """(flags, variables) of the ebbd that a command starts, itself or in a container; None for other commands."""
    if words[0] == "build/bin/ebbd":
        return [word for word in words[1:] if word != "&"], {}
    if words[:2] != ["docker", "run"]:
        return None
    image = max(at for at, word in enumerate(words) if word in ("ebb", "ebb-cuda", "ebb-rocm"))
    variables = dict(words[at + 1].split("=", 1) for at, word in enumerate(words[:image]) if word == "-e")
    return [f"--config={ROOT / 'docker/ebb.yaml'}", *words[image + 1:]], variables


def call_as_grpcurl(words, address, metadata=(), **credentials):
    """Asks what grpcurl would: reflection what there is, or the method that it names for an answer to its JSON, to nothing where it has none."""
    if words[-1] == "list":
        assert "ebb.v1.InferenceService" in reflection.services(address)
        return
    if words[-2] == "describe":
        service, method = words[-1].rsplit(".", 1)
        assert reflection.files(address, words[-1]).FindServiceByName(service).methods_by_name[method].input_type.fields
        return
    service, method = words[-1].split("/")
    request = descriptor_pool.Default().FindServiceByName(service).methods_by_name[method].input_type._concrete_class()
    if "-proto" in words:  # from which it would know the method
        files = reflection.compiled(ROOT / words[words.index("-import-path") + 1], words[words.index("-proto") + 1])
        assert files.FindServiceByName(service).methods_by_name[method].input_type.full_name == request.DESCRIPTOR.full_name
    json_format.Parse(words[words.index("-d") + 1] if "-d" in words else "{}", request)
    with ebb.Client(address, **credentials) as client:
        answer = client.stubs.methods()[method](request, metadata=metadata)
        list(answer if hasattr(answer, "__next__") else [])  # of a stream each message


def call_as_curl(words, address):
    """Sends what `curl -H HEADER -d BODY URL` would; an answer that is no success throws."""
    name, value = words[words.index("-H") + 1].split(": ")
    url = words[-1].replace("127.0.0.1:7701", address)
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(urllib.request.Request(url, words[words.index("-d") + 1].encode(), {name: value}), timeout=60).close()


class Commands(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_here(self, words, **environment):
        done = subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, 0, f"{shlex.join(map(str, words))}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def files(self, page):
        """What the page's commands read that is not in a clone: its own YAML."""
        yaml = self.folder / "ebb.yaml"
        yaml.write_text("".join(blocks(page, "yaml")))
        return {"ebb.yaml": yaml}

    def test_every_command_runs(self):
        ran = 0
        for page in PAGES:
            files = self.files(page)
            to_run = [words for words in commands(page) if not NOT_RUN.match(" ".join(words))]
            flags = [f"--config={files['ebb.yaml']}"] if ["build/bin/ebb", "reload"] in to_run else []
            with Server(*flags) if to_run else contextlib.nullcontext() as server:  # one for each page, as its reader has
                for words in to_run:
                    with self.subTest(page=page, command=shlex.join(words)):
                        ran += 1
                        if words[0] == "grpcurl":
                            call_as_grpcurl(words, server.addr)
                            continue
                        if words[0] == "curl":
                            call_as_curl(words, server.http)
                            continue
                        self.assertRegex(words[0], r"^build/bin/(ebb|ebbd|ebb-lab)$", "run it, or name it in SKIPPED")
                        program = BIN / pathlib.Path(words[0]).name
                        self.run_here([program, *(files.get(word, word) for word in words[1:])], EBB_ADDR=server.addr)
        self.assertGreater(ran, 10)

    def test_the_flags_of_every_server_are_taken(self):
        taken = 0
        for page in PAGES + OTHERS:
            files = self.files(page)
            for words in commands(page):
                server = server_of(words)
                if server is None:
                    continue
                with self.subTest(page=page, command=shlex.join(words)):
                    flags, variables = server
                    printed = self.run_here([BIN / "ebbd", *(files.get(flag, flag) for flag in flags), "--print-config"], **variables)
                    self.assertIn("listen: ", printed)
                    taken += 1
        self.assertGreater(taken, 10)

    def test_what_docker_is_told_is_there(self):
        arguments = set(re.findall(r"^ARG (\w+)", (ROOT / "docker/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
        compose = (ROOT / "docker/compose.yaml").read_text(encoding="utf-8")
        names = {name for given in re.findall(r"profiles: \[(.*)\]", compose) for name in given.split(", ")}
        told = {"docker build": 0, "docker compose": 0}
        for page in PAGES:
            for words in commands(page):
                variables = [word.split("=")[0] for word in itertools.takewhile(VARIABLE.match, words)]
                words = words[len(variables):]
                with self.subTest(page=page, command=shlex.join(words)):
                    after = {flag: [words[at + 1] for at, word in enumerate(words[:-1]) if word == flag] for flag in ("-f", "--build-arg", "--profile")}
                    if " ".join(words[:2]) in told:
                        told[" ".join(words[:2])] += 1
                        self.assertTrue(all((ROOT / name).is_file() for name in after["-f"]))
                        self.assertLessEqual({each.split("=")[0] for each in after["--build-arg"]}, arguments)
                        self.assertLessEqual(set(after["--profile"]), names)
                        self.assertTrue(all(f"${{{name}:-" in compose for name in variables), "compose asks for no such variable")
        self.assertTrue(all(told.values()), told)

    def test_the_stages_of_ci_are_as_told(self):
        stages = re.findall(r'^  "(\w+)\|(\d+)\|', (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertGreater(len(stages), 5)
        total = sum(int(budget) for _, budget in stages)
        told = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
        self.assertIn(f"in minutes: {', '.join(' '.join(stage) for stage in stages)}; {total} in all.", told)
        self.assertIn(f", {total} minutes in all.", (ROOT / ".ci/run").read_text(encoding="utf-8"))

    def test_no_block_hides(self):
        for page in PAGES + OTHERS:
            marks = re.findall(r"```|~~~", (ROOT / page).read_text(encoding="utf-8"))
            self.assertEqual(2 * len(fences(page)), len(marks), f"{page}: a block that this test does not see")

    def test_what_stands_for_the_others_is_there(self):
        lines = [" ".join(words) for page in PAGES for words in commands(page)]
        for pattern, by in SKIPPED.items():
            with self.subTest(pattern):
                self.assertTrue(any(re.match(pattern, line) for line in lines), "no page has such a line any more")
                for name in re.findall(r"\w+_test\.py", by):
                    self.assertTrue((ROOT / "tests/e2e" / name).exists(), name)
                for verb in re.findall(r"make ([a-z-]+)", by):
                    self.assertRegex((ROOT / "Makefile").read_text(encoding="utf-8"), rf"(?m)^{verb}:")

    def test_what_is_elsewhere_is_on_a_page(self):
        lines = [" ".join(words) for page in OTHERS for line in commands(page) for words in parts(line)]
        for pattern in ELSEWHERE:
            self.assertTrue(any(re.match(pattern, line) for line in lines), f"no page has such a line any more: {pattern}")

    def test_what_other_pages_run_is_there(self):
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        seen = 0
        for page in OTHERS:
            for words in itertools.chain.from_iterable(map(parts, commands(page))):
                if measures(words):
                    continue
                with self.subTest(page=page, command=shlex.join(words)):
                    if words[0] == "make":
                        self.assertRegex(makefile, rf"(?m)^{words[1]}:")
                    elif words[0] == "/usr/bin/python3":
                        self.assertTrue((ROOT / words[1]).exists())
                    else:
                        self.assertRegex(" ".join(words), NOT_LOOKED_UP, "look it up, or name it in ELSEWHERE")
                        continue
                    seen += 1
        self.assertGreater(seen, 10)

    def test_the_yaml_of_every_page_is_taken(self):
        taken = 0
        for page in PAGES + OTHERS:
            for block in blocks(page, "yaml") if page not in OTHER_YAML else ():
                with self.subTest(page=page, block=block):
                    path = self.folder / "block.yaml"
                    path.write_text(block)
                    self.run_here([BIN / "ebbd", "--config", path, "--print-config"])
                    taken += 1
        self.assertGreater(taken, 5)
        for page, by in OTHER_YAML.items():
            self.assertTrue(blocks(page, "yaml"), page)
            if by.endswith("_test.py"):
                self.assertIn(pathlib.Path(page).name, (ROOT / "tests/e2e" / by).read_text(encoding="utf-8"))

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (Debian: prometheus)")
    def test_prometheus_takes_the_yaml_of_its_page(self):
        page = "docs/how-to/watch-with-grafana.md"
        (block,) = blocks(page, "yaml")
        (self.folder / "prometheus.yml").write_text(block)
        (line,) = [line for text in blocks(page, "sh") for line in text.splitlines() if line.startswith("sed ")]
        self.run_here(["bash", "-ec", line.replace(" > ", f" > {self.folder}/")])
        links = re.findall(r"runbook_url: (.*)", (self.folder / "ebb.rules.yaml").read_text())
        self.assertGreater(len(links), 20)
        for link in links:
            self.assertRegex(link, r"^https://git\.example\.org/ebb/blob/main/docs/how-to/answer-alerts\.md#\w+$")
        self.assertIn("ebb.rules.yaml", self.run_here(["promtool", "check", "config", self.folder / "prometheus.yml"]))

    def test_the_file_of_experiments_is_taken(self):
        self.assertEqual([page for page in PAGES + OTHERS if blocks(page, "json")], [EXPERIMENTS], "run it")
        (block,) = blocks(EXPERIMENTS, "json")
        path = self.folder / "experiments.json"
        path.write_text(block)
        with Server(f"--experiments.file={path}") as server:
            running = server.ebb("experiment", "list")
            session = json.loads(server.ebb("--tenant=acme", "--json", "sessions", "create", "survey", "--end-user=5f2c9a"))
        for each in json.loads(block)["experiments"]:
            self.assertIn(each["name"], running)
        self.assertIn("name", session)

    def test_the_yaml_of_the_page_sets_every_key_it_shows(self):
        page = "docs/how-to/configure-the-server.md"
        shown = [line for line in "".join(blocks(page, "yaml")).splitlines() if re.match(r" +\w+: \S", line)]
        self.assertGreater(len(shown), 5)
        printed = self.run_here([BIN / "ebbd", "--config", self.files(page)["ebb.yaml"], "--print-config"])
        for line in shown:
            key, value = line.split("#")[0].strip().split(": ")
            with self.subTest(key):
                self.assertRegex(printed, rf"(?m)^ +{key}: {re.escape(value)} +# .*/ebb\.yaml:\d+$")

    def test_the_python_of_a_page_runs(self):
        for page, says in (("README.md", "cellar"), ("docs/how-to/python.md", "BUDGET_TOO_SMALL policy.trigger.budget")):
            with self.subTest(page), Server() as server:
                program = "\n".join(blocks(page, "python")).replace("127.0.0.1:7700", server.addr)
                self.assertIn(says, self.run_here([sys.executable, "-c", program], PYTHONPATH=python_package.FOLDER))


@unittest.skipIf(shutil.which("openssl") is None, "there is no openssl")
class SecurityPage(unittest.TestCase):
    """What docs/how-to/secure-the-server.md makes, makes and shows, in a folder of its own, against servers that ask for it."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "build").mkdir()
        (self.folder / "build/bin").symlink_to(BIN.resolve())

    def run_here(self, *lines, **environment):
        done = subprocess.run(["bash", "-euc", "\n".join(lines)], cwd=self.folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, f"{lines}\n{done.stdout}\n{done.stderr}")

    def lines(self):
        return [line for block in blocks("docs/how-to/secure-the-server.md", "sh") for line in block.replace("\\\n", " ").splitlines()]

    def make_secrets(self):
        """The page's tokens and certificates."""
        self.run_here(*(line for line in self.lines() if not re.match("build/bin/ebbd |build/bin/ebb (?!token )", line)))

    def test_every_command_runs(self):
        servers = [line for line in self.lines() if line.startswith("build/bin/ebbd ")]
        calls = [line for line in self.lines() if re.match("build/bin/ebb (?!token )", line)]
        self.make_secrets()
        for line in servers:
            self.run_here(f"{line} --print-config")
        self.assertGreater(len(calls), 2)
        file = {name: str(self.folder / name) for name in ("tokens", "ca.pem", "server.pem", "server.key")}
        for line in calls:
            shows_token = "--token-file" in line
            flags = ["--auth.mode=token", f"--auth.token_file={file['tokens']}"] if shows_token else ["--auth.mode=mtls", f"--tls.client_ca={file['ca.pem']}"]
            if "--ca" in line:
                flags += [f"--tls.cert={file['server.pem']}", f"--tls.key={file['server.key']}"]
            with self.subTest(line), Server(*flags) as server:
                address = server.addr.replace("127.0.0.1", "localhost")
                self.run_here(line.replace("ebb.example.org:7700", address), EBB_ADDR=address)

    def test_grpcurl_calls_by_the_proto_files(self):
        (words,) = [words for words in commands("docs/how-to/grpcurl.md") if "-proto" in words]
        self.make_secrets()
        file = {name: str(self.folder / name) for name in ("tokens", "ca.pem", "server.pem", "server.key")}
        self.assertEqual(words[words.index("-cacert") + 1], "ca.pem")
        name, header = words[words.index("-H") + 1].split(": ")
        token = (self.folder / "acme.token").read_text().strip()
        with Server("--auth.mode=token", f"--auth.token_file={file['tokens']}", f"--tls.cert={file['server.pem']}", f"--tls.key={file['server.key']}") as server:
            call_as_grpcurl(words, server.addr.replace("127.0.0.1", "localhost"), [(name, header.replace("$(cat acme.token)", token))], ca=file["ca.pem"])


class Sentences(unittest.TestCase):
    """Commands within sentences are of a program, a verb and flags that there are, by the page of the command line."""
    HELPS = dict(re.findall(r"^##+ (ebb[^\n]*)\n\n```text\n(.*?)^```$", (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
    IS_COMMAND = re.compile(r"(?:\w+=\S* )*(?:build/bin/)?(?:ebb|ebbd|ebb-lab)\s")
    NOT_BUILT = {"ebb doctor": "docs/explanation/not-built.md"}

    def flags(self, command):
        """{name: whether a value comes behind it}"""
        found = {}
        for names, behind in re.findall(r"^ +((?:-[\w.-]+(?:, ?)?)+)(?: (\S+))?", self.HELPS[command], re.MULTILINE):
            takes = behind != "" and not behind.startswith("(") and not behind.endswith(":")
            found.update((name, takes) for name in re.findall(r"-[\w.-]+", names))
        return found

    def problem(self, text):
        """What is wrong with a command, or None. Values, and words for which the program has a place, may be anything."""
        program, *words = itertools.dropwhile(VARIABLE.match, shlex.split(text))
        command = pathlib.Path(program).name
        known = self.flags(command)
        while words:
            word, *words = words
            name, equals, _ = word.partition("=")
            if word.startswith("-"):
                if name not in known:
                    return f"{command} has no {name}"
                words = words[1:] if known[name] and not equals and words and not words[0].startswith("-") else words
            elif f"{command} {word}" in self.HELPS:
                command += f" {word}"
                known.update(self.flags(command))
            elif "\nPositionals:\n" not in self.HELPS[command]:
                return f"{command} has no {word}"
        return None

    def test_each_command_is_one(self):
        seen = 0
        for page in PAGES + OTHERS:
            for text in filter(self.IS_COMMAND.match, spans(page)):
                seen += 1
                with self.subTest(page=page, command=text):
                    if self.NOT_BUILT.get(text) != page:
                        self.assertIsNone(self.problem(text))
        self.assertGreater(seen, 100)
        for text, page in self.NOT_BUILT.items():
            self.assertIn(text, spans(page))
            self.assertTrue(self.problem(text), f"{text} is there: take it off the page")

    def test_the_demo_says_what_to_try_next(self):
        told = re.search(r"^Try next:\n(.*?)^NEXT$", (ROOT / "scripts/demo").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]
        (server, *tips) = [line.split("  #")[0].strip() for line in told.splitlines()]
        self.assertTrue(server.endswith(" &") and server.startswith("build/bin/ebbd "), server)
        (console,) = [tip for tip in tips if tip.startswith("http://")]
        for command in [server.removesuffix(" &"), *(tip for tip in tips if tip != console)]:
            self.assertRegex(command, self.IS_COMMAND)
            self.assertIsNone(self.problem(command))
        listens = re.search(r"--server\.http_listen HOST:PORT\n.*?Default:\s+([\w.:]+\w)\.", self.HELPS["ebbd"], re.DOTALL)[1]
        self.assertEqual(console, f"http://{listens}/console")
        with Server() as running:
            page = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(console.replace(listens, running.http), timeout=60)
            self.assertIn("text/html", page.headers["Content-Type"])
            page.close()

    def test_what_is_none_is_noticed(self):
        for text, says in (("ebb doctor", "ebb has no doctor"), ("ebb sessions list all", "ebb sessions list has no all"), ("ebb --adr HERE health", "ebb has no --adr"),
                           ("build/bin/ebb-lab info FILE --sesions 1", "ebb-lab info has no --sesions"), ("EBB_ADDR=x ebb health -n 4", "ebb health has no -n"),
                           ("ebbd --modl FILE", "ebbd has no --modl"), ("ebb bench sreve", "ebb bench has no sreve")):
            self.assertTrue(self.IS_COMMAND.match(text), text)
            self.assertEqual(self.problem(text), says)
        for text in ("ebb --addr POD:7703 health readiness", "ebb-lab convert FOLDER -o FILE.gguf --type q8_0", "ebbd --listen=HERE --model FILE", "ebb --tls --ca --cert", "ebb"):
            self.assertIsNone(self.problem(text), text)


def rows_of(page, heading):
    """The cells of the first table behind a heading, by its first cell without backquotes and, where there is one, the budget in the next."""
    text = (ROOT / page).read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    lines = re.search(r"^\|.*?\n(?!\|)", text, re.MULTILINE | re.DOTALL)[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def words_of(seconds):
    """As pages say a time."""
    return f"{seconds // 60} minutes" if seconds >= 120 else f"{seconds} s"


class Connections(unittest.TestCase):
    """The table of what a connection may do has the numbers of server/transport_limits.cc, server/acceptor.h and the configuration."""
    SOURCE = (ROOT / "server/transport_limits.cc").read_text(encoding="utf-8")

    def number(self, text):
        """Of an expression of the source."""
        for name, value in {"kKiB": 1024, "kSecond": 1, "kMinute": 60, "std::numeric_limits<int>::max()": 1 << 31, "size_t": ""}.items():
            text = text.replace(name, str(value))
        self.assertRegex(text, r"^[\d{} *<]+$")
        return eval(text.replace("{", "(").replace("}", ")"))  # of digits and operators

    def constant(self, name, source=SOURCE):
        (text,) = re.findall(rf"^ *(?:constexpr )?\w+ {name} = (.*);", source, re.MULTILINE)
        return self.number(text)

    def test_each_row_is_as_set(self):
        fixed = {name: self.number(value) for name, value in re.findall(r"^    \{GRPC_ARG_(\w+), (.*)\},$", self.SOURCE, re.MULTILINE)}
        self.assertEqual(len(fixed), self.SOURCE.count("    {GRPC_ARG_"))
        (server,) = [each for each in proto.read(ROOT / "proto/ebb/config/v1/config.proto").types if each.name == "Server"]
        default = {field.name: "".join(field.options.get("default", [])) for field in server.fields}
        size = {name: default[name].replace("MiB", " MiB") for name in ("message_size_max", "plan_size_max")}
        time = {name: words_of(int(default[name][:-1]) * {"s": 1, "m": 60}[default[name][-1]]) for name in ("keepalive", "connection_age_max", "reader_patience")}
        self.assertEqual(len(set(size.values())), 1, "of the two the larger is told")
        self.assertEqual(default["new_connections_per_address"], "0", "any number")
        told = {
            "largest request that is received, and parsed": f"{size['plan_size_max']}: of every method the larger of `server.message_size_max` and `server.plan_size_max`",
            "largest request that is answered": f"`server.message_size_max`, {size['message_size_max']}; of PlanEviction `server.plan_size_max`",
            "compressed requests": {0: "none"}[fixed.pop("ENABLE_PER_MESSAGE_DECOMPRESSION")],
            "calls at once": f"{fixed.pop('MAX_CONCURRENT_STREAMS')} on a connection",
            "metadata of a call": f"{fixed.pop('MAX_METADATA_SIZE') // 1024} KiB",
            "buffers of all connections": f"{self.constant('kBufferBytes') >> 20} MiB, or {self.constant('kBufferedRequests')} of the largest request",
            "connections": f"as many as files, less {self.constant('files_left', (ROOT / 'server/acceptor.h').read_text(encoding='utf-8'))}",
            "connections of an address": f"`server.connections_per_address`, {int(default['connections_per_address']):,}; of IPv6 the first 64 bits",
            "connections that an address begins": "`server.new_connections_per_address` in a minute; any number, unless it is set",
            "silence after connecting": words_of(fixed.pop("SERVER_HANDSHAKE_TIMEOUT_MS")),
            "silence without calls": words_of(fixed.pop("MAX_CONNECTION_IDLE_MS")),
            "silence with calls": f"`server.keepalive`, {time['keepalive']}, and {words_of(self.constant('kKeepaliveTimeoutMax'))} more",
            "age of a connection": f"`server.connection_age_max`, {time['connection_age_max']} ± 10 %",  # which gRPC does by itself
            "a client's own pings": f"every {words_of(fixed.pop('HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS'))}, and "
                                    + {0: "only while it has calls"}[fixed.pop("KEEPALIVE_PERMIT_WITHOUT_CALLS")],
            "a reader that takes nothing": f"`server.reader_patience`, {time['reader_patience']}",
            "sharing the port, channelz": {0: "off"}[fixed.pop("ENABLE_CHANNELZ")],
        }
        rows = {name: value for name, value, _ in rows_of("docs/explanation/security.md", "## What a connection may do")}
        self.assertEqual(list(rows), list(told))
        for name, value in told.items():
            self.assertTrue(rows[name].strip("`").startswith(value.strip("`")), f"{name}: {rows[name]}, and the code has {value}")
            self.assertNotRegex(rows[name].strip("`")[len(value.strip("`")):], r"\d", f"{name}: a number that this test does not know")
        # "Calls that run are not cut, however long", and of pings the third that is too early ends the connection: abuse_test.py.
        self.assertEqual(fixed, {"MAX_CONNECTION_AGE_GRACE_MS": 1 << 31, "HTTP2_MAX_PING_STRIKES": 2}, "tell it in the table")


class WhatIsThere(unittest.TestCase):
    """The README's table of what is there has the counts and the names of the reference."""
    FAMILIES = {"llama": "Llama 2/3.x, Mistral", "qwen2": "Qwen 2/2.5/3", "qwen3": "Qwen 2/2.5/3", "qwen3moe": "Qwen 2/2.5/3 and its experts", "gemma2": "Gemma 2/3", "gemma3": "Gemma 2/3", "phi3": "Phi 3",
                "gptneox": "GPT-NeoX", "gptj": "GPT-J", "gpt2": "GPT-2", "opt": "OPT", "bloom": "BLOOM"}

    @classmethod
    def setUpClass(cls):
        cls.now = {name: (there, lacks) for name, there, lacks in rows_of("README.md", "## What is there, and what is not")}

    def names(self, page, heading):
        return [row[0].strip("`") for row in rows_of(f"docs/reference/{page}.md", f"## {heading}")]

    def test_models_are_those_of_the_page(self):
        there, lacks = self.now["models"]
        self.assertEqual(list(self.FAMILIES), self.names("models", "Families"), "say in the README that it is there")
        for words in self.FAMILIES.values():
            self.assertIn(words, there)
        formats = self.names("models", "Formats")
        plain = re.search(r"beside (F32), (F16) and (BF16),", there).groups()
        self.assertLess(set(plain), set(formats))
        self.assertIn(f"[{len(formats) - len(plain)} quantised types](docs/reference/models.md#formats)", there)
        self.assertIn(f"the IQ types but {' '.join(each for each in formats if each.startswith('IQ'))}", f"{lacks}.")

    def test_policies_are_those_of_the_page(self):
        there, _ = self.now["policies"]
        scorers, modifiers, allocations = (re.findall(r"\[(\w+)\]", " ".join(self.names("policies", heading))) for heading in ("Scorers", "Modifiers", "Allocations"))
        count, listed, rest = re.match(r"\[(\d+) scorers\]\(docs/reference/policies\.md\): ([^;]*); (.*)", there).groups()
        self.assertEqual((int(count), sorted(re.findall(r"`(\w+)`", listed))), (len(scorers), sorted(scorers)))
        self.assertEqual([name.lower() for name in re.match(r"(\w+) and (\w+);", rest).groups()], [name.replace("_", "") for name in modifiers])
        self.assertEqual(["uniform", *re.findall(r"`(\w+)`", re.search(r"budgets shared evenly, (.*)", rest)[1])], allocations)

    def test_the_cache_holds_what_the_api_has(self):
        (types,) = [each for each in proto.read(ROOT / "proto/ebb/v1/policy.proto").types if each.name == "KvType"]
        there, _ = self.now["cache"]
        self.assertEqual(there.split(";")[0].split(", "), [name.removeprefix("KV_TYPE_") for name, *_ in types.values[1:]])

    def test_machines_are_those_of_the_configuration(self):
        there, _ = self.now["machines"]
        plain = there.lower().replace("-512", "512")
        allowed = {row[0].strip("`"): re.findall(r"`(\w+)`", row[3] + "`") for row in rows_of("docs/reference/config.md", "## model")}
        self.assertGreater(len(allowed["model.isa"]), 5)
        for isa in allowed["model.isa"]:
            self.assertEqual(re.sub(r"scalar|avx2|avx512|vnni|amx|bf16", "", isa), "", "say in the README that it is there")
            for part in re.findall(r"scalar|avx2|avx512|vnni|amx|bf16", isa):
                self.assertIn(part, plain)
        self.assertIn(re.search(r"`model\.worker: (\w+)`", there)[1], allowed["model.worker"])


class Policies(unittest.TestCase):
    """The README's table has the numbers of the pages that measured them, and the papers of the policies' own."""

    def test_quality_is_as_measured(self):
        measured = {(policy, budget): cells for policy, budget, *cells in rows_of("docs/benchmarks/quality.md", "## All scorers, modifiers and budgets")}
        shown = rows_of("README.md", "## Which policy")
        self.assertGreater(len(shown), 5)
        for policy, _, _, _, _, divergence, *recalled in shown:
            with self.subTest(policy):
                prefill, stream, again, _, kl, *_ = (cell.split(" ")[0] for cell in measured[policy, "-" if policy == "full" else "256"])
                self.assertEqual([divergence, *recalled], [kl, prefill, stream, again])

    def test_papers_are_those_of_the_pages(self):
        for policy, _, paper, *_ in rows_of("README.md", "## Which policy"):
            with self.subTest(policy):
                name, _, setting = policy.partition(":")
                (origin,) = re.findall(r"^## Paper\n\n(.*)$", (ROOT / f"docs/reference/policies/{name}.md").read_text(encoding="utf-8"), re.MULTILINE)
                link = re.search(r"\[arXiv:(\S+)\](\(\S+\))", origin)
                self.assertEqual(paper, f"[{link[1]}]{link[2]}{', reversed' if setting else ''}" if link else "")

    def test_cost_is_as_measured(self):
        now = (ROOT / "docs/benchmarks/policy_cost.md").read_text(encoding="utf-8").split("\n## Now\n")[1].split("\n## ")[0]
        blocks = re.findall(r"^perf05\.gguf .* batch 1, .*\n((?:.+\n)+)", now, re.MULTILINE)
        measured = dict(re.findall(r"^(\w\S*) +\+([\d.]+) %", "".join(blocks), re.MULTILINE))
        for policy, _, _, _, cost, *_ in rows_of("README.md", "## Which policy"):
            with self.subTest(policy):
                name = policy.split(":")[0]
                self.assertEqual(cost.removesuffix(" %"), {"full": "", "streaming": "0: the others are compared with it"}.get(name, measured.get(name, "not measured")))

    def test_memory_is_as_reckoned(self):
        for policy, _, _, memory, *_ in rows_of("README.md", "## Which policy"):
            info = subprocess.run([BIN / "ebb-lab", "info", ROOT / "models/ebb-tiny-q8_0.gguf", "--sessions=1",
                                   f"--budget={1024 if policy == 'full' else 256}"], capture_output=True, text=True, check=True).stdout
            (caches,) = re.findall(r"^caches +(\d+) bytes", info, re.MULTILINE)
            self.assertEqual(memory, f"{int(caches) / 1e6:.2f} MB", policy)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
