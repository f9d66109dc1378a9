"""The Python package as `client/python/install` makes it, in a folder that goes when the tests end."""
import atexit
import subprocess
import sys
import tempfile

from binaries import ROOT

_folder = tempfile.TemporaryDirectory()
atexit.register(_folder.cleanup)
FOLDER = _folder.name
subprocess.run([ROOT / "client/python/install", FOLDER], check=True)
sys.path.insert(0, FOLDER)
