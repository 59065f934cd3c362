"""Programs that tell of findings, hang, crash and print: what they told of before comes out."""

import subprocess

import pytest

from jax_passing.doctor import apart
from jax_passing.doctor.findings import Finding, bad, good, warning

TOLD = [good("one", "it is"), warning("two", "it isn't", "Mend it.")]
TELLS = """
import os, signal, sys, time
from jax_passing.doctor import apart
from jax_passing.doctor.findings import good, warning
def found():
    print("noise", flush=True)
    yield good(sys.argv[1], "it is")
    yield warning("two", "it isn't", "Mend it.")
    {then}
apart.tell(found())
"""


def trouble(what: str) -> Finding:
    return bad("process", what, "Help it.")


def findings(program):
    return list(apart.findings(program, "one", trouble))


def test_what_is_told():
    assert findings(TELLS.format(then="print('more')")) == TOLD


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV"),
        ("os._exit(3)", "ended with exit code 3: noise"),
        ("raise OSError('no card')", "ended with exit code 1: OSError: no card"),
    ],
)
def test_a_process_that_crashes(then, says):
    *told, last = findings(TELLS.format(then=then))
    assert (told, last) == (TOLD, trouble(says))


def test_a_process_that_hangs(monkeypatch):
    monkeypatch.setattr(apart, "TIMEOUT_S", 5.0)
    assert findings(TELLS.format(then="time.sleep(600)")) == [*TOLD, trouble("didn't end within 5 s")]


def test_a_process_that_tells_of_nothing():
    assert findings("raise SystemExit(0)") == [trouble("ended with exit code 0: it printed nothing")]


def test_a_process_that_nobody_can_end(monkeypatch):
    """A process that hangs inside the kernel can't be killed, and isn't waited for."""
    monkeypatch.setattr(apart, "TIMEOUT_S", 0.5)
    left = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: left.append(self))
    try:
        assert findings("import time; time.sleep(600)") == [trouble("didn't end within 0.5 s")]
        assert left[0].poll() is None
    finally:
        for child in left:
            child.send_signal(9)
            child.wait(10)


def test_a_process_that_does_not_start(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent")
    (found,) = findings("")
    assert found.reason.startswith("couldn't be started: ")
