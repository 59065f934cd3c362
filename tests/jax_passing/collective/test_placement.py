import numpy as np
import pytest

from jax_passing.collective.lowering.placement import Placement, place
from jax_passing.errors import ConfigError


def test_mesh_inside_one_process():
    one = np.zeros(8, int)
    assert place(one, {"d": 8}, frozenset("d"), ("d",), 0) == Placement(8, 8, 1, True, 1)
    assert place(one, {"a": 4, "b": 2}, frozenset("ab"), ("b",), 0) == Placement(2, 2, 1, True, 1)
    assert place(one, {"a": 4, "b": 2}, frozenset("a"), ("a",), 0) == Placement(4, 4, 2, True, 1)
    assert place(one, {"a": 4, "b": 2}, frozenset("ab"), (), 0) == Placement(1, 1, 1, True, 1)


def test_outside_of_any_mesh_all_devices_are_replicas():
    assert place(np.zeros(8, int), {}, frozenset(), (), 0) == Placement(1, 1, 8, True, 1)
    assert place(np.array([0, 0, 1, 1]), {}, frozenset(), (), 1) == Placement(1, 1, 2, True, 2)


def test_axis_over_all_processes():
    processes = np.array([0, 0, 1, 1])
    for process in (0, 1):
        assert place(processes, {"d": 4}, frozenset("d"), ("d",), process) == Placement(4, 2, 1, False, 2)
        # Both axes, and the outer one alone.
        assert place(processes, {"h": 2, "d": 2}, frozenset("hd"), ("h", "d"), process) == Placement(4, 2, 1, False, 2)
        assert place(processes, {"h": 2, "d": 2}, frozenset("hd"), ("h",), process) == Placement(2, 1, 1, False, 2)


def test_axis_inside_each_process():
    processes = np.array([0, 0, 1, 1])
    assert place(processes, {"h": 2, "d": 2}, frozenset("hd"), ("d",), 1) == Placement(2, 2, 1, True, 2)


def test_processes_along_the_inner_axis():
    processes = np.array([0, 1, 0, 1])
    assert place(processes, {"a": 2, "b": 2}, frozenset("ab"), ("b",), 0) == Placement(2, 1, 1, False, 2)
    assert place(processes, {"a": 2, "b": 2}, frozenset("ab"), ("a",), 0) == Placement(2, 2, 1, True, 2)


def test_replicas_inside_and_across_processes():
    inside = np.array([0, 0, 1, 1])  # the automatic axis is inner: both replicas of a shard in one process
    assert place(inside, {"a": 2, "b": 2}, frozenset("a"), ("a",), 1) == Placement(2, 1, 2, False, 2)
    across = np.array([0, 1, 0, 1])  # every process has all shards: nothing to send
    assert place(across, {"a": 2, "b": 2}, frozenset("a"), ("a",), 1) == Placement(2, 2, 1, True, 2)


def test_unequal_numbers_of_devices():
    processes = np.array([0, 0, 0, 1])
    assert place(processes, {"d": 4}, frozenset("d"), ("d",), 0) == Placement(4, 3, 1, False, 2)
    assert place(processes, {"d": 4}, frozenset("d"), ("d",), 1) == Placement(4, 1, 1, False, 2)


@pytest.mark.parametrize(
    ("processes", "sizes", "manual", "axes"),
    [
        ([0, 1, 2, 3], {"a": 2, "b": 2}, "ab", ("b",)),  # pairs of processes
        ([0, 0, 0, 1], {"a": 2, "b": 2}, "ab", ("b",)),  # one group inside, one across
        ([0, 0, 0, 1], {"a": 2, "b": 2}, "a", ("a",)),  # one shard in both processes
    ],
)
def test_what_is_refused_alike_in_every_process(processes, sizes, manual, axes):
    for process in set(processes):
        with pytest.raises(ConfigError, match=r"use jax\.lax\.psum"):
            place(np.array(processes), sizes, frozenset(manual), axes, process)
