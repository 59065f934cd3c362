"""Sums on narrow wires, and residuals, on several real hosts through a real switch; programs compare with numpy."""

import re
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, digest

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster


def run(cluster: "Cluster", hosts: int = 2, seed: int = 0, size: int = 3000, **env: str) -> str:
    settings = {"JAX_PASSING_SEED": str(seed), **COMPILED_FAST, **env}
    started = cluster.start("sums/narrow.py", str(size), hosts=hosts, env=settings)
    bits = digest(started)
    assert all(int(re.search(r"^guesses (\d+)$", process.text, re.M)[1]) > 100 for process in started)
    return bits


def test_two_hosts(cluster: "Cluster") -> None:
    run(cluster)


@pytest.mark.slow
def test_three_hosts(cluster: "Cluster") -> None:
    run(cluster, hosts=3, size=30_000)


@pytest.mark.slow
def test_each_device_is_a_rank(cluster: "Cluster") -> None:
    run(cluster, JAX_PASSING_STRATEGY="flat")


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_scattered_sums_take_the_wire_of_the_session(cluster: "Cluster", hosts: int) -> None:
    digest(cluster.run("sums/scattered.py", hosts=hosts, env=COMPILED_FAST))


def test_hosts_that_name_different_wires_hear_it(cluster: "Cluster") -> None:
    started = []
    for rank, wire in enumerate(("full", "int8")):
        env = {"JAX_PASSING_RANK": str(rank), "JAX_PASSING_WORLD_SIZE": "2", **COMPILED_FAST}
        started += cluster.start("sums/other_wire.py", wire, hosts=1, env=env)
    for process in started:
        assert process.wait() != 0
        assert "ProgramMismatchError" in process.text
        assert (
            "rank 1 sums with wire_dtype int8, rank 0 with full. Give the same wire_dtype on all hosts" in process.text
        )


# Residuals are there for sums on any wire: rounding keeps them back.


@pytest.mark.parametrize(
    ("hosts", "strategy", "wire"),
    [
        (2, "passing", "int4"),
        (2, "passing", "full"),
        (3, "passing", "full"),
        (3, "flat", "full"),
        (3, "passing", "int4"),
        (3, "flat", "int8"),
    ],
)
def test_residuals_are_what_rounding_kept_back(cluster: "Cluster", hosts: int, strategy: str, wire: str) -> None:
    env = {"JAX_PASSING_STRATEGY": strategy, **COMPILED_FAST}
    for process in cluster.run("sums/residuals.py", wire, hosts=hosts, devices=2, env=env):
        assert "residuals right" in process.text
