"""Fixtures of the conformance suite's tests."""

import socket

import pytest

from jax_passing.conformance.live import fences
from jax_passing.protocol import keys
from support.keys import write_key
from support.switch.live_suite import KEY


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine must not make the suite ask again: it doesn't compare what may have been counted twice."""
    monkeypatch.setattr(fences, "ANSWER_S", 5.0)


@pytest.fixture
def parent_at():
    """An address where nobody listens yet."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return unused.getsockname()


@pytest.fixture
def key_file(tmp_path):
    return write_key(tmp_path / "switch.key", keys.SWITCH, KEY)
