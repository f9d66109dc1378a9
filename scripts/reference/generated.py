"""Files that a script writes and the repository holds."""
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def settle(files, check, command):
    """`files` are {path from the repository's root: what it should hold, None where it should not be}. Writes or removes those that differ,
    or with `check` only names them and the `command` that writes them. Returns the exit code: 1 where `check` found one."""
    differ = False
    for name, text in files.items():
        path = ROOT / name
        if (path.read_text(encoding="utf-8") if path.exists() else None) == text:
            continue
        differ = True
        if check:
            print(f"{name} is stale: run {command}, and commit what it writes")
        elif text is None:
            path.unlink()
            print(f"{name} removed")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"{name} written")
    return 1 if check and differ else 0
