#!/usr/bin/env python3
"""The readers behind scripts/docs: what they take from a source, and what they refuse to pass over in silence; and what is written. And that the
page of log lines has all of them, and that what is shipped has one version."""
import contextlib
import io
import re
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from reference import generated, pages, proto, reasons  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]

PROTO = """syntax = "proto3";

// Serves.
//
// Well.
service S {
  // Streams.
  rpc Get(A) returns (stream B);
}

// A thing.
message A {
  // Its name.
  optional string name = 1;
  // Belongs to nobody.

  oneof what {
    // Of b.
    B b = 2 [(key) = { default: "1" choices: "x" choices: "y" help: "a" "b" }];
  }
  map<uint32, float> bias = 3;
  repeated uint32 ids = 4;
}

message B {}

enum E {
  E_UNSPECIFIED = 0;
  // First.
  E_ONE = 1;
}
"""


def parse(text):
    return proto.Parser("a.proto", text).file()


class Proto(unittest.TestCase):
    def test_reads_services_with_shape_and_comment(self):
        service = parse(PROTO).services[0]
        self.assertEqual((service.name, service.comment), ("S", "Serves.\n\nWell."))
        rpc = service.rpcs[0]
        self.assertEqual((rpc.name, rpc.request, rpc.response, rpc.request_stream, rpc.response_stream, rpc.comment),
                         ("Get", "A", "B", False, True, "Streams."))

    def test_reads_fields_of_every_form(self):
        fields = {field.name: field for field in parse(PROTO).types[0].fields}
        self.assertEqual((fields["name"].label, fields["name"].type, fields["name"].comment), ("optional", "string", "Its name."))
        self.assertEqual((fields["b"].oneof, fields["b"].comment), ("what", "Of b."))
        self.assertEqual(fields["b"].options, {"default": ["1"], "choices": ["x", "y"], "help": ["ab"]})
        self.assertEqual((fields["bias"].type, fields["bias"].number), ("map<uint32, float>", 3))
        self.assertEqual((fields["ids"].label, fields["ids"].comment), ("repeated", ""))

    def test_a_comment_before_an_empty_line_belongs_to_nobody(self):
        self.assertEqual(parse(PROTO).types[0].oneofs, {"what": ""})

    def test_reads_enums(self):
        self.assertEqual(parse(PROTO).types[2].values, [("E_UNSPECIFIED", 0, ""), ("E_ONE", 1, "First.")])

    def test_stops_at_what_it_does_not_know(self):
        for text in ("message A { message B {} }", "message A { string a = 1; } // why", "extend A { string a = 1; }",
                     "service S { rpc Get(A) returns (B) {} }", "message A { string a = 1 $ }"):
            with self.subTest(text), self.assertRaisesRegex(SystemExit, r"a\.proto:1: "):
                parse(text)


class Reasons(unittest.TestCase):
    def found(self, text):
        return list(reasons.of_text("a.cc", text))

    def test_reads_reason_and_code_of_every_form(self):
        self.assertEqual(self.found('return RefuseField(\n    "ONE", field, "(");'), [("ONE", "INVALID_ARGUMENT")])
        self.assertEqual(self.found('Refuse(absl::StatusCode::kNotFound, F("a, b", c), {.reason = "TWO", .field = f});'),
                         [("TWO", "NOT_FOUND")])
        self.assertEqual(self.found('constexpr char kReason[] = "THREE";\nRefuse(Code(e), m, {.reason = kReason});'),
                         [("THREE", None)])

    def test_leaves_out_comments_declarations_and_refusals_that_are_passed_on(self):
        self.assertEqual(self.found('// RefuseField("ONE", "a", "b");\n'
                                    "absl::Status Refuse(absl::StatusCode code, const Refusal& refusal);\n"
                                    "return Refuse(status.code(), longer, GetRefusal(status));"), [])

    def test_stops_at_a_reason_that_is_no_literal(self):
        for text in ("RefuseField(reason, field, what);", "Refuse(absl::StatusCode::kNotFound, m, {.reason = Name()});",
                     "Refuse(absl::StatusCode::kNotFound, m, made);"):
            with self.subTest(text), self.assertRaisesRegex(SystemExit, "a.cc:1: "):
                self.found(text)


def described(name, **more):
    words = dict.fromkeys(("summary", "when", "cost", "turns"), "Says so.")
    return {"name": name, **words, "equation": "keep[j] = 1", "origin": "A Paper", "paper": "", "observations": [], "parameters": [], **more}


