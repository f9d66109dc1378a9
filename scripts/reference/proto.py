"""Reads our own .proto files into plain objects: services, messages and enums with the comments above them.

Knows the part of proto3 that this repository uses. Anything else stops the run with file and line, so that nothing is left out of
the reference in silence.
"""
import re
from dataclasses import dataclass, field

TOKEN = re.compile(r'(?P<space>[ \t]+)|(?P<line>\n)|//(?P<comment>[^\n]*)|"(?P<text>(?:[^"\\\n]|\\.)*)"|'
                   r"(?P<word>[A-Za-z_][\w.]*|-?\d[\w.]*)|(?P<mark>[{}()\[\]<>=;:,])")


@dataclass
class Token:
    kind: str
    text: str
    line: int
    comment: str = ""  # the lines of // directly above


@dataclass
class Field:
    name: str
    type: str
    number: int
    comment: str
    label: str = ""  # optional, repeated
    oneof: str = ""
    options: dict = field(default_factory=dict)


@dataclass
class Message:
    name: str
    comment: str
    fields: list = field(default_factory=list)
    oneofs: dict = field(default_factory=dict)  # name: comment


@dataclass
class Enum:
    name: str
    comment: str
    values: list = field(default_factory=list)  # (name, number, comment)


@dataclass
class Rpc:
    name: str
    request: str
    response: str
    request_stream: bool
    response_stream: bool
    comment: str


@dataclass
class Service:
    name: str
    comment: str
    rpcs: list = field(default_factory=list)


@dataclass
class File:
    services: list = field(default_factory=list)
    types: list = field(default_factory=list)  # messages and enums in the order of the file


class Parser:
    def __init__(self, path, text):
        self.path = path
        self.tokens = list(self.scan(text))
        self.at = 0

    def fail(self, line, what):
        raise SystemExit(f"{self.path}:{line}: {what}")

    def scan(self, text):
        at, line, comment, line_has_token, blank = 0, 1, [], False, True
        while at < len(text):
            match = TOKEN.match(text, at)
            if not match:
                self.fail(line, f"cannot read {text[at:at + 20]!r}")
            at, kind = match.end(), match.lastgroup
            if kind == "line":
                if blank:
                    comment = []  # a comment that a blank line follows belongs to nobody
                line, line_has_token, blank = line + 1, False, True
            elif kind == "comment":
                if line_has_token:
                    self.fail(line, "a comment stands above what it explains, not behind it")
                comment.append(match["comment"].removeprefix(" ").rstrip())
                blank = False
            elif kind != "space":
                yield Token(kind, match[kind], line, "\n".join(comment))
                comment, line_has_token, blank = [], True, False
        yield Token("end", "", line)

    def peek(self):
        return self.tokens[self.at]

    def take(self, *wanted):
        token = self.tokens[self.at]
        if wanted and token.text not in wanted:
            self.fail(token.line, f"expected {' or '.join(wanted)}, found {token.text!r}")
        self.at += 1
        return token

    def skip_statement(self):
        while self.take().text != ";":
            pass

    def file(self):
        result = File()
        while self.peek().kind != "end":
            token = self.take("syntax", "package", "import", "option", "service", "message", "enum")
            if token.text == "service":
                result.services.append(self.service(token.comment))
            elif token.text == "message":
                result.types += self.message(token.comment)
            elif token.text == "enum":
                result.types.append(self.enum(token.comment))
            else:
                self.skip_statement()
        return result

    def service(self, comment):
        service = Service(self.take().text, comment)
        self.take("{")
        while (token := self.take("rpc", "}")).text != "}":
            name = self.take().text
            request, request_stream = self.rpc_type()
            self.take("returns")
            response, response_stream = self.rpc_type()
            self.take(";")
            service.rpcs.append(Rpc(name, request, response, request_stream, response_stream, token.comment))
        return service

    def rpc_type(self):
        self.take("(")
        name = self.take().text
        stream = name == "stream"
        if stream:
            name = self.take().text
        self.take(")")
        return name, stream

    def message(self, comment):
        """The message, and then the enums inside it under their full names."""
        message = Message(self.take().text, comment)
        enums = []
        self.take("{")
        while (token := self.take()).text != "}":
            if token.text == "oneof":
                name = self.take().text
                message.oneofs[name] = token.comment
                self.take("{")
                while (member := self.take()).text != "}":
                    message.fields.append(self.field(member, name))
            elif token.text == "reserved":
                self.skip_statement()
            elif token.text == "enum":
                enums.append(self.enum(token.comment))
            elif token.text in ("message", "extensions", "option"):
                self.fail(token.line, f"'{token.text}' inside a message is not read")
            else:
                message.fields.append(self.field(token, ""))
        for enum in enums:
            for each in message.fields:
                if each.type == enum.name:
                    each.type = f"{message.name}.{enum.name}"
            enum.name = f"{message.name}.{enum.name}"
        return [message] + enums

    def field(self, first, oneof):
        label = first.text if first.text in ("optional", "repeated") else ""
        kind = self.take().text if label else first.text
        if kind == "map":
            self.take("<")
            key = self.take().text
            self.take(",")
            kind = f"map<{key}, {self.take().text}>"
            self.take(">")
        name = self.take().text
        self.take("=")
        number = int(self.take().text)
        options = self.options() if self.peek().text == "[" else {}
        self.take(";")
        return Field(name, kind, number, first.comment, label, oneof, options)

    def options(self):
        """[(key) = { default: "1" choices: "a" choices: "b" }] becomes {"default": ["1"], "choices": ["a", "b"]}."""
        values = {}
        self.take("[")
        self.take("(")
        self.take()
        self.take(")")
        self.take("=")
        self.take("{")
        while (name := self.take()).text != "}":
            self.take(":")
            value = self.take()
            text = value.text
            while value.kind == "text" and self.peek().kind == "text":  # adjacent strings are one
                text += self.take().text
            values.setdefault(name.text, []).append(text)
        self.take("]")
        return values

    def enum(self, comment):
        enum = Enum(self.take().text, comment)
        self.take("{")
        while (token := self.take()).text != "}":
            self.take("=")
            enum.values.append((token.text, int(self.take().text), token.comment))
            self.take(";")
        return enum


def read(path):
    return Parser(path, path.read_text(encoding="utf-8")).file()
