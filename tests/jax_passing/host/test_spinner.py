"""A terminal shows that a host waits, as long as it waits; nothing else does."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, jax_passing
try:
    jax_passing.init("127.0.0.1:9", job="a [b]", rank=1, world_size=3, join_deadline_s=1)
except jax_passing.errors.SwitchUnreachableError:
    print("unreachable", file=sys.stderr)
"""
WAITS = "rank 1 of job 'a [b]' waits for 2 others at 127.0.0.1:9"


def run(stderr, **environment):
    command = [sys.executable, "-P", "-c", PROGRAM]
    everything = {**os.environ, "JAX_PLATFORMS": "cpu", "TERM": "xterm", **environment}
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, env=everything, timeout=120)


def on_terminal():
    reader, writer = os.openpty()
    try:
        run(writer, COLUMNS="100")
    finally:
        os.close(writer)
    shown = b""
    try:
        while data := os.read(reader, 65536):
            shown += data
    except OSError:  # nobody has the other end any more
        pass
    os.close(reader)
    return shown.decode()


def test_a_terminal_shows_it_and_is_clean_afterwards():
    shown = on_terminal()
    assert shown.count(WAITS) > 3  # it moves
    last = shown.rpartition(WAITS)[2]
    assert "\x1b[2K" in last  # erased
    assert last.rstrip().endswith("unreachable")
    assert "no switch at 127.0.0.1:9 yet" in shown  # the log goes on


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "shows"), [("0", False), ("1", True)])
def test_a_pipe_shows_nothing_unless_a_launcher_draws_it(variable, shows):
    ended = run(subprocess.PIPE, TTY_COMPATIBLE=variable, TTY_INTERACTIVE=variable)
    assert (WAITS in ended.stderr.decode()) == shows
    assert "unreachable" in ended.stderr.decode()
