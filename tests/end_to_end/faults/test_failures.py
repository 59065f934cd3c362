"""Hosts and switches that die, for real: every other host raises by name, and can go on."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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


def test_killed_shard(cluster: "Cluster") -> None:
    switches = [cluster.switch, cluster.start_switch(), cluster.start_switch()]
    processes = start(cluster, env={"JAX_PASSING_SWITCH": ",".join(switch.address for switch in switches)})
    switches[2].signal(signal.SIGKILL)
    for process in processes:
        match = raised(process, DEADLINE_S)
        assert match[1] == "SwitchLostError", process.text
        assert switches[2].address in match[3]


def test_a_job_that_is_suspended_with_its_switch_goes_on(cluster: "Cluster") -> None:
    """As by `scontrol suspend`: for longer than the lease, the deadline of sums, and both together."""
    switch = cluster.start_switch("127.0.0.1:0", "--lease-s", "2")
    hosts = cluster.start("faults/endless.py", "3", hosts=2, devices=1, env={"JAX_PASSING_SWITCH": switch.address})
    for host in hosts:
        host.wait_for("running as process")
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in (*hosts, switch):
            process.signal(number)
        time.sleep(6.0)
    assert not any("raised" in host.text for host in hosts), [host.text for host in hosts]
    hosts[1].signal(signal.SIGKILL)
    assert "Rank 1 closed its connection" in raised(hosts[0], DEADLINE_S)[3]


def test_a_host_that_holds_its_interpreter_for_longer_than_the_lease_isnt_lost(cluster: "Cluster") -> None:
    """As `pickle.dumps` of some GiB does, in an elastic session, whose lease is short."""
    for host in cluster.run("faults/held_interpreter.py", devices=1, env={"HELD_S": "4"}):
        host.wait_for("the sum is 2.0")


def test_faults_in_the_middle_of_sums() -> None:
    """A little of the fault campaign, which by hand has hundreds of faults: of hosts and of the switch."""
    campaign = Path(__file__).parents[2] / "manual" / "fault_campaign.py"
    counts = ["--kills", "2", "--stops", "2", "--switch-faults", "2", "--seed", "1"]
    done = subprocess.run([sys.executable, str(campaign), *counts], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 faults" in done.stdout, done.stdout
