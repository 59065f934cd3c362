"""`jax-passing run --print`: the commands of a cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jax_passing.commands import cli
from support.jobs.cluster import LIMIT_S
from support.switch.in_process import SwitchThread


def printed(*arguments):
    ended = CliRunner().invoke(cli.app, ["run", "--print", *arguments])
    assert ended.exit_code == 0, ended.output + str(ended.exception)
    return ended.stdout


def test_what_is_printed_for_a_shell():
    text = printed("--hosts", "4", "--devices-per-host", "2", "--for-jax", "my dir/train.py", "--rate", "a b")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    given = "JAX_PASSING_SWITCH=SWITCH:7171 PYTHONHASHSEED=0 JAX_PASSING_FOR_JAX=1 JAX_NUM_CPU_DEVICES=2"
    program = "python 'my dir/train.py' --rate 'a b'"
    assert lines == [
        "jax-passing switch --listen 0.0.0.0:7171",
        f"{given} srun --nodes=4 --ntasks-per-node=1 --kill-on-bad-exit=1 {program}",
        "mpirun -np 4 --map-by node --bind-to none -x " + " -x ".join(given.split()) + f" -x PATH {program}",
        f"{given} JAX_PASSING_JOB=train JAX_PASSING_WORLD_SIZE=4 JAX_PASSING_RANK=0 {program}",
    ]
    subprocess.run(["bash", "-n", "-c", text], check=True, timeout=60)


def test_machines_and_a_switch_that_runs():
    text = printed("--hosts", "a,b", "--switch", "s:1", "-m", "pkg.train")
    assert "jax-passing switch" not in text
    assert "--nodelist=a,b --nodes=2" in text
    assert "--host a,b" in text
    assert text.rstrip().endswith("JAX_PASSING_RANK=0 python -m pkg.train")


def test_mistakes_are_told():
    ended = CliRunner().invoke(cli.app, ["run", "--print", "--hosts", "65", "x.py"])
    assert "--hosts" in str(ended.exception)


@pytest.mark.slow
def test_the_last_line_starts_a_host(script):
    running = SwitchThread()
    try:
        file = script("import jax_passing\nwith jax_passing.init() as session: print(session)\n")
        line = printed("--hosts", "2", "--switch", running.address, file).splitlines()[-1]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        hosts = [
            subprocess.Popen(
                ["bash", "-c", line.replace("RANK=0", f"RANK={rank}")],
                env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        for rank, host in enumerate(hosts):
            assert f"rank={rank} world_size=2" in host.communicate(timeout=LIMIT_S)[0]
            assert host.returncode == 0
    finally:
        running.stop()
