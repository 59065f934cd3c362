"""Hosts that wait find out, by what they tell the coordinator, whether they wait for the same."""

import logging

import jax
import pytest

from jax_passing.for_jax import waits
from jax_passing.for_jax.waits import Waits

GROUP, HOSTS = 5, (0, 1, 2)
SUM, MAX = "all_reduce sum, call 3", "all_reduce max, call 3"


class Coordinator:
    def __init__(self):
        self.values, self.is_gone = {}, False

    def key_value_set(self, key, value, allow_overwrite):
        if self.is_gone:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE")
        assert allow_overwrite
        self.values[key] = value

    def key_value_dir_get(self, folder):
        return [(key, value) for key, value in self.values.items() if key.startswith(folder)]


@pytest.fixture(autouse=True)
def coordinator(monkeypatch):
    one = Coordinator()
    monkeypatch.setattr(waits, "coordinator", lambda: one)
    return one


def host(rank, job="job"):
    return Waits(rank, job, warn_s=2.0)


def test_hosts_in_the_same_call_wait_on():
    assert [host(rank).stalled(GROUP, HOSTS, 3, SUM, 1.0) for rank in HOSTS] == [None] * 3


def test_hosts_in_different_calls_of_one_number_are_told_apart():
    assert host(0).stalled(GROUP, HOSTS, 3, SUM, 1.0) is None
    failure = host(1).stalled(GROUP, HOSTS, 3, MAX, 1.0)
    assert failure.kind == "ProgramMismatchError"
    assert f"rank 0 called {SUM}; rank 1 called {MAX}" in failure.message
    assert host(0).stalled(GROUP, HOSTS, 3, SUM, 1.0) == failure


@pytest.mark.parametrize(
    ("group", "number", "job"),
    [(GROUP, 2, "job"), (GROUP + 1, 3, "job"), (GROUP, 3, "another job")],
    ids=["a call that is over", "another group", "another job"],
)
def test_what_was_told_of_another_call_is_no_difference(group, number, job):
    host(0, job).stalled(group, HOSTS, number, MAX, 1.0)
    assert host(1).stalled(GROUP, HOSTS, 3, SUM, 1.0) is None


def test_messages_may_differ():
    host(0).stalled(GROUP, HOSTS, -1, "send of 4 bytes", 1.0)
    assert host(1).stalled(GROUP, HOSTS, -1, "receive of 4 bytes", 1.0) is None


def test_a_long_wait_is_logged_once_with_what_the_others_told(caplog):
    caplog.set_level(logging.WARNING, logger="jax_passing")
    host(1).stalled(GROUP, HOSTS, 2, MAX, 1.0)
    own = host(0)
    for waited_s in (1.0, 2.0, 3.0):
        own.stalled(GROUP, HOSTS, 3, SUM, waited_s)
    assert [record.getMessage() for record in caplog.records] == [
        f"rank 0 has waited 2.0 s in {SUM}. rank 1 waited last in {MAX}; rank 2 made no call that waits"
    ]


def test_without_a_coordinator_nothing_is_compared(coordinator, monkeypatch):
    host(0).stalled(GROUP, HOSTS, 3, MAX, 1.0)
    coordinator.is_gone = True
    assert host(1).stalled(GROUP, HOSTS, 3, SUM, 1.0) is None
    monkeypatch.setattr(waits, "coordinator", lambda: None)
    assert host(1).stalled(GROUP, HOSTS, 3, SUM, 1.0) is None
