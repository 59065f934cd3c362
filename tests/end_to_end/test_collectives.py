"""What hosts do beside sums, on several real hosts, through a real switch."""

from typing import TYPE_CHECKING

import pytest

from .conftest import COMPILED_FAST, finish, free_address

if TYPE_CHECKING:
    from .conftest import Cluster


@pytest.mark.parametrize(("hosts", "seed", "strategy"), [(2, 0, "passing"), (3, 1, "flat")])
def test_collectives_of_independent_processes(cluster: "Cluster", hosts: int, seed: int, strategy: str) -> None:
    env = {"JAX_PASSING_STRATEGY": strategy, **COMPILED_FAST}
    for process in cluster.run("collectives.py", str(seed), "local", hosts=hosts, env=env):
        assert "collectives done" in process.text


def test_collectives_of_one_mesh_over_all_processes(cluster: "Cluster") -> None:
    env = {"COORDINATOR": free_address(), "JAX_PASSING_STRATEGY": "auto", **COMPILED_FAST}
    started = cluster.start("collectives.py", "2", "global", hosts=3, env=env)
    finish(started)
    for process in started:
        assert "collectives done" in process.text


def test_a_host_that_does_not_come_to_a_barrier(cluster: "Cluster") -> None:
    for process in cluster.run("alone_at_barrier.py", devices=1):
        assert "raised DeadlineExceededError: " in process.text
        assert "alone_at_barrier.py:14:" in process.text  # the place, by name
        assert "barrier of" in process.text
