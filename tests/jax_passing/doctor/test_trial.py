"""Trials at real switches: what passes, what is lost on the way, who is refused. Nothing is left at the switch."""

import re
import socket
import threading
from contextlib import closing, suppress

import pytest

from jax_passing.config import parse_address
from jax_passing.conformance.live import joining
from jax_passing.conformance.live.data_socket import DataSocket, GroupSocket
from jax_passing.doctor import trial
from jax_passing.doctor.findings import State
from jax_passing.doctor.switch import findings as findings_of
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys
from support.keys import write_key
from support.switch.in_process import SwitchThread

JOB = "train"


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """However busy this machine is, nothing is lost that nobody takes away."""
    monkeypatch.setattr(trial, "ANSWER_S", 30.0)


@pytest.fixture
def switch():
    started = []

    def start(**changes):
        started.append(SwitchThread(**{"threads": 1, **changes}))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def findings(running, key=None, job=JOB):
    seen = trial.look(parse_address(running.address), key, job)
    return seen, {finding.check.partition(" ")[0]: finding for finding in findings_of(seen, running.address)}


def states(found):
    return {check: finding.state for check, finding in found.items()}


def lose(monkeypatch, lost):
    """Packets that `lost` says of, by their bytes, are lost on the way to the switch."""
    send = DataSocket.send_raw

    def send_some(self, packet):
        if not lost(packet):
            send(self, packet)

    monkeypatch.setattr(DataSocket, "send_raw", send_some)
    monkeypatch.setattr(trial, "ANSWER_S", 1.0)
    monkeypatch.setattr(trial, "TRIES", 2)


@pytest.mark.parametrize("lanes", [360, 32])
def test_all_is_well(switch, lanes):
    running = switch(lanes_per_chunk=lanes)
    seen, found = findings(running)
    assert states(found) == dict.fromkeys(("switch", "packets", "multicast"), State.GOOD), found
    assert [one.lanes for one in seen.passed] == [1, lanes]
    assert all(len(one.times_s) == one.tried == trial.CHUNKS for one in seen.passed)
    assert f"{lanes} lanes ({20 + 4 * lanes} bytes," in found["packets"].reason
    running.stop()
    assert running.counters["added"] > 0
    assert "failures" not in {name for name, count in running.counters.items() if count}


def test_a_switch_without_multicast(switch):
    _, found = findings(switch(multicast=False))
    assert found["multicast"].state == State.GOOD
    assert "doesn't use it" in found["multicast"].reason


def test_a_group_that_is_not_heard(switch, monkeypatch):
    monkeypatch.setattr("jax_passing.conformance.live.group_checks.PROBING_S", 0.3)

    def receive(self, until):
        raise TimeoutError

    monkeypatch.setattr(GroupSocket, "receive", receive)
    _, found = findings(switch())
    assert states(found) == {"switch": State.GOOD, "packets": State.GOOD, "multicast": State.WARNING}
    assert "0 of its 44 probes came" in found["multicast"].reason
    assert "--no-multicast" in found["multicast"].remedy


def test_long_packets_that_do_not_pass(switch, monkeypatch):
    lose(monkeypatch, lambda packet: len(packet) > 1400)
    _, found = findings(switch())
    assert found["packets"].state == State.BAD
    assert "those of 360 lanes (1460 bytes" in found["packets"].reason
    assert "--lanes-per-chunk" in found["packets"].remedy


def test_long_packets_that_pass_in_fragments_only(switch, monkeypatch):
    allowed = set()
    monkeypatch.setattr(DataSocket, "let_fragments", lambda self, yes: (allowed.add if yes else allowed.discard)(self))
    send = DataSocket.send_raw
    monkeypatch.setattr(
        DataSocket,
        "send_raw",
        lambda self, packet: send(self, packet) if len(packet) < 1400 or self in allowed else None,
    )
    monkeypatch.setattr(trial, "ANSWER_S", 1.0)
    seen, found = findings(switch(multicast=False))
    assert [(one.lanes, one.fragments, bool(one.trouble)) for one in seen.passed] == [
        (1, False, False),
        (360, False, True),
        (360, True, False),
    ]
    assert found["packets"].state == State.WARNING
    assert "only in fragments" in found["packets"].reason


def test_udp_that_does_not_pass(switch, monkeypatch):
    lose(monkeypatch, lambda packet: True)
    _, found = findings(switch())
    assert found["packets"].state == State.BAD
    assert "no answer" in found["packets"].reason
    assert "firewalls" in found["packets"].remedy


def test_a_packet_that_is_lost(switch, monkeypatch):
    seen = set()

    def lost(packet):  # the first one of a chunk
        before = len(seen)
        seen.add(packet[12:16])
        return len(seen) == 5 > before

    lose(monkeypatch, lost)
    _, found = findings(switch())
    assert found["packets"].state == State.WARNING
    assert re.search(rf"of {2 * trial.CHUNKS} chunks [1-9]\d* had to be sent again", found["packets"].reason)


