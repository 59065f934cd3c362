"""Before JAX makes its devices it is checked whom its collectives reach."""

import logging
import multiprocessing
import os
import subprocess
import sys

import pytest

from jax_passing._compat import process
from jax_passing.errors import ConfigError
from jax_passing.for_jax import world
from jax_passing.host import init

SWITCH = {"JAX_PASSING_SWITCH": "127.0.0.1:9,127.0.0.2:9"}


@pytest.fixture
def check(monkeypatch):
    """`check(processes, variables)`."""

    def check(processes, variables):
        monkeypatch.setattr(process, "count", lambda: processes)
        monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], **variables})
        world.check()

    return check


@pytest.mark.parametrize("size", [{}, {"JAX_PASSING_WORLD_SIZE": "2", "JAX_PASSING_RANK": "0"}])
def test_a_process_that_is_alone_beside_a_switch_is_refused(check, size):
    with pytest.raises(ConfigError, match=r"\(127.0.0.1:9,127.0.0.2:9\).*only one.*Call jax.distributed.initialize"):
        check(1, {**SWITCH, **size})


@pytest.mark.parametrize(
    ("processes", "variables"),
    [
        (1, {}),  # a single process needs no switch
        (1, {**SWITCH, "JAX_PASSING_WORLD_SIZE": "1"}),  # it is asked for
        (2, SWITCH),
    ],
)
def test_other_worlds_are_left_alone(check, caplog, processes, variables):
    check(processes, variables)
    assert caplog.records == []


def test_several_processes_without_a_switch_are_warned(check, caplog):
    with caplog.at_level(logging.WARNING, "jax_passing"):
        check(2, {})
    assert "the first of them will fail. Set JAX_PASSING_SWITCH=HOST:PORT." in caplog.text


def test_what_init_is_told_counts(check, monkeypatch):
    """It makes devices, too, and may be given all settings as arguments."""
    monkeypatch.setattr(init, "is_opening", lambda: True)
    check(1, SWITCH)


def test_helpers_of_a_host_are_no_hosts(check, monkeypatch):
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: "a host")
    check(1, SWITCH)


@pytest.mark.parametrize(
    ("program", "variables"),
    [
        ("import jax; jax.devices()", {"JAX_PASSING_FOR_JAX": "1"}),
        ("import jax_passing; jax_passing.use_for_jax(); import jax; jax.devices()", {}),
    ],
)
def test_a_real_process_that_is_alone(program, variables):
    """JAX would ask us for nothing: without `jax.distributed` it makes no collectives at all."""
    environment = os.environ | SWITCH | variables
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("jax_passing.errors.ConfigError: A switch is configured (127.0.0.1")
