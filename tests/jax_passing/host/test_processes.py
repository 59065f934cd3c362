"""Processes hear of each other by a coordinator that others may reach: nonsense is an error by name."""

import hashlib

import jax
import pytest

from jax_passing.errors import JoinError, UsageError
from jax_passing.host import processes
from support.jax.coordinator import coordinator_of_one


class Coordinator:
    """Everybody has come to its barriers; `changes` is what it has then."""

    def __init__(self, changes):
        self._changes, self._values = changes, {}

    def key_value_set(self, key, value):
        self._values[key] = value

    def wait_at_barrier(self, prefix, timeout_ms, who):
        self._values |= {f"{prefix}/{process}": text for process, text in self._changes.items()}

    def key_value_dir_get_bytes(self, folder):
        return [(key, value.encode()) for key, value in self._values.items() if key.startswith(folder)]


@pytest.fixture
def coordinator(monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 0)

    def holds(changes):
        one = Coordinator(changes)
        monkeypatch.setattr(processes, "coordinator", lambda: one)

    return holds


def test_others_than_the_processes_say_nothing(coordinator):
    coordinator({"1": "one", "2": "two", "x": "", "9" * 5000: ""})
    assert processes.told("a test", "zero", [0, 1], JoinError) == {0: "zero", 1: "one"}


def test_bytes_that_are_no_text_are_named_where_they_matter(monkeypatch):
    with coordinator_of_one() as client:
        monkeypatch.setattr(processes, "coordinator", lambda: client)
        for number in range(2):
            folder = f"jax_passing/{hashlib.sha256(b'a test [0]').hexdigest()[:32]}/{number}"
            client.key_value_set_bytes(f"{folder}/7", b"\xff")
            assert processes.told("a test", "\u20ac", [0], JoinError) == {0: "\u20ac"}
        monkeypatch.setattr(jax, "process_index", lambda: 1)  # and 0 says the bytes
        with pytest.raises(UsageError, match="has something else from process 0"):
            client.key_value_set_bytes(f"{folder[:-1]}2/0", b"\xff")
            processes.told_unless_refused("a test", "do this", 5, [0])


def test_what_is_lost_is_named(coordinator):
    coordinator({})
    with pytest.raises(JoinError, match="has lost what process 1 said in a test"):
        processes.told("a test", "zero", [0, 1], JoinError)


@pytest.mark.parametrize("text", ["no JSON", "3", "[1]", "[3, 4]", "{}", ""])
def test_what_makes_no_sense_is_named(coordinator, text):
    coordinator({"1": text})
    with pytest.raises(UsageError, match="has something else from process 1 than what it says when it calls a test"):
        processes.told_unless_refused("a test", "do this", 5, [0, 1])


def test_values_and_refusals_are_told(coordinator):
    coordinator({"1": "[null, [7]]"})
    assert processes.told_unless_refused("a test", "do this", 5, [0, 1]) == {0: 5, 1: [7]}
    coordinator({"1": '["too hot", null]'})
    with pytest.raises(UsageError, match="Process 1 can't do this, so no other does: too hot"):
        processes.told_unless_refused("a test", "do this", 5, [0, 1])
