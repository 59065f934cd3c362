"""The open Tofino compiler fits the program into both chips."""

import subprocess
from pathlib import Path

import p4_tools
import pytest
import tna_model

TARGETS = {"tofino": ("tna", 1), "tofino2": ("t2na", 2)}  # architecture, generation


def assembler(compiler: str) -> str:
    """bfas, which stands beside the compiler or is on the PATH."""
    beside = Path(compiler).with_name("bfas")
    return str(beside) if beside.exists() else p4_tools.find("bfas", "PASSING_BFAS")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_fits(target, tmp_path):
    compiler = p4_tools.find("p4c-barefoot", "PASSING_P4C_BAREFOOT")
    architecture, generation = TARGETS[target]
    options = ["--target", target, "--arch", architecture, f"-D__TARGET_TOFINO__={generation}", "-o", str(tmp_path)]
    run(compiler, *options, str(tna_model.PROGRAM))
    # The compiler may accept more stages than there are: what the assembler makes is what fits.
    folder = tmp_path / "pipe"
    run(assembler(compiler), "--target", target, "-o", str(folder), str(folder / "passing.bfa"))
    assert (folder / f"{target}.bin").stat().st_size > 0
