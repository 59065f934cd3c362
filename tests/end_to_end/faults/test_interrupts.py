"""Ctrl-C at any moment ends a host soon, the others hear of it at once, and its rank is free again."""

import signal
import time

import pytest

from support.jobs.cluster import Cluster, finish

SOON_S = 20.0  # it takes a second or two; without our help, as long as the deadline of a sum
LONG = {"JAX_PASSING_DEADLINE_S": "300", "JAX_PASSING_JOIN_DEADLINE_S": "300"}


@pytest.mark.parametrize("moment", ["joining", "compiling", "summing", "summing later", "exit", "deaf"])
def test_ctrl_c(cluster: Cluster, moment: str) -> None:
    hosts = cluster.start("faults/interrupted.py", moment, devices=1, env=LONG)
    if moment == "joining":
        hosts.pop().stop()
        cluster.switch.wait_for("rank 0 of 2 joined")
    hosts[0].wait_for(f"^at {moment}$")
    time.sleep(1)  # until it waits
    hosts[0].signal(signal.SIGINT)
    if moment != "joining":
        why = "^jax_passing.errors.HostLostError: Rank 0 left job .*(interrupted|KeyboardInterrupt)"
        hosts[1].wait_for(why, SOON_S)
    if moment == "deaf":
        hosts[0].signal(signal.SIGINT)
    code = hosts[0].wait(SOON_S)
    assert code != 0 or moment == "exit"  # there Python ignores the code
    assert "too late" not in hosts[0].text
    finish(cluster.start("sums/ranks.py", devices=1, env={"JAX_PASSING_JOB": "interrupted.py"}))


def test_a_program_that_handles_ctrl_c_keeps_it(cluster: Cluster) -> None:
    """It saves its state, say, and goes on."""
    (host,) = cluster.start("faults/interrupted.py", "handled", hosts=1, devices=1)
    host.wait_for("^at handled$")
    host.signal(signal.SIGINT)
    assert host.wait() == 0, host.text
    assert "heard, and summed 1.0" in host.text
