"""Hosts and switches that die, for real: every other host raises by name, and can go on."""

import re
import signal
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import digest

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster, Process

DEADLINE_S = 8


def start(cluster: "Cluster", hosts: int = 3, env: dict[str, str] | None = None) -> "list[Process]":
    processes = cluster.start("faults/endless.py", str(DEADLINE_S), hosts=hosts, devices=1, env=env)
    for process in processes:
        process.wait_for("running as process")
    return processes


def raised(process: "Process", within_s: float) -> re.Match[str]:
    """The exception that the host got; afterwards it must have gone on."""
    match = process.wait_for(r"^raised (\w+) after ([\d.]+) s: (.*)")
    assert float(match[2]) <= within_s, process.text
    process.wait_for("went on with 1.0")
    assert process.wait() == 0, process.text
    return match


@pytest.mark.smoke
def test_killed_host(cluster: "Cluster") -> None:
    processes = start(cluster)
    processes[1].signal(signal.SIGKILL)
    for rank in (0, 2):
        assert raised(processes[rank], DEADLINE_S)[1] == "HostLostError", processes[rank].text
        assert "ranks (1,)\n" in processes[rank].text


def test_stopped_host(cluster: "Cluster") -> None:
    processes = start(cluster)
    processes[1].signal(signal.SIGSTOP)
    for rank in (0, 2):
        match = raised(processes[rank], DEADLINE_S + 12)
        assert match[1] == "DeadlineExceededError", processes[rank].text
        assert "Missing: rank 1." in match[3], match[3]


def test_killed_switch(cluster: "Cluster") -> None:
    processes = start(cluster)
    cluster.switch.signal(signal.SIGKILL)
    for process in processes:
        assert raised(process, DEADLINE_S)[1] == "SwitchLostError", process.text


def test_killed_shard(cluster: "Cluster") -> None:
    switches = [cluster.switch, cluster.start_switch(), cluster.start_switch()]
    processes = start(cluster, env={"JAX_PASSING_SWITCH": ",".join(switch.address for switch in switches)})
    switches[2].signal(signal.SIGKILL)
    for process in processes:
        match = raised(process, DEADLINE_S)
        assert match[1] == "SwitchLostError", process.text
        assert switches[2].address in match[3]


def test_missing_host(cluster: "Cluster") -> None:
    env = {"JAX_PASSING_WORLD_SIZE": "3", "JAX_PASSING_JOIN_DEADLINE_S": "4"}
    for process in cluster.start("faults/endless.py", str(DEADLINE_S), hosts=2, devices=1, env=env):
        process.wait_for(r"JoinError.*\b2\b")


def test_unreachable_switch(cluster: "Cluster") -> None:
    env = {"JAX_PASSING_SWITCH": "127.0.0.1:1", "JAX_PASSING_JOIN_DEADLINE_S": "4"}
    (process,) = cluster.start("faults/endless.py", str(DEADLINE_S), hosts=1, devices=1, env=env)
    process.wait_for(r"SwitchUnreachableError")


def test_switch_is_restarted_and_the_job_joins_again(cluster: "Cluster") -> None:
    address = cluster.switch.address
    before = digest(cluster.run("sums/once.py", devices=1))
    cluster.switch.signal(signal.SIGTERM)
    assert cluster.switch.wait() == 0, cluster.switch.text
    cluster.switch = cluster.start_switch(address)
    assert digest(cluster.run("sums/once.py", devices=1)) == before
