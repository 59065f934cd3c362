"""The session is opened once, by whichever thread comes first."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jax_passing.for_jax import opening as module
from jax_passing.for_jax.opening import Once, Opening
from support.jax.coordinator import coordinator_of_one

THREADS = 8


def test_one_thread_makes_the_value_and_the_others_wait():
    begins, goes_on, calls = threading.Event(), threading.Event(), []

    def make():
        calls.append(None)
        begins.set()
        assert goes_on.wait(30)
        return object()

    once = Once(make)
    assert not once.is_begun
    with ThreadPoolExecutor(THREADS) as pool:
        found = [pool.submit(once.get) for _ in range(THREADS)]
        assert begins.wait(30)
        assert once.is_begun
        goes_on.set()
        values = {id(each.result(30)) for each in found}
    assert (len(values), len(calls)) == (1, 1)


def test_a_failure_stays():
    calls = []

    def make():
        calls.append(None)
        raise ValueError("no switch")

    opening = Opening(make)
    for _ in range(2):
        with pytest.raises(ValueError, match="no switch"):
            opening.get()
    assert len(calls) == 1


def test_a_process_without_others_waits_for_nobody_at_its_end():
    opening = Opening(object)
    opening.listen(0, 1)
    opening.end(lambda: None)
    assert opening.get() is opening.get()


def test_a_process_opens_when_told_though_by_bytes_that_are_no_text(monkeypatch):
    opened = threading.Event()
    with coordinator_of_one() as client:
        monkeypatch.setattr(module, "coordinator", lambda: client)
        client.key_value_set_bytes(module._OPENS, b"\xff")
        opening = Opening(opened.set)
        opening.listen(0, 2)
        assert opened.wait(10)
        opening.end(lambda: None)
