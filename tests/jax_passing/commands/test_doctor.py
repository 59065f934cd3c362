"""The command as users call it: on this machine, with and without a switch."""

import json
import os
import subprocess
import sys

import pytest
from in_process import SwitchThread

COMMAND = [sys.executable, "-P", "-m", "jax_passing", "doctor"]


def doctor(*arguments, **environment):
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("JAX_", "PYTHONHASH"))}
    ended = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        env=clean | {"COLUMNS": "300"} | environment,
    )
    assert not ended.stderr, ended.stderr
    return ended


def findings(*arguments, **environment):
    ended = doctor("--json", *arguments, **environment)
    told = json.loads(ended.stdout)
    by_check = {finding["check"]: finding for finding in told["findings"]}
    states = [finding["state"] for finding in told["findings"]]
    assert told["counts"] == {state: states.count(state) for state in set(states)}
    assert ended.returncode == (1 if "bad" in states else 0)
    return by_check


@pytest.fixture
def running():
    one = SwitchThread()
    yield one
    one.stop()


def test_with_a_switch(running):
    found = findings("--switch", running.address, PYTHONHASHSEED="0")
    for check in ("Python", "sum on this host", "PYTHONHASHSEED", "MTU", f"switch {running.address}", "packets"):
        assert found[check]["state"] == "good", found[check]
        assert found[check]["remedy"] == ""
    for check in ("socket buffers", "cores", "open files", "clock", "multicast", "rate of the link"):
        assert found[check]["reason"], check
    assert "switch" not in found
    assert found["settings"]["reason"] == "switch"


def test_the_table(running):
    ended = doctor(JAX_PASSING_SWITCH=running.address)
    table, _, counts = ended.stdout.rstrip().rpartition("\n")
    assert "Set PYTHONHASHSEED=0 on all hosts" in table  # a remedy
    assert " warning" in counts
    assert len([line for line in table.splitlines() if " good " in line]) > 5


def test_a_switch_that_is_not_there():
    found = findings("--switch", "127.0.0.1:1")
    assert found["switch 127.0.0.1:1"]["state"] == "bad"
    assert found["packets"]["state"] == "left out"


def test_settings_that_are_wrong():
    found = findings(JAX_PASSING_SWITCHES="a:1")
    assert found["settings"]["state"] == "bad"
    assert "JAX_PASSING_SWITCH?" in found["settings"]["reason"]
    assert found["switch"]["state"] == "left out"


def test_without_a_switch():
    found = findings()
    assert found["switch"]["state"] == "left out"
    assert "--switch" in found["switch"]["remedy"]
