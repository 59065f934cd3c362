"""A process has one session for all groups of devices."""

from types import SimpleNamespace

import jax
import pytest

from jax_passing import _native, config
from jax_passing.for_jax import serving, shared
from jax_passing.host.control.loop import Loop


@pytest.fixture
def session(monkeypatch):
    """It is open, with no switch behind it."""
    settings = config.Settings(rank=0, world_size=1)
    session = SimpleNamespace(settings=settings, rank=0, world_size=1, error=None, closers=[], control=None)
    monkeypatch.setattr(shared, "init_for_jax", lambda check: session)
    monkeypatch.setattr(serving, "current", lambda: session)
    yield session
    for close in session.closers:
        close()


def test_each_group_of_the_same_devices_is_another_one(session):
    server, devices = serving.Server(), tuple(device.id for device in jax.devices()[:2])
    splits = [server.split(devices[0], key, devices) for key in (0, 1, 1, 0)]
    (first, again, other, too) = (made.id for made in splits)
    assert first == again != other == too
    assert all(isinstance(made.collective, _native.LocalCollective) for made in splits)


def test_a_host_that_cannot_listen_for_messages_fails_the_session(session):
    loop, failures = Loop(), []
    ranks = SimpleNamespace(host=SimpleNamespace(shards=[SimpleNamespace(own_host="192.0.2.1")]))  # isn't ours
    control = SimpleNamespace(loop=loop, key=None, hosts_key=None, fail=lambda _, failure: failures.append(failure))
    session.control = control, ranks
    try:
        with pytest.raises(OSError, match="assign"):
            serving.Server().split(0, 0, (0,))
        while session.closers:
            session.closers.pop()()
    finally:
        loop.close()
    assert [failure.kind for failure in failures] == ["PassingError"]
    assert failures[0].message.startswith("OSError: ")
