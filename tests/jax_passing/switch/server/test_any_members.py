"""A switch whose members say anything at any time: whoever understands the protocol is told what he can read, and once
all of them are gone nothing of theirs is left.

Random bytes say what happens, a few of them each: somebody connects, says something, goes away; time passes.
"""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CONNECT_TIMEOUT_S
from simulation.packetless import packetless_switch, packetless_world
from simulation.world import Machine, Process, World

PEERS_MAX = 12
RAW = (b"\n", b"{}\n", b"\xff\n", b'{"type":"heartbeat"}\n', b'{"type":"join"}\n', b"[" * 100 + b"\n")


class Input:
    def __init__(self, data: bytes):
        self._rest = memoryview(data)

    def __bool__(self) -> bool:
        return len(self._rest) > 0

    def below(self, bound: int) -> int:
        if not self:
            return 0
        byte, self._rest = self._rest[0], self._rest[1:]
        return byte % bound

    def one_of(self, choices):
        return choices[self.below(len(choices))]

    def bytes(self, count: int) -> bytes:
        taken, self._rest = bytes(self._rest[:count]), self._rest[count:]
        return taken


class Peer:
    """Whoever connects: a host, a rack's switch or a stranger."""

    def __init__(self):
        self.stream = None
        self.instance = ""  # of the switch
        self.is_rack = False
        self.meeting = 0  # the last one

    def opened(self, stream):
        self.stream = stream

    def heard(self, line):
        message = messages.decode_from_parent(line) if self.is_rack else messages.decode_from_switch(line)
        if isinstance(message, messages.Hello):
            self.instance = message.instance
        if isinstance(message, messages.RackMet):
            message = message.answer
        if isinstance(message, messages.Met):
            self.meeting = message.meeting

    def closed(self, error):
        self.stream = None

    def say(self, message):
        if self.stream is not None:
            self.is_rack |= isinstance(message, messages.RackJoin | messages.RackMeet)
            self.stream.send(message)


def _join(input, peer):
    world_size = input.one_of([1, 2, 2, 3, 70])
    return messages.Join(
        protocol_version=input.one_of([messages.PROTOCOL_VERSION] * 7 + [9]),
        job=input.one_of(["a", "a", "b", "a#1"]),
        rank=input.below(4),
        world_size=world_size,
        switches=input.one_of([(peer.instance or "x",)] * 3 + [("x",), ("x", peer.instance or "y")]),
        udp_port=1000 + input.below(4),
        instance=f"process {input.below(6)}",
        join_deadline_s=input.one_of([5.0, 1.0]),
        alike=input.one_of([{}, {}, {"jax": "1"}, {"jax": "2", "strategy": "flat"}]),
    )


def _rack_join(input, peer):
    data_host = input.one_of(["", "", "10.2.0.1", "224.0.0.1", "::1", "no address"])
    job = input.one_of(["a", "b"])
    return messages.RackJoin(messages.PROTOCOL_VERSION, job, f"rack {input.below(3)}", "10.2.0.1:1", 1000, data_host)


def _rank_join(input, peer):
    return messages.RankJoin(
        rank=input.below(4),
        world_size=input.one_of([1, 2, 3]),
        instance=f"process {input.below(6)}",
        host="10.3.0.1",
        shards=1 + input.below(2),
        alike={},
        join_deadline_s=5.0,
        wait_s=input.one_of([5.0, 0.5]),
        slot_count=input.one_of([64, 256, 3, 1 << 16]),
        lanes_per_chunk=input.one_of([360, 3, 400]),
        whole_chunks=bool(input.below(2)),
        path=input.one_of([("rack 0",), (peer.instance or "x",), tuple("abcdefgh")]),
    )


