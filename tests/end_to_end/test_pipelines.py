"""Pipelines whose gradients are summed over several hosts."""

from typing import TYPE_CHECKING

import pytest

from .conftest import digest, finish, free_address

if TYPE_CHECKING:
    from .conftest import Cluster


@pytest.mark.parametrize(("hosts", "devices"), [(2, 4), (3, 2)])
def test_every_schedule_has_the_gradients_of_all_hosts(cluster: "Cluster", hosts: int, devices: int) -> None:
    digest(cluster.run("pipeline.py", hosts=hosts, devices=devices))  # all have one


@pytest.mark.parametrize(("layout", "processes", "devices"), [("stages", 2, 2), ("data", 2, 4), ("both", 4, 1)])
def test_a_mesh_over_processes(cluster: "Cluster", layout: str, processes: int, devices: int) -> None:
    env = {"COORDINATOR": free_address()}
    started = cluster.start("pipeline_over_processes.py", layout, hosts=processes, devices=devices, env=env)
    finish(started)
    for process in started:
        assert "zb-h1: " in process.text
        assert "refused: The mesh spans several processes, and the parameters aren't on their" in process.text
    held = sum(int(process.wait_for(r"^zb-h1: (\d+) shards are right$")[1]) for process in started)
    assert held == 6 * devices * processes // 2  # each of six leaves is on the devices of one of the two stages only
