"""A real Prometheus on a free port, for tests that ask it."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request

from patience import PATIENCE, eventually

class Prometheus:
    """Scrapes `target` as job ebb every second and evaluates `rules` as often; use it in a with statement."""

    def __init__(self, target, rules):
        self.config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}, "rule_files": [str(rules)],
                       "scrape_configs": [{"job_name": "ebb", "static_configs": [{"targets": [target]}]}]}

    @staticmethod
    def installed():
        return shutil.which("prometheus") is not None

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self.folder.name)
        (folder / "prometheus.yml").write_text(json.dumps(self.config))  # JSON is YAML
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                                             "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log, cwd=folder,
                                            env={**os.environ, "GOMAXPROCS": "2"})
        try:
            # It names its port, and then takes a moment until it answers.
            self.url = eventually(self.listens, lambda: "prometheus does not listen:\n" + self.log.read_text())
            eventually(self.ready, lambda: "prometheus is not ready:\n" + self.log.read_text())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()  # its data is thrown away
        self.process.wait()
        self.folder.cleanup()

    def listens(self):
        if self.process.poll() is not None:
            raise AssertionError("prometheus ended:\n" + self.log.read_text())
        found = re.search(r'msg="Listening on" address=(\S+:\d+)', self.log.read_text())
        return found and f"http://{found[1]}"

    def ready(self):
        try:
            return self.get("/-/ready").startswith("Prometheus")
        except OSError:
            return False

    def get(self, path, **parameters):
        address = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(address, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def range(self, expression, start, end, step):
        """The series of a range query: [({label: value}, [(moment, number)])]."""
        found = json.loads(self.get("/api/v1/query_range", query=expression, start=start, end=end, step=step))["data"]["result"]
        return [(each["metric"], [(moment, float(value)) for moment, value in each["values"]]) for each in found]

    def query(self, expression):
        """The samples of an instant query: [({label: value}, number)]. A query that is no PromQL fails with Prometheus' words."""
        try:
            found = json.loads(self.get("/api/v1/query", query=expression))["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}\n{error.read().decode()}") from error
        return [(each["metric"], float(each["value"][1])) for each in found]
