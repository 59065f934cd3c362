"""The P4 compiler and bmv2, if they are on this machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

P4 = Path(__file__).parents[3] / "p4"
V1MODEL = P4 / "v1model" / "passing.p4"


def find(name: str, variable: str) -> str:
    """The program's path: from the environment variable, or on the PATH. Skips the test if there is none."""
    path = shutil.which(os.environ.get(variable) or name)
    if path is None:
        pytest.skip(f"no {name}: put it on the PATH, or its path in {variable}")
    return path


def find_p4test() -> str:
    """Beside p4c-bm2-ss, where it is built, or on the PATH."""
    beside = Path(os.environ.get("PASSING_P4C", "p4c-bm2-ss")).with_name("p4test")
    return find(str(beside), "PASSING_P4TEST")


def compile_program(compiler: str, program: Path, *options: str) -> None:
    """Warnings fail as errors do."""
    done = subprocess.run([compiler, "--Werror", *options, str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
