"""Switches and hosts with several threads give the bits of one, at one switch, in a tree, and after a crash."""

import signal
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, SOME_DTYPES, counters, digest

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

PROGRAM = "sums/sums.py"
TWO = COMPILED_FAST | {"JAX_PASSING_THREADS": "2"}


@pytest.mark.smoke
@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_bits_are_those_of_one_thread(cluster: "Cluster", hosts: int) -> None:
    expected = digest(cluster.start(PROGRAM, *SOME_DTYPES, hosts=hosts, devices=1, env=COMPILED_FAST))
    several = cluster.start_switch("127.0.0.1:0", "--threads", "4")
    env = TWO | {"JAX_PASSING_SWITCH": several.address}
    assert digest(cluster.start(PROGRAM, *SOME_DTYPES, hosts=hosts, devices=1, env=env)) == expected
    several.wait_for(r"4 threads", 1)


def test_a_tree(cluster: "Cluster") -> None:
    expected = digest(cluster.run("sums/once.py", devices=1, env=COMPILED_FAST))
    root = cluster.start_switch("127.0.0.1:0", "--threads", "2")
    started = []
    for rank in range(2):
        rack = cluster.start_switch("127.0.0.1:0", "--threads", "4", "--parent", root.address)
        env = TWO | {"JAX_PASSING_SWITCH": rack.address, "JAX_PASSING_RANK": str(rank)}
        started += cluster.start("sums/once.py", hosts=1, devices=1, env=env | {"JAX_PASSING_WORLD_SIZE": "2"})
    assert digest(started) == expected


def test_a_host_that_is_killed(cluster: "Cluster") -> None:
    several = cluster.start_switch("127.0.0.1:0", "--threads", "2")
    env = {"JAX_PASSING_THREADS": "2", "JAX_PASSING_SWITCH": several.address}
    hosts = cluster.start("faults/endless.py", "8", devices=1, env=env)
    for host in hosts:
        host.wait_for("running as process")
    hosts[1].signal(signal.SIGKILL)
    assert hosts[0].wait_for(r"^raised (\w+) after")[1] == "HostLostError", hosts[0].text
    hosts[0].wait_for("went on with 1.0")
    assert hosts[0].wait() == 0
    assert counters(several)["complete"] > 0
