"""Hosts that train by diloco: one that is killed costs only what it did itself."""

import re
import signal
import sys
import time
from typing import TYPE_CHECKING

from support.jobs.cluster import LIMIT_S, PROGRAMS, Process, finish, host_settings

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

HOSTS, STEPS, STEP_S = 3, 240, 0.02


def went_on(processes: list[Process], nth: int) -> None:
    """Waits until all of them have taken a step after they met for the nth time."""
    deadline = time.monotonic() + LIMIT_S
    while not all(process.text.count("hosts go on from step") >= nth for process in processes):
        assert time.monotonic() < deadline, [process.text for process in processes]
        time.sleep(0.01)


def test_a_host_that_is_killed_costs_its_own_island_only(cluster: "Cluster") -> None:
    """One of three is killed in the middle, later another one comes."""

    def start(rank: int) -> Process:
        command = [sys.executable, "-P", str(PROGRAMS / "pace/elastic.py"), str(STEPS), str(STEP_S)]
        lease = {"JAX_PASSING_LEASE_S": "30"}  # one is stopped while another starts
        process = Process(command, host_settings(cluster.switch.address, "islands", rank, HOSTS) | lease)
        cluster.processes.append(process)
        return process

    running = [start(rank) for rank in range(HOSTS)]
    went_on(running, 1)
    time.sleep(25 * STEP_S)  # into the third synchronisation, more or less
    running.pop(1).signal(signal.SIGKILL)
    went_on(running, 2)
    running[0].signal(signal.SIGSTOP)  # a straggler while the other one starts: so there are steps left for it
    newcomer = start(1)
    running[1].wait_for("HostJoinedError")
    running[0].signal(signal.SIGCONT)
    newcomer.wait_for("agreed: newcomer")
    went_on(running, 3)
    finish([*running, newcomer])
    for process in running:
        survived = re.findall(r"agreed: survivor, own parameters kept: (\w+), step (\d+)", process.text)
        assert len(survived) == 2, process.text
        assert all(kept == "True" for kept, _ in survived)
        assert int(survived[0][1]) > 0
    found = {process.wait_for(r"accuracy (\S+)%, .*digest (\w+)", 1).groups() for process in (*running, newcomer)}
    ((accuracy, _),) = found  # the same shared parameters
    assert float(accuracy) > 90
