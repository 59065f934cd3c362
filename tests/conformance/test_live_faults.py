"""Switches with a fault are found, whatever the fault."""

import io
import itertools
import socket
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from jax_passing.conformance import run
from jax_passing.conformance.exchanges.exchange import Exchange, Step, answered_by_model, jobs_of
from jax_passing.conformance.exchanges.model import Limits
from jax_passing.conformance.live import fences, joining, suite
from jax_passing.conformance.live.job import LiveJob
from jax_passing.conformance.live.suite import LiveSwitch
from jax_passing.conformance.switch_under_test import UntestableError
from jax_passing.host.control.control_connection import ControlConnection
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import Packet, decode
from jax_passing.protocol.verdicts import VERDICTS
from support.switch.live_suite import failures, only
from support.switch.model_switch import ModelDataPlane, ModelSwitch


class Fault:
    """One thing goes wrong: `change` gets the destinations and the packet of one kind of answer."""

    def __init__(self, verdict, change):
        self.verdict, self.change = verdict, change

    def __call__(self, verdict, to, packet):
        applies = verdict == self.verdict and decode(packet).sequence != 1  # the sequence of fences
        return self.change(to, packet) if applies else (to, packet)


FAULTS = {
    "result twice": (lambda to, out: (to + to[:1], out), "three workers", "A0 got a packet"),
    "result not to all": (lambda to, out: (to[:2], out), "three workers", "A2 expects a packet, got nothing"),
    "flags lost": (lambda to, out: (to, replace(decode(out), flags=0).encode()), "+Inf of the last worker", "A0 exp"),
    "a bit": (lambda to, out: (to, out[:-1] + bytes([out[-1] ^ 1])), "one lane", "A0 expects"),
}


ALONE = "a job of one worker: each contribution is its own result"


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(monkeypatch, name):
    change, case, text = FAULTS[name]
    only(monkeypatch, case)
    with closing(ModelSwitch(fault=Fault("complete", change))) as switch:
        failed, _ = failures(switch.address, seeds=0)
    assert text in failed[case]


def test_a_resend_to_all_is_found(monkeypatch):
    only(monkeypatch, "resend: who asks again after completion")
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
    only(monkeypatch, "two workers: the last one to contribute")
    with closing(ModelSwitch()) as switch:
        failed, _ = failures(switch.address, seeds=0)
    assert "added 0 times, not 1" in failed["two workers: the last one to contribute completes the sum, and all get it"]


@pytest.mark.parametrize("workers", [33, 64])
def test_a_switch_may_take_only_so_many_packets_at_once(monkeypatch, workers):
    """bmv2 holds some 30 frames of a port until it wakes up: the 33rd worker was never heard."""
    monkeypatch.setattr(fences, "ANSWER_S", 0.1)
    with closing(ModelSwitch(ring=32)) as switch, closing(LiveJob(switch.address, workers)) as job:
        assert list(job.fences.everywhere()) == [[]] * workers


def test_steps_leave_room_in_a_small_ring():
    """One worker sends them all, so that none of another one asks for a fence in between."""
    fields = {"job": 3, "epoch": 11, "slot": 8, "lanes": (1,)}
    steps = tuple(Step("A0", Packet(**fields, sequence=sequence).encode(), "") for sequence in range(1, 61))
    exchange = answered_by_model(Exchange("ring", "many steps of one", jobs_of("A1"), steps), Limits())
    with closing(ModelSwitch(ring=24)) as switch, closing(LiveSwitch(switch.address)) as tested:
        assert run.outcome(tested, exchange).failure == ""


def test_numbers_of_no_job():
    assert suite.nobodys(7, {7, 8, 10}) == 9
    assert suite.nobodys(65_535, {65_535, 0}) == 1


def test_a_switch_that_never_answers_cant_be_tested(monkeypatch):
    monkeypatch.setattr(fences, "ANSWER_S", 0.05)
    with (
        closing(ModelSwitch(fault=lambda verdict, to, packet: ((), packet))) as switch,
        pytest.raises(UntestableError, match="silence can't be told"),
    ):
        LiveSwitch(switch.address)


def test_packets_from_another_port_are_found(monkeypatch):
    only(monkeypatch, ALONE)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:

        def from_elsewhere(to, out):
            other.sendto(out, to[0])
            return to, out

        with closing(ModelSwitch(fault=Fault("complete", from_elsewhere))) as switch:
            failed, _ = failures(switch.address)
    assert "; the switch sends from 127.0.0.1:" in failed[ALONE]


