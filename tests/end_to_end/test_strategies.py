"""Each strategy on two real hosts with two devices each, in both deployments."""

import re
import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Cluster, Process


def run(cluster: "Cluster", strategy: str, deployment: str, **env: str) -> "list[Process]":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    started = []
    for rank in range(2):
        settings = {"JAX_PASSING_RANK": str(rank), "JAX_PASSING_WORLD_SIZE": "2", **env}
        settings |= {"HOST_RANK": str(rank), "HOST_COUNT": "2", "COORDINATOR": coordinator}
        started += cluster.start("strategies.py", strategy, deployment, hosts=1, env=settings)
    return started


def results(started: "list[Process]") -> tuple[set[str], list[int]]:
    """(digests, packets sent by each host)"""
    for process in started:
        assert process.wait(200) == 0, process.text
    digests = {re.search(r"^digest (\w+)$", process.text, re.M)[1] for process in started}
    return digests, [int(re.search(r"^packets (\d+)$", process.text, re.M)[1]) for process in started]


def test_native_on_one_mesh_sends_nothing_to_the_switch(cluster: "Cluster") -> None:
    digests, packets = results(run(cluster, "native", "global"))
    assert len(digests) == 1
    assert packets == [0, 0]


def test_auto_takes_the_ring_if_the_switch_stands_behind_a_slow_link(cluster: "Cluster") -> None:
    slow = cluster.start_switch("127.0.0.1:0", "--link-gbit", "0.001")
    digests, packets = results(run(cluster, "auto", "global", JAX_PASSING_SWITCH=slow.address))
    assert len(digests) == 1
    assert 0 < max(packets) < 100  # the smallest sums alone: a ring takes more round trips


@pytest.mark.parametrize("deployment", ["local", "global"])
def test_auto_takes_the_switch_if_it_has_a_port_for_each_host(cluster: "Cluster", deployment: str) -> None:
    digests, packets = results(run(cluster, "auto", deployment, JAX_PASSING_LINK_GBIT="0.1"))
    assert len(digests) == 1
    assert min(packets) > 1000


def test_native_on_a_mesh_of_one_host_raises(cluster: "Cluster") -> None:
    for process in run(cluster, "native", "local"):
        assert process.wait(100) != 0
        assert "ConfigError: strategy='native' is jax.lax.psum" in process.text
