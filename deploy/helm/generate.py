#!/usr/bin/env python3
"""Writes the chart's README.md and values.schema.json from the comments of its values.yaml and from config.proto, and copies rules and
dashboards to its files/, since a chart takes nothing from outside its folder.

    deploy/helm/generate.py            writes them
    deploy/helm/generate.py --check    writes nothing; exits 1 and names those that differ

Needs PyYAML (Debian: python3-yaml). A comment directly above a key documents it; braces at its end are JSON Schema beyond the type.
"""
import json
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/ebb"
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True
from forms import FORMS  # noqa: E402
from reference import generated, proto  # noqa: E402

# What templates/_helpers.tpl sets, so that the values may not.
CHARTS_OWN = {"server.listen", "server.http_listen", "server.health_listen", "server.drain_timeout", "openai.listen", "experiments.file", "model.path", "store.dir", "store.redis_password_file", "auth.token_file", "tls.cert",
              "tls.key", "tls.client_ca"}
SIZE, DURATION = r"^[0-9]+(KiB|MiB|GiB|TiB)?$", r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"


def key_schema(field):
    """Of one key of the server's configuration: the type, and the range where YAML has numbers."""
    options = {name: values[-1] if name != "choices" else values for name, values in field.options.items()}
    schema = {"description": options["help"]}
    if "choices" in options:
        return {**schema, "enum": options["choices"]}
    if options.get("kind") == "KIND_SIZE":
        return {**schema, "type": ["string", "integer"], "pattern": SIZE, "minimum": 0}
    if field.type == "google.protobuf.Duration":
        return {**schema, "type": "string", "pattern": DURATION}
    if field.type in ("uint32", "uint64", "double"):
        number = float if field.type == "double" else int
        return {**schema, "type": "number" if field.type == "double" else "integer",
                **{bound + "imum": number(options[bound]) for bound in ("min", "max") if bound in options}}
    return {**schema, "type": "boolean" if field.type == "bool" else "string"}


def config_schema():
    """Of the server's whole configuration, closed, without what the chart sets itself."""
    messages = {message.name: message for message in proto.read(ROOT / "proto/ebb/config/v1/config.proto").types if hasattr(message, "fields")}

    def of_message(name, path):
        fields = {field.name: f"{path}.{field.name}".lstrip(".") for field in messages[name].fields}
        return {"type": "object", "additionalProperties": False,
                "properties": {field.name: of_field(field, fields[field.name]) for field in messages[name].fields
                               if fields[field.name] not in CHARTS_OWN}}

    def of_field(field, path):
        if of_map := re.fullmatch(r"map<string, (\w+)>", field.type):
            return {"type": "object", "additionalProperties": of_message(of_map[1], path)}
        schema = of_message(field.type, path) if field.type in messages else key_schema(field)
        return {"type": "array", "items": schema} if field.label == "repeated" else schema

    return of_message("Config", "")


def json_schema(name, types):
    """Of a message of the API, or an enum, as protobuf's JSON has it under the names of the .proto files."""
    of_type = types[name]
    if hasattr(of_type, "values"):
        return {"enum": [value for value, number, _ in of_type.values if number]}

    def of_field(field):
        schema = json_schema(field.type, types) if field.type in types else {
            "string": {"type": "string"}, "bool": {"type": "boolean"}, "double": {"type": "number"}, "uint32": {"type": "integer", "minimum": 0},
            "uint64": {"type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+$"}}[field.type]
        return {"type": "array", "items": schema} if field.label == "repeated" else schema

    return {"type": "object", "additionalProperties": False, "properties": {field.name: of_field(field) for field in of_type.fields}}


def experiments_schema():
    """Of what experiments.file holds, each as StartExperiment takes it."""
    types = {each.name: each for file in ("experiment", "policy") for each in proto.read(ROOT / f"proto/ebb/v1/{file}.proto").types}
    return {"type": "array", "items": {**json_schema("ExperimentSpec", types), "required": ["name", "arms"]}}


def comment_above(lines, number):
    """The comment that ends on the line before `number`: (text, {JSON Schema})."""
    first = number
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    text = " ".join(line.lstrip().lstrip("# ") for line in lines[first:number])
    extra = re.search(r" (\{.*\})$", text)
    return (text[:extra.start()], json.loads(extra[1])) if extra else (text, {})


TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "seq": "array", "map": "object"}


def describe(node, lines, path=""):
    """Of a mapping of values.yaml: ([(path, default, comment)], its schema)."""
    rows, properties = [], {}
    for key, value in node.value:
        name = f"{path}.{key.value}" if path else key.value
        comment, extra = comment_above(lines, key.start_mark.line)
        kind = value.tag.rsplit(":", 1)[1]
        own = {**({"type": TYPES[kind]} if kind in TYPES else {}), **({"description": comment} if comment else {}), **extra}
        if name == "config":
            own = {"description": comment, **config_schema()}
        elif name == "experiments":
            own = {"description": comment, **experiments_schema()}
        elif name in FORMS:
            own = {"description": comment, **FORMS[name]}
        if kind == "map" and value.value and not comment:  # a section
            inner, schema = describe(value, lines, name)
            rows += inner
            own = {**own, **schema}
        elif not comment:
            raise SystemExit(f"deploy/helm/ebb/values.yaml: {name} has no comment")
        else:
            default = yaml.SafeLoader("").construct_document(value)
            rows.append((name, "" if default is None else json.dumps(default), comment))
        properties[key.value] = own
    return rows, {"type": "object", "additionalProperties": False, "properties": properties}


README = """<!-- Generated by deploy/helm/generate.py from values.yaml. Change it there. -->

# The chart `ebb`

A StatefulSet of `ebbd`, or a Deployment where a Redis has the sessions; a Service, a headless Service with a name for each pod, a
ConfigMap, a ServiceAccount without a token, a PodDisruptionBudget and a NetworkPolicy; where they are asked for a HorizontalPodAutoscaler
or KEDA's ScaledObject, a GRPCRoute with a BackendTLSPolicy, or an Ingress, a Certificate of cert-manager's, a Secret of tokens' digests, a claim for the model, a
ServiceMonitor, a PrometheusRule, dashboards, and objects of yours. [ci](ci) has values for a few kinds of cluster, and
[golden](../golden) what comes of them. How to use it is in
[run on Kubernetes](../../../docs/how-to/run-on-kubernetes.md). Values that are not listed are refused.

| value | default | what it sets |
| --- | --- | --- |
"""


def built():
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    rows, schema = describe(yaml.compose(text), text.splitlines())
    cell = lambda words: words.replace("|", "\\|")  # noqa: E731
    table = "".join(f"| `{name}` | {f'`{cell(default)}`' if default else ''} | {cell(comment)} |\n" for name, default, comment in rows)
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart ebb", **schema}
    # Helm hands its own and a parent chart's values down to the chart.
    schema["properties"]["global"] = {"type": "object"}
    copies = {f"files/dashboards/{path.name}": path.read_text(encoding="utf-8") for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
    gone = {f"files/dashboards/{path.name}": None for path in (CHART / "files/dashboards").glob("*.json")}
    rules = (ROOT / "deploy/prometheus/ebb.rules.yaml").read_text(encoding="utf-8")
    return {**gone, **copies, "files/ebb.rules.yaml": rules, "README.md": README + table, "values.schema.json": json.dumps(schema, indent=1) + "\n"}


def main():
    files = {f"deploy/helm/ebb/{name}": text for name, text in built().items()}
    return generated.settle(files, "--check" in sys.argv[1:], "deploy/helm/generate.py")


if __name__ == "__main__":
    sys.exit(main())
