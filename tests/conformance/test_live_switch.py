"""Switches behind UDP and a control connection, as `jax-passing conformance` tests any switch."""

import itertools
import socket
from contextlib import closing
from dataclasses import replace

import pytest
from in_process import SwitchThread
from model_switch import ModelDataPlane, ModelSwitch
from typer.testing import CliRunner

from jax_passing import cli
from jax_passing.config import parse_address
from jax_passing.conformance import golden, live_job, run
from jax_passing.conformance.devices import DeviceError
from jax_passing.conformance.live import LiveSwitch
from jax_passing.conformance.model import VERDICTS, Limits
from jax_passing.conformance.packet import decode


def failures(address, seeds=20, parent_at=None):
    """By case; and how many were not applicable."""
    with closing(LiveSwitch(address, parent_at)) as device:
        done = [run.outcome(device, exchange) for exchange in run.cases(device.limits, 0, seeds)]
    return {one.exchange.description: one.failure for one in done if one.failure}, sum(
        bool(one.not_applicable) for one in done
    )


@pytest.mark.parametrize("changes", [{}, {"lanes_per_chunk": 64}, {"slots_per_job": 16}], ids=str)
def test_cpp_switch(changes):
    running = SwitchThread(**changes)
    try:
        failed, _ = failures(parse_address(running.address))
        assert failed == {}
    finally:
        running.stop()
    assert "epochs_failed" not in running.counters


def test_cpp_switch_with_a_parent():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        parent_at = unused.getsockname()
    running = SwitchThread(parent=parent_at)
    try:
        failed, not_applicable = failures(parse_address(running.address), seeds=10, parent_at=parent_at)
    finally:
        running.stop()
    assert failed == {}
    assert not_applicable < len(golden.read()), "the cases of trees apply"
    assert running.counters["answered"] > 100


def test_command_prints_a_table():
    running = SwitchThread()
    try:
        arguments = ["conformance", "--switch", running.address, "--exchanges", "3", "--seed", "40"]
        result = CliRunner().invoke(cli.app, arguments)
    finally:
        running.stop()
    assert result.exit_code == 0, result.output
    assert "seed 42" in result.output
    assert ", 0 failed, " in result.output


def test_command_says_what_is_wrong_with_the_address():
    result = CliRunner().invoke(cli.app, ["conformance", "--switch", "here"])
    assert "expected HOST:PORT" in str(result.exception)


@pytest.mark.parametrize(
    "limits",
    [Limits(lanes_per_chunk=64, whole_chunks=True, worker_limit=32), Limits(lanes_per_chunk=8, worker_limit=3)],
    ids=str,
)
def test_other_limits(limits):
    with closing(ModelSwitch(limits)) as switch:
        failed, not_applicable = failures(switch.address, seeds=10)
    assert failed == {}
    assert not_applicable > 0


class Fault:
    """One thing goes wrong: `change` gets the destinations and the packet of one kind of answer."""

    def __init__(self, verdict, change):
        self.verdict, self.change = verdict, change

    def __call__(self, verdict, to, packet):
        applies = verdict == self.verdict and decode(packet).sequence != 1  # the sequence of fences
        return self.change(to, packet) if applies else (to, packet)


FAULTS = {
    "result twice": (lambda to, out: (to + to[:1], out), "three workers", "A0 got"),
    "result not to all": (lambda to, out: (to[:2], out), "three workers", "A2 expects"),
    "flags lost": (lambda to, out: (to, replace(decode(out), flags=0).encode()), "+Inf of the last worker", "A0 exp"),
    "a bit": (lambda to, out: (to, out[:-1] + bytes([out[-1] ^ 1])), "one lane", "A0 expects"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name):
    change, case, text = FAULTS[name]
    with closing(ModelSwitch(fault=Fault("complete", change))) as switch:
        failed, _ = failures(switch.address, seeds=0)
    assert text in failed[case]


def test_a_resend_to_all_is_found():
    workers = []

    def change(to, out):
        workers.append(to[0])
        return workers[-2:], out

    with closing(ModelSwitch(fault=Fault("resend", change))) as switch:
        failed, _ = failures(switch.address, seeds=0)
    assert "resend: who asks again after completion gets the result, nobody else" in failed


def test_wrong_counts_are_found(monkeypatch):
    monkeypatch.setattr(ModelDataPlane, "stats", lambda self: {**dict.fromkeys(VERDICTS, 0), "resend": next(counts)})
    counts = itertools.count()
    with closing(ModelSwitch()) as switch:
        failed, _ = failures(switch.address, seeds=0)
    assert "added 0 times, not 1" in failed["two workers: the last one to contribute completes the sum, and all get it"]


def test_a_switch_that_never_answers_cant_be_tested(monkeypatch):
    monkeypatch.setattr(live_job, "ANSWER_S", 0.05)
    with (
        closing(ModelSwitch(fault=lambda verdict, to, packet: ((), packet))) as switch,
        pytest.raises(DeviceError, match="silence can't be told"),
    ):
        LiveSwitch(switch.address)
