"""PyTorch's real launcher starts hosts by the page's command, with two agents and two processes of each."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from support.jobs.cluster import PROGRAMS, Switch, free_address
from support.pages import blocks, page

TORCHRUN = os.environ.get("PASSING_TORCHRUN")
pytestmark = pytest.mark.skipif(TORCHRUN is None, reason="PASSING_TORCHRUN names no torchrun (PyPI: torch)")

(COMMAND,) = (block.text for block in blocks(page("clusters.md")) if block.text.startswith("torchrun "))


def test_ranks_are_those_of_its_processes():
    """Not those of its agents, as Slurm's would be, whose variables both see."""
    words = shlex.split(COMMAND)
    words[0:1] = [TORCHRUN, "--no-python"]  # as it has an environment of its own
    words[-1:] = [sys.executable, str(PROGRAMS / "sums/ranks.py")]
    for option, value in (("--nnodes", "2"), ("--nproc-per-node", "2"), ("--rdzv-endpoint", free_address())):
        words[words.index(option) + 1] = value
    switch, agents = Switch(), []
    try:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_PASSING_SWITCH": switch.address, "SLURM_PROCID": "0"}
        environment |= {"SLURM_JOB_ID": "6", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_TASK_PID": "1"}
        agents = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        printed = "".join(agent.communicate(timeout=120)[0] for agent in agents)
    finally:
        for agent in agents:
            agent.kill()
        switch.stop()
    assert sorted(re.findall(r"rank (\d) of 4, job torchrun-run7", printed)) == list("0123")
