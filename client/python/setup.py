"""What pyproject.toml cannot say: building the package is running `install`, which generates the stubs from proto/."""
import os
import pathlib
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithStubs(build_py):
    def run(self):
        if self.editable_mode:
            raise SystemExit("ebb-client: an editable install has no place for generated stubs; use client/python/install FOLDER")
        install = pathlib.Path(__file__).resolve().parent / "install"
        subprocess.run([install, self.build_lib], env={**os.environ, "PYTHON": sys.executable}, check=True)


setup(cmdclass={"build_py": BuildWithStubs})
