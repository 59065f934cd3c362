"""Collectives other than sums, and sums in two parts, run on several real hosts, through a real switch."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, finish, free_address

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster


@pytest.mark.parametrize(("hosts", "seed", "strategy"), [(2, 0, "passing"), (3, 1, "flat")])
def test_collectives_of_independent_processes(cluster: "Cluster", hosts: int, seed: int, strategy: str) -> None:
    env = {"JAX_PASSING_STRATEGY": strategy, **COMPILED_FAST}
    for process in cluster.run("transforms/collectives.py", str(seed), "local", hosts=hosts, env=env):
        assert "collectives done" in process.text


def test_collectives_of_one_mesh_over_all_processes(cluster: "Cluster") -> None:
    env = {"COORDINATOR": free_address(), "JAX_PASSING_STRATEGY": "auto", **COMPILED_FAST}
    started = cluster.start("transforms/collectives.py", "2", "global", hosts=3, env=env)
    finish(started)
    for process in started:
        assert "collectives done" in process.text


@pytest.mark.smoke
@pytest.mark.parametrize(("hosts", "deployment"), [(2, "local"), (3, "global")])
def test_rows_of_hosts_take_their_bytes_alone(cluster: "Cluster", hosts: int, deployment: str) -> None:
    env = {"COORDINATOR": free_address(), **COMPILED_FAST}
    started = cluster.start("sums/rows.py", deployment, hosts=hosts, env=env)
    finish(started)
    for process in started:
        assert "rows done" in process.text


@pytest.mark.parametrize("hosts", [2, 3])
def test_scatters_and_gathers_amid_work_that_differs(cluster: "Cluster", hosts: int) -> None:
    for process in cluster.run("order/opposite.py", "8", hosts=hosts):
        assert "ok" in process.lines


def test_what_rank_0_does_for_all_and_a_barrier_to_which_one_does_not_come(cluster: "Cluster", tmp_path: Path) -> None:
    for rank, process in enumerate(cluster.run("faults/alone_at_barrier.py", str(tmp_path), devices=1)):
        assert "heard What rank 0 did for all hosts failed there: NotADirectoryError: [Errno 20] Not a" in process.text
        assert f"because of {'NotADirectoryError' if rank == 0 else 'None'}" in process.text
        assert "raised DeadlineExceededError: " in process.text
        assert "alone_at_barrier.py:34:" in process.text  # the place, by name
        assert "barrier of" in process.text


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_sums_in_two_parts_are_those_of_psum(cluster: "Cluster", tmp_path: Path, hosts: int) -> None:
    for process in cluster.run("sums/handles.py", "sums", str(hosts), str(tmp_path), hosts=hosts, env=COMPILED_FAST):
        assert "all sums are those of psum" in process.text


def test_errors_are_named_on_all_hosts(cluster: "Cluster") -> None:
    started = cluster.start("sums/handles.py", "errors", hosts=2, env=COMPILED_FAST)
    finish(started)
    for process in started:
        process.wait_for(r"^one host is late: DeadlineExceededError: handles\.py:\d+.* psum_start of float32\[1,5\]", 1)
        process.wait_for(r"^too many: UsageError: .*handles\.py:\d+.*: 64 handles of this call aren't finished", 1)
        process.wait_for(r"^former: UsageError: handles\.py:\d+.* was started in a former session", 1)
        process.wait_for(r"^went on with 4\.0", 1)
