"""A newcomer of an elastic session compiles before the others wait for it, for real."""

import os
import re
import signal
import sys
from typing import TYPE_CHECKING

from support.jobs.cluster import PROGRAMS, Process, host_settings

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

# By hand with others: docs/reference/benchmarks.md has the figures.
HOSTS = int(os.environ.get("NEWCOMER_HOSTS", "3"))
COMPILES_S = float(os.environ.get("NEWCOMER_COMPILES_S", "10"))
STATE_MIB = os.environ.get("NEWCOMER_STATE_MIB", "2")


def test_nobody_waits_for_a_newcomer_that_compiles(cluster: "Cluster") -> None:
    def start(rank: int, compiles_s: float) -> Process:
        settings = host_settings(cluster.switch.address, "newcomers", rank, HOSTS)
        more = {"JAX_PASSING_WORLD_SIZE_MIN": "2", "COMPILES_S": str(compiles_s), "STATE_MIB": STATE_MIB}
        command = [sys.executable, "-P", str(PROGRAMS / "faults" / "slow_compiler.py")]
        cluster.processes.append(process := Process(command, settings | more | {"JAX_LOG_COMPILES": "1"}))
        return process

    running = [start(rank, 0.0) for rank in range(HOSTS)]
    for process in running:
        process.wait_for(f"is one of {HOSTS} hosts")
    running.pop().signal(signal.SIGKILL)
    for process in running:
        process.wait_for(f"is one of {HOSTS - 1} hosts")
    before = [len(process.lines) for process in running]
    newcomer = start(HOSTS - 1, COMPILES_S)
    newcomer.wait_for(f"rehearses with {HOSTS} hosts")
    newcomer.wait_for(f"is one of {HOSTS} hosts")
    for process, lines in zip(running, before, strict=True):
        process.wait_for(f"is one of {HOSTS} hosts")
        assert "HostJoinedError" in process.lines[lines], "it has heard nothing of the newcomer before"
        stood = re.findall(r"hosts, stood ([\d.]+) s", process.text)[-1]
        print(f"compiles for {COMPILES_S:g} s, {STATE_MIB} MiB: the others stood {stood} s")
        assert float(stood) < COMPILES_S / 2  # of a machine that may be busy
        assert not any("XLA compilation" in line for line in process.lines[lines:])
    rejoined = next(i for i, line in enumerate(newcomer.lines) if "HostJoinedError" in line)
    compiled = [line for line in newcomer.lines[rejoined:] if "XLA compilation" in line and "jit(_work)" not in line]
    assert not compiled, "it has compiled everything before"
