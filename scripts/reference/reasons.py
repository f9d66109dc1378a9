"""Finds every refusal in the sources: its reason and the codes it comes with.

A reason is a literal: `Refuse(absl::StatusCode::kX, message, {.reason = "R", ...})` or `RefuseField("R", ...)`, which is
INVALID_ARGUMENT; or the file's `kReason`. What hides its reason otherwise stops the run.
"""
import re

FOLDERS = ("policies", "engine", "server")
CALL = re.compile(r"\b(Refuse|RefuseField)\(")
# Where a refusal is passed on with a longer message, the reason is that of another status.
PASSED_ON = re.compile(r"GetRefusal\(|refusal$")
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def code_name(camel):
    """kInvalidArgument becomes INVALID_ARGUMENT."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", camel.removeprefix("k")).upper()


def arguments(text, start):
    """The arguments of the call whose parenthesis is before `start`."""
    depth, parts, at = 0, [""], start
    while at < len(text):
        literal = LITERAL.match(text, at)
        piece = literal[0] if literal else text[at]
        at += len(piece)
        if not literal and piece in ")]}":
            depth -= 1
            if depth < 0:
                return [part.strip() for part in parts]
        if not literal and piece in "([{":
            depth += 1
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    raise ValueError("a call that never ends")


def without_comments(text):
    return re.sub(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*', lambda m: m[1] or "", text)


def of_text(path, text):
    """Yields (reason, code) of one source file; code is None where the source computes it."""
    text = without_comments(text)
    constant = re.search(r'\bkReason\[\] = "(\w+)"', text)
    for call in CALL.finditer(text):
        if re.search(r"absl::Status $", text[:call.start()]):
            continue  # the declaration
        parts = arguments(text, call.end())
        if call[1] == "RefuseField":
            code, reason = "INVALID_ARGUMENT", parts[0]
        else:
            literal = re.fullmatch(r"absl::StatusCode::(k\w+)", parts[0])
            code = code_name(literal[1]) if literal else None
            given = re.match(r"\{\.reason = ([^,}]+)", parts[2] if len(parts) > 2 else "")
            reason = given[1].strip() if given else parts[-1]
        if reason == "kReason" and constant:
            reason = f'"{constant[1]}"'
        if re.fullmatch(r'"[A-Z][A-Z0-9_]*"', reason):
            yield reason.strip('"'), code
        elif not PASSED_ON.search(reason):
            line = text[:call.start()].count("\n") + 1
            raise SystemExit(f"{path}:{line}: the reason of this refusal is no literal: {reason}")


def of_tree(root):
    """{reason: set of codes}"""
    found = {}
    for folder in FOLDERS:
        for source in sorted((root / folder).rglob("*.cc")) + sorted((root / folder).rglob("*.h")):
            path = source.relative_to(root).as_posix()
            if path == "policies/status.cc":
                continue  # what Refuse is
            for reason, code in of_text(path, source.read_text(encoding="utf-8")):
                found.setdefault(reason, set()).add(code)
    return found