def test_results_that_come_again_later_are_found(monkeypatch):
    only(monkeypatch, ALONE, suite.SILENCE)
    send = ModelDataPlane.send

    def again(switch, to, out):
        with suppress(OSError):  # closed meanwhile
            send(switch, to, out)

    def twice(switch, to, out):
        send(switch, to, out)
        threading.Timer(0.3, again, (switch, to, out)).start()

    monkeypatch.setattr(ModelDataPlane, "send", twice)
    with closing(ModelSwitch()) as switch:
        failed, _ = failures(switch.address)
    assert "within 1 s came result: " in failed[suite.SILENCE]


def told(switch):
    output = io.StringIO()
    with closing(LiveSwitch(switch.address)) as under_test:
        assert run.report(under_test, 0, 0, Console(file=output, width=200))
    return output.getvalue()


def test_what_isnt_compared_is_told(monkeypatch):
    only(monkeypatch, ALONE)
    with closing(ModelSwitch()) as switch:
        assert "not compared" not in told(switch)
    monkeypatch.setattr(ModelDataPlane, "stats", lambda self: {"added": self._counts["added"]})
    monkeypatch.setattr(ModelDataPlane, "slot_version", lambda self, slot, version, plane: None)
    with closing(ModelSwitch()) as switch:
        text = told(switch)
    assert "not compared in 1 cases: how often it came to complete; it doesn't count that" in text
    assert "not compared in 1 cases: what its slots hold; The switch at" in text
    assert "how often it came to added" not in text


WELCOMES = {
    "lanes_per_chunk is 360 in its welcome to rank 0, 8 in that to rank 1": {"lanes_per_chunk": 8},
    "it numbers its 2 workers 0, 2": {"worker": 2},
}


@pytest.mark.parametrize("text", WELCOMES)
def test_welcomes_that_contradict_each_other_are_found(monkeypatch, text):
    only(monkeypatch, "two workers")
    encode = messages.encode

    def wrong(message):
        if isinstance(message, messages.Welcome) and message.worker == 1:
            message = msgspec.structs.replace(message, **WELCOMES[text])
        return encode(message)

    monkeypatch.setattr(messages, "encode", wrong)
    with closing(ModelSwitch()) as switch, pytest.raises(UntestableError, match=text):
        failures(switch.address)


@pytest.mark.parametrize("words", [b"x" * 100, b"echo"], ids=["junk", "what was sent"])
def test_a_switch_that_floods_cant_be_tested(monkeypatch, words):
    monkeypatch.setattr(fences, "ANSWER_S", 0.2)
    over = threading.Event()

    def flood(switch, to, out):
        with suppress(OSError):  # closed meanwhile
            while not over.wait(0.0001):
                switch._socket.sendto(out if words == b"echo" else words, to)

    def serve(switch):
        seen = set()
        while (received := switch._socket.recvfrom(65536))[0] != b"close":
            if received[1] not in seen:
                threading.Thread(target=flood, args=(switch, received[1], received[0])).start()
            seen.add(received[1])

    monkeypatch.setattr(ModelDataPlane, "_serve", serve)
    with closing(ModelSwitch()) as switch:
        try:
            with pytest.raises(UntestableError, match="it floods a worker"):
                LiveSwitch(switch.address)
        finally:
            over.set()


FLOODS = {
    "heartbeats": (messages.Heartbeat(), lambda control: joining.ask(control, messages.CountersQuery(), str)),
    "groups": (
        messages.GroupOffer("239.1.2.3", 1, 1, 1, 0),
        lambda control: joining._welcome(control, time.monotonic() + 0.5),
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_no_answer_is_waited_for_without_end(monkeypatch, name):
    monkeypatch.setattr(joining, "JOIN_S", 0.5)
    message, wait = FLOODS[name]
    greeting = messages.encode(messages.Hello(messages.PROTOCOL_VERSION, "", 7171, "s"))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def flood():
            theirs, _ = server.accept()
            with theirs, suppress(OSError):
                theirs.sendall(greeting)
                while True:
                    theirs.sendall(messages.encode(message))
                    theirs.setblocking(False)
                    with suppress(BlockingIOError):
                        theirs.recv(65536)
                    theirs.setblocking(True)

        thread = threading.Thread(target=flood)
        thread.start()
        control = ControlConnection(server.getsockname(), key=None, job="test")
        with pytest.raises(TimeoutError):  # in between two messages, or while it waits for the next
            wait(control)
        control.close()
        thread.join(10)
        assert not thread.is_alive()
