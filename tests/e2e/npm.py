"""What `scripts/setup test` installs from npm beside this file, and what is asked of it."""
import json
import pathlib
import re
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
MODULES = HERE / "node_modules"


def program(name):
    """The path of a program that a package brings, or None where it is not installed."""
    path = MODULES / ".bin" / name
    return str(path) if path.exists() else None


def missing(*packages):
    """What a test that needs `packages` says when it is skipped; None where they are there, and node to run them."""
    if shutil.which("node") is None:
        return "there is no node"
    whole = (MODULES / ".package-lock.json").exists()  # npm writes it last
    lacking = [name for name in packages if not whole or not (MODULES / name).is_dir()]
    return f"not installed: {', '.join(lacking)} (scripts/setup test)" if lacking else None


def too_old_for(package):
    """What a test says when it is skipped, as node is older than a package needs, which is installed all the same. Some say so
    and run; ask of those that do not."""
    wants = json.loads((MODULES / package / "package.json").read_text()).get("engines", {}).get("node", "")
    least = re.fullmatch(r">=\s*v?(\d+)[.\d]*", wants)
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if least and int(version.lstrip("v").split(".")[0]) < int(least[1]):
        return f"{package} needs node {wants}, and this is {version}"
    return None


def type_problems(given):
    """What check_types.mjs says of [{name, type, module, value, partial}]: a line per problem."""
    done = subprocess.run(["node", HERE / "check_types.mjs"], input=json.dumps(given), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
