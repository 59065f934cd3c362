"""Python, JAX and the handlers, as made-up environments have them; and JAX of this one."""

import pytest

from jax_passing.doctor import software
from jax_passing.doctor.findings import State


@pytest.mark.parametrize(("implementation", "state"), [("cpython", State.GOOD), ("pypy", State.WARNING)])
def test_python(implementation, state):
    assert software.python((3, 12, 1), implementation).state == state


@pytest.mark.parametrize(
    ("versions", "state", "says"),
    [
        ({"jax": "0.10.0", "jaxlib": "0.10.1"}, State.GOOD, "jax 0.10.0, jaxlib 0.10.1"),
        ({"jax": "0.10.0"}, State.BAD, "jaxlib: not installed"),
        ({}, State.BAD, "jax and jaxlib"),
        ({"jax": "0.10.1.dev20260401", "jaxlib": "0.10.1"}, State.WARNING, "no release"),
    ],
)
def test_jax(versions, state, says):
    found = software.jax(versions)
    assert (found.state, says in found.reason) == (state, True), found
    assert bool(found.remedy) == (state != State.GOOD)


def test_jax_of_this_environment():
    assert software.jax(software.installed(("jax", "jaxlib"))).state in (State.GOOD, State.WARNING)


@pytest.mark.parametrize(
    ("ended", "state"),
    [((0, "4.0\n"), State.GOOD), ((0, "3.0\n"), State.BAD), ((1, "Traceback\nRuntimeError: no\n"), State.BAD)],
)
def test_handlers(ended, state):
    found = software.handlers(lambda: ended)
    assert found.state == state
    assert ended[0] == 0 or "RuntimeError: no" in found.reason


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("Traceback\njax.errors.JaxRuntimeError: no\n----\nFor simplicity, JAX has removed\n", "JaxRuntimeError: no"),
        ("F1123 15:33:37 flags.cc:234] Unknown flag in XLA_FLAGS: --x\n", "Unknown flag in XLA_FLAGS: --x"),
        ("", "it printed nothing"),
    ],
)
def test_why_a_sum_fails(printed, says):
    found = software.handlers(lambda: (1, printed))
    assert found.reason.endswith(says)
    assert "XLA_FLAGS" in found.remedy


def test_a_sum_that_cannot_be_tried(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent")
    assert "it couldn't be started" in software.handlers(software.sum_of_one_host).reason


@pytest.mark.parametrize(("text", "state"), [("0", "good"), ("", "warning"), ("random", "warning")])
def test_hash_seed(text, state):
    assert software.hash_seed({"PYTHONHASHSEED": text}).state == state
