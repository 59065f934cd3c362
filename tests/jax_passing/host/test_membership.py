"""Hosts tell each other of their programs through a switch; the transports here tell of programs as they are told."""

import dataclasses
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import pytest
from support.jax.program_infos import identity, program
from support.switch.in_process import SwitchThread, settings_of, until

from jax_passing import _native
from jax_passing.errors import Failure
from jax_passing.host import membership, programs
from jax_passing.host.membership import Membership
from jax_passing.protocol import control_messages as messages


@pytest.fixture(scope="module")
def running():
    switch = SwitchThread()
    yield switch
    switch.stop()


class TellingTransport:
    """A host's transport, with events of its own."""

    def __init__(self, transport):
        self._transport = transport
        self.events = queue.SimpleQueue()
        self.ordered = []

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def wait_event(self, _):
        try:
            return self.events.get(timeout=0.01)
        except queue.Empty:
            return self._transport.wait_event(0.0)

    def deliver_order_message(self, content):
        self.ordered.append(content)

    def runs(self, info):
        self.events.put(info)

    def orders(self, content):
        self.events.put(_native.OrderMessage(content))


@pytest.fixture
def hosts(running):
    with ThreadPoolExecutor(3) as pool:
        several = list(pool.map(lambda rank: _join(settings_of(running, rank, 3)), range(3)))
    for host in several:
        host.transport = TellingTransport(host.transport)
        host.start()
    yield several
    for host in several:
        host.close()


def _join(settings):
    return Membership(settings)


def run_on_all(hosts, *infos):
    for info in infos:
        for host in hosts:
            host.transport.runs(info)


def test_equal_programs_and_the_order_beside_them(hosts):
    run_on_all(hosts, program(), program(devices="0"), program(identity(stream="data")))
    hosts[0].transport.orders(b"first")
    hosts[0].transport.orders(b"")
    for host in hosts[1:]:
        until(lambda host=host: host.transport.ordered == [b"first", b""])
        until(lambda host=host: host._ledger.waiting() == "")
    assert [host.failure for host in hosts] == [None] * 3
    assert hosts[0].transport.ordered == []


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("rank_0_first", [False, True])
def test_all_hosts_hear_at_once_of_a_program_that_differs(hosts, odd, rank_0_first):
    run_on_all(hosts, program())
    for host in hosts if rank_0_first else reversed(hosts):
        tree = ["['loss']", "['memory']" if host is hosts[odd] else "['learning_rate']"]
        host.transport.runs(program(identity(leaves=[[path, "float32[]"] for path in tree])))
    for host in hosts:
        until(lambda host=host: host.failure)
        assert host.failure.kind == "ProgramMismatchError"
        assert "{loss, memory}" in host.failure.message
        assert "{loss, learning_rate}" in host.failure.message
        assert "Sum the same tree on all hosts." in host.failure.message


def test_a_long_program_travels(hosts):
    sums = [identity(place=[f"train.py:{index}:9 in step"]) for index in range(4000)]
    run_on_all(hosts, program(*sums))
    for host in hosts[1:]:
        until(lambda host=host: host._ledger._compared.total() == 1)
        assert host.failure is None


def test_a_stall_tells_of_programs_that_rank_0_hasnt(hosts, caplog):
    hosts[1].transport.runs(program(name="jit_alone"))
    until(lambda: hosts[1]._ledger.waiting())
    stall = SimpleNamespace(
        waits_for_gpu=False,
        waits_for_order=True,
        shard=0,
        slot=0,
        version=0,
        sequence=0,
        site_name="psum",
        execution=0,
        step=0,
    )
    note, failure = hosts[1]._stalls.report(stall, 5.0)
    assert note.endswith("Rank 1 runs jit_alone on devices 0,1, rank 0 hasn't so far.")
    assert note in caplog.text
    assert failure is None


@pytest.mark.parametrize("payload", [b"", b"\2", b"\1{}", b"x"], ids=repr)
def test_what_rank_0_doesnt_relay(hosts, payload):
    with pytest.raises(msgspec.DecodeError):
        hosts[1]._on_relay(payload)


def test_a_switch_that_doesnt_read_holds_up_nobody_but_who_tells_it(hosts, monkeypatch):
    monkeypatch.setattr(membership, "TELL_S", 0.1)
    host, reads = hosts[1], threading.Event()
    tells = threading.Event()
    monkeypatch.setattr(host._shards[0], "send", lambda _: (tells.set(), reads.wait(60)))
    telling = threading.Thread(target=host.fail, args=(Failure("HostLostError", "first"),))
    telling.start()
    assert tells.wait(60)
    began = time.monotonic()
    host.fail(Failure("HostLostError", "second"))
    host.close()
    assert time.monotonic() - began < 20
    assert host.failure.message == "first"
    reads.set()
    telling.join()


def test_facts_of_a_join(running):
    settings = dataclasses.replace(settings_of(running, 0, 1), axis_name=("d",))
    host = _join(settings)
    try:
        join = host._join(host._shards[0], 0.0, 2)
        assert join.alike == membership.alike.facts(settings, 2)
        assert join == messages.decode_from_member(messages.encode(join))
    finally:
        host.close()


def test_the_payload_of_the_longest_program_fits():
    longest = programs.bounded(program(*["\0" * 1000] * 200, name="\0" * 9999, fingerprint="\0" * 99_999))
    line = messages.encode(messages.Relay(messages.RELAYED_PROGRAM + programs.encode(longest)))
    assert len(line) < messages.RELAY_LINE_BYTES_MAX
    assert messages.decode_from_switch(line).payload[:1] == messages.RELAYED_PROGRAM
