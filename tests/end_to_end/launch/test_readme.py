"""Does what README.md tells its readers to do, as it is printed there: on two machines, and on one.

Only addresses are replaced. Programs in other pages run, too; tests/test_pages.py looks at what isn't a program.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs.bridge_cluster import BridgeCluster
from support.jobs.cluster import LIMIT_S, finish
from support.net.namespaces import missing
from support.pages import README, Block, blocks

FIRST = "10.0.0.1"  # the first machine's address in README.md


def block(language: str, part: str) -> str:
    """Returns the one block of README.md in this language that contains this part."""
    (found,) = (block.text for block in blocks(README) if block.language == language and part in block.text)
    return found


PROGRAM = block("python", "import jax_passing")
SWITCH, *HOSTS = block("bash", "jax-passing switch").splitlines()
(ONE_MACHINE,) = re.findall("`(jax-passing run .* train.py)`", README.read_text())
# tests/jax_passing/partitioning/test_plan.py runs the one that needs examples/models, and compares what it prints.
ALL_PROGRAMS = [
    pytest.param(one, marks=[pytest.mark.smoke] if one.text == PROGRAM else [])
    for one in blocks()
    if one.is_program and "from models " not in one.text
]
(WEIGHTS,) = re.findall("Both hosts find `(.*)`", README.read_text())
PRINTED = [f"rank {rank} of 2: {WEIGHTS}" for rank in (0, 1)]


@pytest.fixture(autouse=True)
def _readers_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a test into the folder with the program, with the environment of jax_passing activated, and no settings."""
    installed = Path(sys.executable).parent
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(installed), os.environ["PATH"]]))
    for name in list(os.environ):
        if name.startswith(("JAX_", "PYTHON", "XLA_")):
            monkeypatch.delenv(name)


def test_the_program_is_short() -> None:
    assert len(PROGRAM.splitlines()) <= 25


@pytest.mark.skipif(missing() is not None, reason=f"no network of our own: {missing()}")
def test_two_machines() -> None:
    with BridgeCluster("readme", 2) as cluster:

        def printed(text: str) -> str:
            return text.replace(FIRST, cluster.address(0))

        # `exec`: what is stopped must be the switch, not a shell around it.
        switch = cluster.start(0, ["bash", "-c", f"exec {SWITCH}"])
        hosts = [cluster.start(machine, ["bash", "-c", printed(text)]) for machine, text in enumerate(HOSTS)]
        finish(hosts)
        assert [host.text for host in hosts] == PRINTED, switch.text


@pytest.mark.parametrize("program", ALL_PROGRAMS, ids=str)
def test_one_machine(program: Block, tmp_path: Path) -> None:
    """Programs of other pages, too, must run on two hosts of two devices."""
    (tmp_path / "train.py").write_text(program.text)
    ended = subprocess.run(["bash", "-c", ONE_MACHINE], capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if program.text == PROGRAM:
        told = sorted(line for line in ended.stdout.splitlines() if line.startswith("[rank"))
        assert told == [f"[rank {rank}] {line}" for rank, line in enumerate(PRINTED)]
