"""Switches behind UDP and a control connection, as `jax-passing conformance` tests any switch."""

import time
from contextlib import closing

import pytest
from typer.testing import CliRunner

from jax_passing.commands import cli
from jax_passing.config import parse_address
from jax_passing.conformance.exchanges import golden, limit_cases, reach_cases
from jax_passing.conformance.exchanges.model import Limits
from jax_passing.conformance.live import parent_role
from jax_passing.conformance.live.suite import LiveSwitch
from jax_passing.conformance.switch_under_test import UntestableError
from support.switch.in_process import SwitchThread
from support.switch.live_suite import KEY, failures
from support.switch.model_switch import ModelSwitch

FEW = [{"lanes_per_chunk": 64}, {"slots_per_job": 16, "slot_total": 48}]


@pytest.mark.parametrize("changes", [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in FEW)], ids=str)
def test_cpp_switch(changes):
    running = SwitchThread(**changes)
    try:
        failed, _ = failures(parse_address(running.address))
        assert failed == {}
    finally:
        running.stop()
    assert running.counters["epochs_failed"] == 1, "a check breaks a connection"


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, KEY], ids=["without a key", "with a key"])
def test_cpp_switch_with_a_parent(parent_at, key_file, key):
    running = SwitchThread(parent=parent_at, key_file=key and key_file)
    try:
        failed, not_applicable = failures(parse_address(running.address), 10, parent_at, key)
    finally:
        running.stop()
    assert failed == {}
    assert not_applicable < len(golden.read()), "the cases of trees apply"
    assert running.counters["answered"] > 100


def test_a_parent_has_a_jobs_new_numbers_as_soon_as_its_workers_do(monkeypatch, parent_at):
    def send(connection, message, usual=parent_role._Connection.send):
        usual(connection, message)
        time.sleep(0.2)  # the switch goes on meanwhile

    monkeypatch.setattr(parent_role._Connection, "send", send)
    running = SwitchThread(parent=parent_at)
    try:
        with closing(LiveSwitch(parse_address(running.address), parent_at)) as under_test:
            again = [check for check in under_test.checks() if "starts again" in check.description]
            assert [check.find() for check in again] == [""]
    finally:
        running.stop()


def test_a_switch_below_another_needs_as_parent():
    parent = SwitchThread()
    running = SwitchThread(parent=parse_address(parent.address))
    try:
        with pytest.raises(UntestableError, match="it has a parent: run this .* with --as-parent HOST:PORT"):
            LiveSwitch(parse_address(running.address))
    finally:
        running.stop()
        parent.stop()


@pytest.mark.slow
def test_a_switch_whose_parent_is_absent_needs_as_parent(parent_at):
    running = SwitchThread(parent=parent_at)
    try:
        with pytest.raises(
            UntestableError, match="it has a parent, which isn't there: run this .* --as-parent HOST:PORT"
        ):
            LiveSwitch(parse_address(running.address))
    finally:
        running.stop()


TOO_LITTLE = {
    "the test needs 16 for each of 3 jobs: start it with --slots-per-job 16": {"slots_per_job": 8},
    "(the test has up to 3 jobs at once): The switch at": {"slots_per_job": 16, "slot_total": 32},
    "its lease is 1 s, and workers of the test may be silent for longer": {"lease_s": 1.0},
}


@pytest.mark.parametrize("text", TOO_LITTLE)
def test_command_says_what_the_switch_has_too_little_of(text):
    running = SwitchThread(**TOO_LITTLE[text])
    try:
        result = CliRunner().invoke(cli.app, ["conformance", "--switch", running.address, "--exchanges", "0"])
    finally:
        running.stop()
    said = str(result.exception)
    assert text in said
    assert said.endswith(".")
    assert not said.endswith("..")


def test_command_prints_a_table(monkeypatch):
    first = golden.read()[:3]
    monkeypatch.setattr(golden, "read", lambda: first)
    for more in (limit_cases, reach_cases):
        monkeypatch.setattr(more, "cases", lambda limits: [])
    monkeypatch.setattr(LiveSwitch, "checks", lambda switch: [])
    running = SwitchThread()
    try:
        arguments = ["conformance", "--switch", running.address, "--exchanges", "3", "--seed", "40"]
        result = CliRunner().invoke(cli.app, arguments)
    finally:
        running.stop()
    assert result.exit_code == 0, result.output
    assert "seed 42" in result.output
    assert ", 0 failed, " in result.output


@pytest.mark.parametrize(
    "limits",
    [Limits(lanes_per_chunk=64, whole_chunks=True, worker_limit=32), Limits(lanes_per_chunk=8, worker_limit=3)],
    ids=str,
)
def test_other_limits(monkeypatch, limits):
    monkeypatch.setattr(LiveSwitch, "checks", lambda switch: [])  # which are the same whatever the limits
    with closing(ModelSwitch(limits)) as switch:
        failed, not_applicable = failures(switch.address, seeds=10)
    assert failed == {}
    assert not_applicable > 0
