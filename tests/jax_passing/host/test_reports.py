"""A session tells listeners of jax.monitoring how its sums are doing."""

import threading
import time

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.host.reports import BUSY_GBIT, BUSY_SHARE, Reports
from jax_passing.host.session import current
from support.switch.in_process import SwitchThread, until


class FakeSession:
    """This session has a rank, and counters that the test sets."""

    rank = 3

    def __init__(self):
        self.settings, self.closers = type("Settings", (), {"job": "a"}), []
        self.counters = {"session_s": 5.0, "tensor_bytes": 1000, "busy_us": 10**6}

    def stats(self):
        return dict(self.counters)


@pytest.fixture
def told():
    heard = []

    def listen(event, value, **labels):
        if event.startswith("/jax_passing/"):
            heard.append((event, value, labels))

    jax.monitoring.register_scalar_listener(listen)
    yield heard
    jax.monitoring.unregister_scalar_listener(listen)


def test_a_session_reports_when_it_ends_if_not_before(told):
    running = SwitchThread()
    mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
    with jax_passing.init(running.address, axis_name="d", rank=0, world_size=1):
        total = jax.jit(jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))(
            jnp.ones((1, 1 << 16), jnp.float32)
        )
        assert total[0, 0] == 1
    running.stop()
    (first, rate, labels), (second, share, _) = told
    assert (first, second) == (BUSY_GBIT, BUSY_SHARE)
    assert rate > 0
    assert 0 <= share <= 1
    assert labels == {"job": "test", "rank": 0}


@pytest.mark.parametrize(
    ("after", "gbit", "share"),
    [
        ({"session_s": 7.0, "tensor_bytes": 1000 + 10**8, "busy_us": 2 * 10**6}, 0.8, 0.5),
        ({"session_s": 2.0, "tensor_bytes": 10**8, "busy_us": 10**6}, 0.8, 0.5),  # it has joined again
        ({"session_s": 7.0}, 0.0, 0.0),  # there was no sum
        ({}, 0.0, 0.0),
    ],
)
def test_the_numbers_are_those_of_the_period(told, after, gbit, share):
    session = FakeSession()
    Reports(session)
    session.counters.update(after)
    session.closers.pop()()
    assert told == [
        (BUSY_GBIT, pytest.approx(gbit), {"job": "a", "rank": 3}),
        (BUSY_SHARE, pytest.approx(share), {"job": "a", "rank": 3}),
    ]


def test_it_reports_again_and_again(told):
    session = FakeSession()
    Reports(session, period_s=0.01)
    until(lambda: len(told) > 6)
    session.closers.pop()()


def test_a_listener_that_fails_or_hangs_holds_nobody_up(told, caplog):
    hangs = threading.Event()

    def bad(event, value, **labels):
        if event == BUSY_GBIT:
            raise ValueError("oops")

    def slow(event, value, **labels):
        hangs.wait(20)

    session = FakeSession()
    for listener, bound_s in ((bad, 1.0), (slow, 5.0)):
        jax.monitoring.register_scalar_listener(listener)
        try:
            Reports(session)
            began = time.monotonic()
            session.closers.pop()()
            assert time.monotonic() - began < bound_s + 2
        finally:
            hangs.set()
            jax.monitoring.unregister_scalar_listener(listener)
    assert "a listener of jax.monitoring failed" in caplog.text


def test_a_listener_may_end_its_session():
    running = SwitchThread()
    session = jax_passing.init(running.address, axis_name="d", rank=0, world_size=1)

    def end(event, value, **labels):
        if event == BUSY_SHARE:
            session.shutdown()

    jax.monitoring.register_scalar_listener(end)
    try:
        Reports(session, period_s=0.01)
        until(lambda: current() is None)
    finally:
        jax.monitoring.unregister_scalar_listener(end)
    with jax_passing.init(running.address, axis_name="d", rank=0, world_size=1) as again:
        assert again.epoch != session.epoch
    running.stop()
