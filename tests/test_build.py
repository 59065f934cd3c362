"""`pip install .` makes a new environment for each build. What was compiled in an earlier one must still count."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from support.pages import ROOT

ENVIRONMENT = ROOT / "build/check/wheel-environment"  # with what building takes
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]


def configure(build: Path, packages: Path) -> tuple[str, dict[Path, int]]:
    """As pip's next build does, with jaxlib and nanobind in a new folder. Returns the commands that compile, and the
    times of what they read of the packages."""
    (installed,) = ENVIRONMENT.glob("lib/python*/site-packages")
    shutil.copytree(installed / "nanobind", packages / "nanobind", copy_function=shutil.copyfile)
    shutil.copytree(installed / "jaxlib/include", packages / "jaxlib/include", copy_function=shutil.copyfile)
    (packages / "jaxlib/__init__.py").write_text("__version__ = 'any'")
    (build / "CMakeCache.txt").unlink(missing_ok=True)  # scikit-build-core does, when it runs from another place
    shutil.rmtree(build / "CMakeFiles", ignore_errors=True)
    source = ROOT / SETTINGS.get("cmake", {}).get("source-dir", ".")
    python = f"-DPython_EXECUTABLE={ENVIRONMENT}/bin/python"
    subprocess.run(
        ["cmake", "-S", source, "-B", build, "-G", "Ninja", python],
        env={**os.environ, "PYTHONPATH": str(packages)},
        check=True,
        timeout=200,
    )
    commands = subprocess.check_output(["ninja", "-C", build, "-t", "commands", "_native"], text=True)
    read = [path for package in ("jaxlib", "nanobind") for path in (build / package).rglob("*.[hc]*")]
    return commands, {path: path.stat().st_mtime_ns for path in read}


@pytest.mark.skipif(not ENVIRONMENT.exists(), reason="`bash tests/check.sh wheel` makes what building takes")
def test_the_next_build_compiles_nothing_again(tmp_path: Path) -> None:
    assert "{" in SETTINGS["build-dir"]  # it is kept, for each kind of Python by itself
    first = configure(tmp_path / "build", tmp_path / "first")
    assert first == configure(tmp_path / "build", tmp_path / "second")
    commands, times = first
    assert {path.name for path in times} >= {"ffi.h", "nanobind.h"}
    objects = re.findall(r"-o (\S+\.o)\b", commands)
    assert len(objects) > 50
    assert not [one for one in objects if one.startswith("CMakeFiles/")]  # which the next build begins with removing
