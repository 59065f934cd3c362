"""The sessions that suit a mesh over several processes."""

from types import SimpleNamespace

import numpy as np
import pytest

from jax_passing.errors import UsageError
from jax_passing.pipelining.jobs import SessionInfo, check_job, stage_job, suit


def ranks(*jobs, is_declared=False):
    """Returns the session of each process, given its job. Ranks are in the order of the processes."""
    return {
        process: None if job is None else SessionInfo(job, jobs[:process].count(job), jobs.count(job), is_declared)
        for process, job in enumerate(jobs)
    }


@pytest.mark.parametrize(
    ("rows", "sessions", "expected"),
    [
        ([[0], [1]], ranks(None, None), True),
        ([[0], [1]], ranks("a", "b"), True),
        ([[0], [1]], ranks("a", "a"), False),  # a sum of both would never come to an end
        ([[0], [1]], ranks("a", "a", is_declared=True), False),  # gradients of different stages
        ([[0], [1]], {0: SessionInfo("a", 1, 3, True), 1: SessionInfo("b", 1, 3, True)}, True),  # with other meshes
        ([[0], [1]], {0: SessionInfo("a", 1, 3, False), 1: None}, False),
        ([[0, 1], [0, 1]], ranks("a", "a"), True),
        ([[0, 1], [0, 1]], ranks("a", "b"), False),
        ([[0, 1], [0, 1]], ranks(None, None), True),
        ([[0, 1], [0, 1]], ranks("a", None), False),
        ([[0, 1], [0, 1]], ranks("a", "a", is_declared=True), False),  # the mesh itself goes over the processes
        ([[0, 1], [2, 3]], ranks("a", "a", "b", "b"), True),
        ([[0, 1], [2, 3]], ranks("a", "a", "a", "a"), False),
        ([[0, 2], [1, 3]], ranks("a", "b", "a", "b"), True),
        ([[0, 2], [1, 3]], ranks("a", "a", "b", "b"), False),
        ([[0, 1], [0, 1]], {0: SessionInfo("a", 1, 2, False), 1: SessionInfo("a", 0, 2, False)}, False),
        ([[0], [0, 1]], ranks("a", "a"), False),  # process 0 would have its own stage summed with process 1
    ],
)
def test_a_stages_processes_are_the_ranks_of_one_job(rows, sessions, expected):
    assert suit(rows, sessions) is expected


def test_the_job_of_a_process_is_read_from_the_mesh(monkeypatch):
    devices = [SimpleNamespace(process_index=number) for number in (3, 1, 2, 0)]
    mesh = SimpleNamespace(devices=np.array(devices).reshape(2, 2), axis_names=("data", "stage"))
    found = {}
    for process in range(4):
        monkeypatch.setattr("jax.process_index", lambda process=process: process)
        found[process] = tuple(stage_job(mesh))
    assert found == {0: (1, 0, 2), 1: (1, 1, 2), 2: (0, 0, 2), 3: (0, 1, 2)}


def test_an_elastic_session_has_no_pipelines(monkeypatch):
    mesh = SimpleNamespace(devices=np.array([[SimpleNamespace(process_index=0)]]), axis_names=("data", "stage"))
    elastic = SimpleNamespace(settings=SimpleNamespace(world_size_min=1))
    monkeypatch.setattr("jax.process_index", lambda: 0)
    monkeypatch.setattr("jax_passing.host.session.current", lambda: elastic)
    with pytest.raises(UsageError, match="leave out init"):
        check_job(mesh, "stage", "data")
