"""The standby takes over from a switch that falls silent, for real, also where a host is lost with it."""

import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from end_to_end.faults.test_elastic import EXAMPLE, went_on
from support.jobs.cluster import Process, host_settings

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

HOSTS = 3
LEASE_S = 2.0
TAKEN_OVER_S = 3.0 * 3  # as users are promised, with time for a machine that is busy


def start(cluster: "Cluster", switch: str, standby: str, rank: int) -> Process:
    settings = host_settings(switch, "takeover", rank, HOSTS, 1)
    more = {"JAX_PASSING_WORLD_SIZE_MIN": "1", "JAX_PASSING_STANDBY": standby}
    command = [sys.executable, "-P", str(EXAMPLE), "--steps", "100000", "--step-s", "0.05"]
    cluster.processes.append(process := Process(command, settings | more))
    return process


@pytest.mark.parametrize("with_host", [False, True])
def test_a_standby_takes_over_from_a_switch_that_falls_silent(cluster: "Cluster", with_host: bool) -> None:
    lease = "--lease-s", str(LEASE_S)
    switch, standby = (cluster.start_switch("127.0.0.1:0", *lease) for _ in range(2))
    running = [start(cluster, switch.address, standby.address, rank) for rank in range(HOSTS)]
    went_on(running, 1)
    time.sleep(1.0)
    switch.signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    if with_host:
        running.pop(1).signal(signal.SIGSTOP)
    went_on(running, 2)
    took_s = time.monotonic() - stopped_at
    print(f"a silent switch{' and a silent host' if with_host else ''}: {took_s:.2f} s with a lease of {LEASE_S} s")
    assert took_s < LEASE_S + TAKEN_OVER_S
    running.pop(0).signal(signal.SIGKILL)  # while the switch is still dark
    killed_at = time.monotonic()
    went_on(running, 3)
    took_s = time.monotonic() - killed_at
    print(f"a host is killed then: {took_s:.2f} s")
    assert took_s < TAKEN_OVER_S
    switch.signal(signal.SIGCONT)
