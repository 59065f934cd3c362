"""The command as users call it: on this machine, with and without a switch."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import jax_passing
from jax_passing.commands import cli
from jax_passing.doctor import software
from jax_passing.errors import ConfigError
from support.switch.in_process import SwitchThread


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("JAX_", "PYTHONHASH")):
            monkeypatch.delenv(name)


@pytest.fixture
def doctor(monkeypatch):
    """The command in this process, without the sum in one of its own, which takes longer than all the rest."""
    monkeypatch.setattr(software, "sum_of_one_host", lambda: (0, "4.0"))
    return lambda *arguments: CliRunner().invoke(cli.app, ["doctor", *arguments])


@pytest.fixture
def running():
    one = SwitchThread()
    yield one
    one.stop()


def findings(exit_code, text):
    """Returns the findings of --json by check."""
    told = json.loads(text)
    states = [finding["state"] for finding in told["findings"]]
    assert told["counts"] == {state: states.count(state) for state in set(states)}
    assert exit_code == (1 if "bad" in states else 0)
    return {finding["check"]: finding for finding in told["findings"]}


def test_with_a_switch(running, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("JAX_PASSING_SWITCH", running.address)  # doesn't matter to the sum on this host
    command = [sys.executable, "-P", "-m", "jax_passing", "doctor", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert not ended.stderr, ended.stderr
    found = findings(ended.returncode, ended.stdout)
    for check in ("Python", "sum on this host", "PYTHONHASHSEED", "MTU", f"switch {running.address}", "packets"):
        assert found[check]["state"] == "good", found[check]
        assert found[check]["remedy"] == ""
    for check in ("socket buffers", "cores", "open files", "multicast", "rate of the link"):
        assert found[check]["reason"], check
    assert "switch" not in found
    assert found["settings"]["reason"] == "switch"


def test_the_table(doctor, running):
    table, _, counts = doctor("--switch", running.address).stdout.rstrip().rpartition("\n")
    assert "Set PYTHONHASHSEED=0 on all hosts" in table  # a remedy
    assert " warning" in counts
    assert len([line for line in table.splitlines() if " good " in line]) > 5


def test_a_switch_that_is_not_there(doctor):
    ended = doctor("--json", "--switch", "127.0.0.1:1")
    found = findings(ended.exit_code, ended.stdout)
    assert found["switch 127.0.0.1:1"]["state"] == "bad"
    assert found["packets"]["state"] == "left out"


def test_settings_that_are_wrong(doctor, monkeypatch):
    monkeypatch.setenv("JAX_PASSING_SWITCHES", "a:1")
    ended = doctor("--json")
    found = findings(ended.exit_code, ended.stdout)
    assert found["settings"]["state"] == "bad"
    assert "JAX_PASSING_SWITCH?" in found["settings"]["reason"]
    assert found["switch"]["state"] == "left out"


@pytest.mark.parametrize("arguments", [(), ("--switch", "127.0.0.1:1", "--job", "job")])
def test_settings_that_contradict_each_other(doctor, monkeypatch, arguments):
    """The doctor says it in the words of init."""
    monkeypatch.setenv("JAX_PASSING_RANK", "7")
    assert findings(0, doctor("--json").stdout)["settings"]["state"] == "warning"  # the world size may still be found
    monkeypatch.setenv("JAX_PASSING_WORLD_SIZE", "2")
    ended = doctor("--json", *arguments)
    found = findings(ended.exit_code, ended.stdout)
    assert found["settings"]["state"] == "bad"
    with pytest.raises(ConfigError) as raised:
        jax_passing.init(switch="127.0.0.1:1", job="job")
    assert found["settings"]["reason"] == str(raised.value)
    assert "Rank 7 (variable JAX_PASSING_RANK) isn't below the world size 2" in found["settings"]["reason"]


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"WORLD_SIZE": "4"}, "switch, rank, job"),
        ({"RANK": "1", "SWITCH": "127.0.0.1:1"}, "world_size, job"),
        ({"RANK": "1", "WORLD_SIZE": "2", "SWITCH": "127.0.0.1:1", "JOB": "a"}, ""),
        ({"WORLD_SIZE": "1"}, ""),
        ({"SWITCH": "127.0.0.1:1"}, ""),  # on a machine where no host is started
    ],
)
def test_settings_that_are_missing(doctor, monkeypatch, given, missing):
    for name, value in given.items():
        monkeypatch.setenv("JAX_PASSING_" + name, value)
    told = {one["check"]: one for one in json.loads(doctor("--json").stdout)["findings"]}["settings"]
    assert told["state"] == ("warning" if missing else "good")
    assert (f"but no {missing}:" in told["reason"]) == bool(missing)
    assert all("JAX_PASSING_" + name.upper() in told["remedy"] for name in missing.split(", ") if name)


def test_without_a_switch(doctor):
    ended = doctor("--json")
    found = findings(ended.exit_code, ended.stdout)
    assert found["switch"]["state"] == "left out"
    assert "--switch" in found["switch"]["remedy"]


def test_a_driver_that_crashes(doctor, tmp_path, monkeypatch):
    """It takes nothing else along."""
    source = tmp_path / "driver.c"
    source.write_text("#include <stdlib.h>\nint cuInit(unsigned flags) { abort(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True, timeout=60)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path), prepend=os.pathsep)
    ended = doctor("--json")
    found = findings(ended.exit_code, ended.stdout)
    assert found["GPU driver"]["state"] == "bad"
    assert "was ended by SIGABRT" in found["GPU driver"]["reason"]
    assert found["Python"]["state"] == "good"
