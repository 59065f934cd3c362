"""psum gives the right sums on several real hosts, through a real switch."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, SOME_DTYPES, digest, finish, free_address

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster


@pytest.mark.smoke
def test_every_dtype_and_transform_on_independent_processes(cluster: "Cluster") -> None:
    digest(cluster.run("sums/sums.py"))  # all have one


def test_three_processes(cluster: "Cluster") -> None:
    digest(cluster.run("sums/sums.py", *SOME_DTYPES, hosts=3, devices=1))


@pytest.mark.smoke
def test_one_mesh_over_all_processes_equals_lax_psum(cluster: "Cluster") -> None:
    coordinator = free_address()
    started = []
    for rank in range(2):
        env = {"HOST_RANK": str(rank), "HOST_COUNT": "2", "COORDINATOR": coordinator, "JAX_PASSING_JOB": "global"}
        # No rank and world size: they come from jax.distributed.
        env |= {"JAX_PASSING_RANK": "", "JAX_PASSING_WORLD_SIZE": ""}
        started += cluster.start("transforms/global_mesh.py", hosts=1, env=env)
    finish(started)
    for process in started:
        assert "global mesh done" in process.text


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_batches_of_other_sizes(cluster: "Cluster", hosts: int) -> None:
    for process in cluster.run("sums/uneven.py", hosts=hosts, devices=1 if hosts == 3 else 2, env=COMPILED_FAST):
        for step in ("summed", "overlapped", "in_a_loop"):
            process.wait_for(f"{step} is right", 1)


def test_independent_sums_match(cluster: "Cluster") -> None:
    for process in cluster.run("order/matching.py", "30", timeout_s=280):
        assert "rounds 30" in process.text


def test_jobs_share_a_switch_and_nothing_else(cluster: "Cluster") -> None:
    started = [
        cluster.start("order/matching.py", "2", devices=1, env={"JAX_PASSING_JOB": job}) for job in ("one", "two")
    ]
    for job in started:
        finish(job)


def test_one_gibibyte(cluster: "Cluster") -> None:
    cluster.run("sums/large.py", devices=1)


def test_an_executable_from_another_process(cluster: "Cluster", tmp_path: Path) -> None:
    for what in ("write", "read"):
        for process in cluster.run("sums/kept.py", what, str(tmp_path)):
            assert "sum right" in process.text


@pytest.mark.parametrize("kind", ["branch", "loop", "dead", "outside"])
def test_sums_that_only_some_executions_come_to(cluster: "Cluster", kind: str) -> None:
    for process in cluster.run("order/conditional.py", kind, "agree"):
        assert "all steps are right" in process.text


@pytest.mark.parametrize("kind", ["branch", "loop", "dead", "outside"])
def test_sums_of_different_executions_never_meet(cluster: "Cluster", kind: str) -> None:
    for process in cluster.run("order/conditional.py", kind, "disagree"):
        assert "raised DeadlineExceededError" in process.text, process.text
        assert "in a loop or branch that all hosts must go through alike (execution " in process.text


@pytest.mark.parametrize("kind", [pytest.param("shape", marks=pytest.mark.smoke), "dtype", "count", "order"])
def test_different_programs_raise_on_every_host(cluster: "Cluster", kind: str) -> None:
    for process in cluster.run("order/mismatch.py", kind, devices=1):
        raised = re.search(r"^raised (\w+) after ([\d.]+) s: (.*)", process.text, re.M)
        assert raised, process.text
        assert raised[1] == "ProgramMismatchError"
        assert "Hosts run different programs. In jit_body on 1 device" in process.text
        assert "mismatch.py:" in process.text  # the site, by name
