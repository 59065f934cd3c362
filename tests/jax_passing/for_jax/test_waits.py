"""Hosts that wait find out, by what they tell the coordinator, whether they wait for the same."""

import logging

import jax
import pytest

from jax_passing.for_jax import waits
from jax_passing.for_jax.groups import DeviceGroup
from jax_passing.for_jax.waits import Wait, Waits
from jax_passing.protocol import keys
from support.jax.coordinator import coordinator_of_one

GROUP, HOSTS = 5, (0, 1, 2)  # each has a device, but the first two
KEY = bytes(range(32))
SUM, MAX = "all_reduce sum, call 3", "all_reduce max, call 3"


class Coordinator:
    def __init__(self):
        self.values, self.is_gone = {}, False

    def key_value_set(self, key, value, allow_overwrite):
        if self.is_gone:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE")
        assert allow_overwrite
        self.values[key] = value

    def key_value_dir_get_bytes(self, folder):
        return [(key, value.encode()) for key, value in self.values.items() if key.startswith(folder)]


@pytest.fixture(autouse=True)
def coordinator(monkeypatch):
    one = Coordinator()
    monkeypatch.setattr(waits, "coordinator", lambda: one)
    return one


def host(rank, job="job", key=None, run=""):
    return Waits(rank, job, 2.0, key, run)


def stalled(waits, number, what, still_s=1.0, group=GROUP, device=0):
    return waits.stalled(DeviceGroup(group, "four devices", (0, 1, 2, 0)), device, Wait(group, number, what), still_s)


def test_hosts_in_the_same_call_wait_on():
    assert [stalled(host(rank), 3, SUM) for rank in HOSTS] == [None] * 3


def test_hosts_in_different_calls_of_one_number_are_told_apart():
    assert stalled(host(0), 3, SUM) is None
    failure = stalled(host(1), 3, MAX)
    assert failure.kind == "ProgramMismatchError"
    assert f"rank 0 called {SUM}; rank 1 called {MAX}" in failure.message
    assert stalled(host(0), 3, SUM) == failure


@pytest.mark.parametrize(
    ("group", "number", "job"),
    [(GROUP, 2, "job"), (GROUP + 1, 3, "job"), (GROUP, 3, "another job")],
    ids=["a call that is over", "another group", "another job"],
)
def test_what_was_told_of_another_call_is_no_difference(group, number, job):
    stalled(host(0, job), number, MAX, group=group)
    assert stalled(host(1), 3, SUM) is None


def test_a_device_does_not_hide_what_another_one_waits_in():
    own = host(0)
    stalled(own, 3, SUM)
    stalled(own, 8, SUM, group=GROUP + 1, device=1)
    assert stalled(host(1), 3, MAX).kind == "ProgramMismatchError"


def test_a_wait_that_is_over_is_forgotten(monkeypatch):
    own = host(0)
    stalled(own, 3, SUM)
    monkeypatch.setattr(waits.time, "monotonic", lambda: 1e9)
    stalled(own, 8, SUM, group=GROUP + 1, device=1)
    assert stalled(host(1), 3, MAX) is None


def test_messages_may_differ():
    stalled(host(0), -1, "send of 4 bytes")
    assert stalled(host(1), -1, "receive of 4 bytes") is None


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, logger="jax_passing")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_long_wait_is_logged_once_with_what_the_others_told(warnings):
    stalled(host(1), 2, MAX)
    own = host(0)
    for still_s in (1.0, 2.0, 3.0):
        for device in (3, 0):
            stalled(own, 3, SUM, still_s, device=device)
    assert warnings() == [
        f"rank 0 has waited 2.0 s without progress in {SUM}. "
        f"rank 1 waited last in {MAX}; rank 2 made no call that waits."
    ]


def test_all_hosts_may_wait_in_one_call(warnings):
    own = host(0)
    stalled(own, 3, SUM, device=3)
    for rank in (1, 2):
        stalled(host(rank), 3, SUM, device=rank)
    stalled(own, 3, SUM, 2.0)
    assert warnings() == [f"rank 0 has waited 2.0 s without progress in {SUM}. All hosts of this group wait in it."]


def test_a_device_that_does_not_come_is_named(warnings):
    """As when a callback raised in its program: its host waits, and yet it is missing."""
    stalled(host(0), 3, SUM)
    stalled(host(2), 3, SUM, device=2)
    stalled(host(1), 3, SUM, 2.0, device=1)
    (text,) = warnings()
    assert text.endswith("rank 0 waits in it without its device 3 of the group: maybe the program has failed there.")


def test_each_message_that_waits_is_logged_with_the_others(warnings):
    stalled(host(1), -1, "send of 4 bytes")
    stalled(host(2), 2, MAX)
    own = host(0)
    for still_s in (2.0, 3.0, 1.0, 2.0):  # two messages of the same size, one after the other
        stalled(own, -1, "receive of 4 bytes", still_s)
    others = f"rank 1 waited last in send of 4 bytes; rank 2 waited last in {MAX}."
    assert warnings() == [f"rank 0 has waited 2.0 s without progress in receive of 4 bytes. {others}"] * 2


def test_without_a_coordinator_nothing_is_compared(coordinator, monkeypatch):
    stalled(host(0), 3, MAX)
    coordinator.is_gone = True
    assert stalled(host(1), 3, SUM) is None
    monkeypatch.setattr(waits, "coordinator", lambda: None)
    assert stalled(host(1), 3, SUM) is None


def test_bytes_that_are_no_text_end_no_job(monkeypatch):
    """Nor do they hide what the others told, though JAX's own client can't read them as text."""
    with coordinator_of_one() as client:
        monkeypatch.setattr(waits, "coordinator", lambda: client)
        client.key_value_set_bytes("jax_passing/waits/job/2", b"\xff")
        with pytest.raises(UnicodeDecodeError):
            client.key_value_dir_get("jax_passing/waits/job/")
        assert stalled(host(0), 3, SUM) is None
        assert stalled(host(1), 3, MAX).kind == "ProgramMismatchError"


@pytest.mark.parametrize("key", [None, KEY], ids=["without a key", "with a key"])
@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[1]",
        '[[5, 3, "x"]]',
        "[[5, 3, 4, []]]",
        '{"a": 1}',
        "",
        "\u2028",
        '[[5,3,"' + "x" * 5000 + '",[1]]]',
    ],
)
def test_what_makes_no_sense_is_left_out(coordinator, warnings, key, text):
    coordinator.values["jax_passing/waits/job/1"] = text
    coordinator.values["jax_passing/waits/job/99"] = '[[5, 3, "a lie", [1]]]'
    coordinator.values["jax_passing/waits/job/x"] = "0"
    assert stalled(host(0, key=key), 3, SUM, 2.0) is None
    assert "ranks 1, 2 made no call that waits" in warnings()[0]


def test_a_lie_ends_no_job_that_has_a_key(coordinator):
    lie = '[[5, 3, "all_reduce max of a liar", [1]]]'
    own = host(0, key=KEY, run="today")
    for told in (
        lie,
        keys.sealed(bytes(32), "waits today 1", lie),
        keys.sealed(KEY, "waits yesterday 1", lie),  # repeated from another run
        keys.sealed(KEY, "waits today 2", lie),  # of another rank
    ):
        coordinator.values["jax_passing/waits/job/1"] = told
        assert stalled(own, 3, SUM) is None
    assert stalled(host(1, key=KEY, run="today"), 3, MAX, device=1).kind == "ProgramMismatchError"
    assert stalled(own, 3, SUM).kind == "ProgramMismatchError"