def _meet(input, peer):
    return messages.Meet(
        protocol_version=messages.PROTOCOL_VERSION,
        job=input.one_of(["a", "a", "b"]),
        instance=f"process {input.below(6)}",
        rank=input.below(4),
        world_size=input.one_of([1, 2, 3]),
        world_size_min=1 + input.below(2),
        deadline_s=input.one_of([5.0, 0.3]),
        wait_s=input.one_of([0.0, 0.3]),
        step=input.one_of([None, 5, 6]),
        meeting=input.one_of([0, peer.meeting, 7]),
        hosts=input.below(3),
        quorum=input.below(3),
        aside=bool(input.below(2)),
    )


def _rack_meet(input, peer):
    return messages.RackMeet(input.below(3), input.one_of([_meet, _meet, lambda *_: None])(input, peer))


SAYINGS = (
    _join,
    _join,
    _join,
    _rack_join,
    _rank_join,
    _rank_join,
    _meet,
    _meet,
    _rack_meet,
    lambda input, peer: messages.RankGone(input.below(4)),
    lambda input, peer: messages.Prepared(input.below(4)),
    lambda input, peer: messages.GroupReady(input.below(4), input.one_of(["", "no device"])),
    lambda input, peer: messages.GroupHeard(input.below(4)),
    lambda input, peer: messages.GroupLost(),
    lambda input, peer: messages.Relay(input.bytes(input.below(8))),
    lambda input, peer: messages.Query(input.one_of([None, 0, 1, 255, 256, 1 << 20]), input.below(2)),
    lambda input, peer: messages.CountersQuery(),
    lambda input, peer: messages.StatusQuery(input.below(12)),
    lambda input, peer: messages.Heartbeat(),
    lambda input, peer: messages.Leave(),
    lambda input, peer: messages.Left(tuple(range(input.below(4)))),
    lambda input, peer: messages.Fail(input.one_of(["HostLostError", "x"]), "a text", (input.below(4),)),
    lambda input, peer: messages.Refused(input.one_of(["JoinError", "x"]), "a text", input.one_of([None, 0, 1])),
    lambda input, peer: messages.Ask(input.below(3), input.below(8), input.below(2), input.below(8), 0.5),
    lambda input, peer: messages.Answer(input.below(3), tuple(range(input.below(3))), True, bool(input.below(2))),
    lambda input, peer: input.one_of(RAW),
    lambda input, peer: input.bytes(input.below(64)) + b"\n",
)


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])  # more of the same
def test_whoever_speaks_leaves_nothing_behind(caplog, count):
    caplog.set_level(logging.CRITICAL, logger="jax_passing.switch")  # what it logs would take most of the time
    settings(max_examples=count)(given(st.binary(min_size=1, max_size=300))(play))()


def play(data: bytes) -> None:
    input = Input(data)
    world = packetless_world(seed=input.below(8))
    switch = packetless_switch(world, 0)
    callers = [Process(world, Machine(world, f"10.1.0.{number}")) for number in range(1, 4)]
    peers: list[Peer] = []
    while input:
        operation = input.below(8)
        if operation == 0 or not peers:
            if len(peers) < PEERS_MAX:
                peers.append(Peer())
                world.connect(callers[len(peers) % 3], switch.address, CONNECT_TIMEOUT_S, peers[-1], "", None)
                _pass(world, 0.5)
        elif operation == 1:
            peer = input.one_of(peers)
            if peer.stream is not None and input.below(2):
                peer.stream.give_up()
            elif peer.stream is not None:
                peer.stream.close()
        elif operation == 2:
            _pass(world, input.one_of([0.05, 0.3, 2.0, 6.0]))
        else:
            peer = input.one_of(peers)
            peer.say(input.one_of(SAYINGS)(input, peer))
    for peer in peers:
        if peer.stream is not None:
            peer.stream.give_up()
    _pass(world, 60.0)
    process = switch.process
    assert process.data_plane.running == {}, process.data_plane.running
    assert process.plane.held() == {}


def _pass(world: World, time_s: float) -> None:
    world.run(lambda: False, world.now() + time_s)