class Policies(unittest.TestCase):
    def pages(self, **parts):
        return pages.policies([{"scorers": [], "modifiers": [], "allocations": [], **parts}], lambda part: "policies/x.h")

    def test_a_part_is_a_page_and_a_row_of_the_index(self):
        built = self.pages(modifiers=[described("m", paper="arXiv:2504.14051", observations=["keys_values"])])
        self.assertEqual(set(built), {"policies.md", "policies/m.md"})
        self.assertIn("| [m](policies/m.md) | Says so. |", built["policies.md"])
        for text in ("keep[j] = 1", "[policies/x.h](../../../policies/x.h) says the rest, and where it differs", "Looks at: `keys_values`",
                     "A Paper, [arXiv:2504.14051](https://arxiv.org/abs/2504.14051)"):
            self.assertIn(text, built["policies/m.md"])

    def test_a_parameter_shows_what_it_takes(self):
        number = {"name": "p", "help": "h", "default": 7, "min": 1, "max": 63, "whole": True, "odd": True, "choices": []}
        form = {**number, "default": 1, "min": 0, "max": 1, "odd": False, "choices": ["drop", "keep"]}
        page = self.pages(allocations=[described("a", parameters=[number, form])])["policies/a.md"]
        self.assertIn("| `p` | h | 7 | [1, 63], odd |", page)
        self.assertIn("| `p` | h | keep | drop, keep |", page)

    def test_stops_where_two_parts_would_share_a_page(self):
        with self.assertRaisesRegex(SystemExit, "one name"):
            self.pages(modifiers=[described("x")], allocations=[described("x")])


class Pages(unittest.TestCase):
    def test_a_cell_survives_what_tables_are_made_of(self):
        self.assertEqual(pages.cell("a | b\n*c*"), "a \\| b \\*c\\*")

    def test_types_of_the_page_are_links(self):
        page = pages.api({"session": parse(PROTO)})
        self.assertIn("### S.Get\n\n[A](#a) → stream of [B](#b) (server streaming)\n\nStreams.\n", page)
        self.assertIn("| 1 | `name` | optional `string` | Its name. |", page)
        self.assertIn("| 1 | `E_ONE` | First. |", page)


class Generated(unittest.TestCase):
    def settle(self, files, check):
        """The exit code and what was said."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), mock.patch.object(generated, "ROOT", self.root):
            return generated.settle(files, check, "make it"), said.getvalue().splitlines()

    def test_what_differs_is_written_or_removed_or_only_named(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "old").write_text("old")
        (self.root / "gone").write_text("gone")
        (self.root / "same").write_text("same")
        files = {"folder/new": "new", "old": "young", "gone": None, "same": "same", "never": None}
        stale = [f"{name} is stale: run make it, and commit what it writes" for name in ("folder/new", "old", "gone")]
        self.assertEqual(self.settle(files, check=True), (1, stale))
        self.assertEqual(sorted(path.name for path in self.root.iterdir()), ["gone", "old", "same"], "a check writes nothing")
        self.assertEqual(self.settle(files, check=False), (0, ["folder/new written", "old written", "gone removed"]))
        self.assertEqual({path.name: path.read_text() for path in self.root.rglob("*") if path.is_file()}, {"new": "new", "old": "young", "same": "same"})
        self.assertEqual(self.settle(files, check=True), (0, []))


class Versions(unittest.TestCase):
    """Everything that is shipped has one version."""
    WHERE = {"CMakeLists.txt": r"^project\(ebb VERSION (\S+) ", "deploy/helm/ebb/Chart.yaml": r"^(?:version|appVersion): (\S+)$", "docker/Dockerfile": r"^ARG VERSION=(\S+)$",
             "client/python/pyproject.toml": r'^version = "(.*)"$', "client/node/package.json": r'^  "version": "(.*)",$'}

    def test_are_equal(self):
        found = {path: re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE) for path, pattern in self.WHERE.items()}
        (version,) = found["CMakeLists.txt"]
        self.assertEqual(found, {path: [version] * (2 if path.endswith("Chart.yaml") else 1) for path in self.WHERE})


class LogPage(unittest.TestCase):
    """docs/reference/log.md has every event of the server's log with its fields, and none that there is not."""
    CALL = re.compile(r"\b(?:LogDebug|LogInfo|LogWarn|LogError|WriteLog)\(")
    # Whose first argument is the event of a line that the function logs.
    NAMED_BY_CALLER = {"event": re.compile(r'\bCount\("([a-z_]+)"')}

    def arguments(self, text, at):
        depth, end = 1, at
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        return text[at:end]

    def said(self):
        events = {}
        for path in sorted((ROOT / "server").rglob("*.cc")):
            text = path.read_text(encoding="utf-8")
            for call in self.CALL.finditer(text):
                arguments = self.arguments(text, call.end())
                fields = set(re.findall(r'\{\s*"([a-z0-9_]+)",', arguments))
                named = re.search(r'"([a-z_]+)"', arguments.split("{")[0])
                caller = self.NAMED_BY_CALLER.get(arguments.split(",")[0].strip())
                names = [named[1]] if named else caller.findall(text) if caller else []
                for name in names:
                    events.setdefault(name, set()).update(fields)
        return events

    def test_has_every_event_and_field(self):
        page = (ROOT / "docs/reference/log.md").read_text(encoding="utf-8")
        calls, others = page.split("## Every call")[1].split("## Other events")
        cells = [[re.findall(r"`([a-z0-9_]+)`", cell) for cell in line.split("|")[1:]] for line in others.splitlines() if line.startswith("| `")]
        told = {event: set(row[2]) for row in cells for event in row[0]}
        told["rpc"] = {name for line in calls.splitlines() if line.startswith("| `") for name in re.findall(r"`([a-z_]+)`", line.split("|")[1])}
        self.assertGreater(len(told), 20)
        self.assertEqual(told, self.said())


if __name__ == "__main__":
    unittest.main(verbosity=2)
