"""Hosts compare what their programs take for equal, on real hosts through a real switch."""

from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, Process, finish, free_address

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

WAYS = ["unchecked", "scan", "around scan", "checkpoint", "vmap of d", "pmap", "without jit"]
LEAVES = "['layer']['w'] float32[40,7], ['scale'] float64[]"
OTHERS = "Here rank 2 has others than ranks 0, 1, so"


def ran(cluster: "Cluster", *cases: str, hosts: int = 2, **env: str) -> list[Process]:
    return cluster.run("sums/unequal.py", *cases, hosts=hosts, env=COMPILED_FAST | env)


@pytest.mark.smoke
def test_an_error_names_leaves_and_ranks_on_all_hosts(cluster: "Cluster") -> None:
    for process in ran(cluster, "shard_map:none", "shard_map:values", hosts=3):
        process.wait_for("^shard_map:none: equal, after 9 sums$", 1)  # two steps of four, and the comparison
        text = process.wait_for("^shard_map:values: ProgramMismatchError: (.*)", 1)[1]
        assert text.startswith("unequal.py:31:24 in sgd comparison of ")
        assert f"equal on all: {LEAVES}. {OTHERS}" in text


def test_hosts_can_leave_it_out(cluster: "Cluster") -> None:
    for process in ran(cluster, "shard_map:values", JAX_PASSING_CHECK_EQUAL="false"):
        process.wait_for("^shard_map:values: equal, after 8 sums$", 1)


def test_devices_of_one_host_may_differ(cluster: "Cluster") -> None:
    for process in ran(cluster, "own devices:none", "own devices:values"):
        process.wait_for("^own devices:none: equal", 1)
        text = process.wait_for("^own devices:values: ProgramMismatchError: (.*)", 1)[1]
        assert "Here the devices of rank 1 have different ones among themselves, so" in text


@pytest.mark.slow
def test_in_all_transformations(cluster: "Cluster") -> None:
    for process in ran(cluster, *(f"{way}:{change}" for way in WAYS for change in ("none", "values"))):
        for way in WAYS:
            process.wait_for(f"^{way}:none: equal", 1)
            assert f"equal on all: {LEAVES}. " in process.wait_for(f"^{way}:values: ProgramMismatchError.*", 1)[0]


@pytest.mark.parametrize("strategy", ["native", pytest.param("flat", marks=pytest.mark.slow)])
def test_one_mesh_over_all_processes(cluster: "Cluster", strategy: str) -> None:
    env = {"COORDINATOR": free_address(), "JAX_PASSING_STRATEGY": strategy, **COMPILED_FAST}
    started = cluster.start("sums/unequal.py", "shard_map:none", "shard_map:values", hosts=3, env=env)
    finish(started)
    for process in started:
        process.wait_for("^shard_map:none: equal", 1)
        assert OTHERS in process.wait_for("^shard_map:values: ProgramMismatchError: .*", 1)[0]