def test_a_switch_that_adds_wrongly(switch, monkeypatch):
    receive = DataSocket.receive

    def other(self, until):
        packet = receive(self, until)
        return packet[:-1] + bytes([packet[-1] ^ 1])

    monkeypatch.setattr(DataSocket, "receive", other)
    _, found = findings(switch(multicast=False))
    assert found["packets"].state == State.BAD
    assert "sum of a chunk is wrong" in found["packets"].reason


@pytest.mark.parametrize("has_key", [False, True])
def test_all_threads_answer(switch, tmp_path, has_key):
    key = keys.new_key()
    key_file = write_key(tmp_path / "switch.key", keys.SWITCH, key) if has_key else None
    seen, found = findings(switch(threads=2, key_file=key_file), keys.job_key(key, JOB) if has_key else None)
    assert states(found) == dict.fromkeys(("switch", "packets", "threads", "multicast"), State.GOOD), found
    (passed,) = seen.passed_later
    assert len(passed.times_s) == passed.tried == trial.CHUNKS
    assert "each of the switch's 2 threads answers" in found["threads"].reason


def test_a_thread_whose_port_nothing_reaches(switch, monkeypatch):
    """A firewall lets UDP to the first port pass alone."""
    running = switch(threads=2, multicast=False)
    host, port = parse_address(running.address)
    send = DataSocket.send_raw
    monkeypatch.setattr(
        DataSocket, "send_raw", lambda self, packet: send(self, packet) if self._switch[1] == port else None
    )
    monkeypatch.setattr(trial, "ANSWER_S", 1.0)
    monkeypatch.setattr(trial, "TRIES", 2)
    _, found = findings(running)
    assert (found["packets"].state, found["threads"].state) == (State.GOOD, State.BAD)
    assert found["threads"].reason == f"UDP to {host}:{port + 1}: no answer to 2 packets of 24 bytes"
    assert f"Let UDP to ports {port} to {port + 1} pass" in found["threads"].remedy
    assert "--threads 1" in found["threads"].remedy


def test_a_key(switch, tmp_path):
    key = keys.new_key()
    running = switch(key_file=write_key(tmp_path / "switch.key", keys.SWITCH, key))
    _, found = findings(running, keys.job_key(key, JOB))
    assert states(found) == dict.fromkeys(("switch", "packets", "multicast"), State.GOOD), found
    assert "1468 bytes" in found["packets"].reason  # with a tag
    for wrong, job in ((None, JOB), (keys.job_key(key, "other"), JOB), (keys.job_key(key, JOB), "other")):
        _, found = findings(running, wrong, job)
        assert states(found) == {"switch": State.BAD, "packets": State.LEFT_OUT}, (job, found)
        assert "--key-file" in found["switch"].remedy
    _, found = findings(switch(), keys.job_key(key, JOB))
    assert found["switch"].state == State.BAD  # a switch that wants no key
    assert "the switch its own key, or neither" in found["switch"].remedy


def test_no_slots(switch):
    running = switch(slot_total=64, slots_per_job=64, slots_per_address=64, multicast=False)
    host, port = parse_address(running.address)
    workers = [joining.WorkerEnd((host, port), "other", None)]
    try:
        joining.join(workers, "other", joining.decline, 5.0)
        seen, found = findings(running)
    finally:
        workers[0].close()
    assert "slots" in seen.refused
    assert states(found) == {"switch": State.GOOD, "packets": State.WARNING}


@pytest.mark.parametrize(
    ("data_host", "says"), [("", "timed out"), ("no-such-host.invalid", "Name or service not known")]
)
def test_a_switch_that_only_greets(monkeypatch, data_host, says):
    """It is stopped, or where it says that packets go, nothing is."""
    monkeypatch.setattr(trial, "JOIN_S", 0.5)
    monkeypatch.setattr(joining, "ANSWER_S", 0.1)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        hello = messages.Hello(messages.PROTOCOL_VERSION, data_host=data_host, data_port=port, instance="any")
        accepted = []

        def greet():
            with suppress(OSError):
                while True:
                    accepted.append(server.accept()[0])
                    accepted[-1].sendall(messages.encode(hello))

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            seen = trial.look(("127.0.0.1", port), None, JOB)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            for one in accepted:
                one.close()
    greets, packets = findings_of(seen, "there")
    assert (greets.state, packets.state) == (State.GOOD, State.BAD)
    assert says in packets.reason


def test_nobody_answers():
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = free.getsockname()
    seen = trial.look(address, None, JOB)
    found = findings_of(seen, "there")
    assert [one.state for one in found] == [State.BAD, State.LEFT_OUT]
    assert "No switch answered" in found[0].reason
