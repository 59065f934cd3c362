"""Does what README.md tells its readers to do, as it is printed there: on two machines, and on one.

Only addresses are replaced. Programs in other pages run, too; tests/test_pages.py looks at what isn't a program.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs.bridge_cluster import BridgeCluster
from support.jobs.cluster import LIMIT_S, finish
from support.net.namespaces import missing
from support.pages import README, Block, blocks

FIRST, SECOND = "10.0.0.1", "10.0.0.2"  # the machines' addresses in README.md


def block(language: str, part: str) -> str:
    """Returns the one block of README.md in this language that contains this part."""
    (found,) = (block.text for block in blocks(README) if block.language == language and part in block.text)
    return found


PROGRAM = block("python", "jax_passing.overlap")
SWITCH, *HOSTS = block("bash", "jax-passing switch").splitlines()
ONE_MACHINE, BY_SSH = block("bash", "jax-passing run").splitlines()
# tests/jax_passing/partitioning/test_plan.py runs the one that needs examples/models, and compares what it prints;
# tests/clusters/test_ray.py has Ray.
ELSEWHERE = ("from models ", "from ray")
ALL_PROGRAMS = [
    pytest.param(one, marks=[pytest.mark.smoke] if one.text == PROGRAM else [])
    for one in blocks()
    if one.is_program and not any(part in one.text for part in ELSEWHERE)
]
(WEIGHTS,) = re.findall("Each host prints `(.*)`", README.read_text())


def printed(hosts: int) -> list[str]:
    return [f"rank {rank} of {hosts}: {WEIGHTS}" for rank in range(hosts)]


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
        # `exec`: what is stopped must be the switch, not a shell around it.
        switch = cluster.start(0, ["bash", "-c", f"exec {SWITCH}"])
        commands = [text.replace(FIRST, cluster.address(0)) for text in HOSTS]
        hosts = [cluster.start(machine, ["bash", "-c", text]) for machine, text in enumerate(commands)]
        finish(hosts)
        assert [host.text for host in hosts] == printed(2), switch.text


@pytest.mark.skipif(missing() is not None, reason=f"no network of our own: {missing()}")
@pytest.mark.parametrize(
    "first", [FIRST, "localhost"]
)  # the latter as on Debian, where a machine's own name is loopback
def test_two_machines_by_one_command(first: str, tmp_path: Path) -> None:
    """This ssh enters the other machine's namespace instead."""
    with BridgeCluster("readmessh", 2) as cluster:
        ssh = tmp_path / "ssh"
        inside = shlex.join(cluster.command(1, ["sh", "-c"]))
        ssh.write_text(f'#!/bin/bash\n[ "$5" = {cluster.address(1)} ] && exec {inside} "${{*:6}}"\n')
        ssh.chmod(0o755)
        addresses = {FIRST: cluster.address(0) if first == FIRST else first, SECOND: cluster.address(1)}
        command = re.sub("|".join(addresses), lambda match: addresses[match[0]], BY_SSH)
        run = cluster.start(0, ["bash", "-c", command], {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
        assert run.wait() == 0, run.text
        assert tagged(run.text) == printed(2)


def tagged(text: str) -> list[str]:
    """Returns what ranks printed under `jax-passing run`, in the order of ranks."""
    told = sorted(line for line in text.splitlines() if line.startswith("[rank"))
    return [line.removeprefix(f"[rank {rank}] ") for rank, line in enumerate(told)]


@pytest.mark.parametrize("program", ALL_PROGRAMS, ids=str)
def test_one_machine(program: Block, tmp_path: Path) -> None:
    """Programs of other pages, too, must run, on two hosts of two devices."""
    (tmp_path / "train.py").write_text(program.text)
    ours = program.text == PROGRAM
    command = ONE_MACHINE if ours else ONE_MACHINE.replace("--hosts 4", "--hosts 2")
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if ours:
        assert tagged(ended.stdout) == printed(4)
