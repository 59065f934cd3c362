"""The devices of a process get one session, or one reason why there is none."""

import threading
from types import SimpleNamespace

import jax
import pytest

from jax_passing import _native, config
from jax_passing.errors import SwitchUnreachableError
from jax_passing.for_jax import serving, shared
from jax_passing.host.loop import Loop


def test_the_session_is_opened_once_for_all_devices(monkeypatch):
    opened = []

    def open_in_vain(check):
        opened.append(threading.current_thread().name)
        raise SwitchUnreachableError("no switch answered")

    monkeypatch.setattr(shared, "init_for_jax", open_in_vain)
    server = serving.Server()
    raised = []

    def split(key):
        with pytest.raises(SwitchUnreachableError, match="no switch answered") as caught:
            server.split(0, key, (0, 1, 2))
        raised.append(caught.value)

    threads = [threading.Thread(target=split, args=[key]) for key in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    split(0)  # of the next group
    assert (len(raised), len(opened)) == (4, 1)


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
    (first, again, other, too) = (made[0] for made in splits)
    assert first == again != other == too
    assert [made[3] for made in splits] == [0, 1, 1, 0]
    assert all(isinstance(made[4], _native.LocalCollective) for made in splits)


def test_a_host_that_cannot_listen_for_messages_fails_the_session(session):
    loop, failures = Loop(), []
    ranks = SimpleNamespace(host=SimpleNamespace(shards=[SimpleNamespace(own_host="192.0.2.1")]))  # isn't ours
    session.control = SimpleNamespace(loop=loop, key=None, fail=lambda ranks, failure: failures.append(failure)), ranks
    try:
        with pytest.raises(OSError, match="assign"):
            serving.Server().split(0, 0, (0,))
        while session.closers:
            session.closers.pop()()
    finally:
        loop.close()
    assert [failure.kind for failure in failures] == ["PassingError"]
    assert failures[0].message.startswith("OSError: ")
