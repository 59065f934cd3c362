"""Contributions through bmv2, frame by frame. All rules of the protocol: jax_passing.conformance; here what is this
program's own: its lanes, its checks of lengths, whom it answers how."""

import contextlib
import random
import time

import pytest

from jax_passing.protocol.packet import BARE, EVERY_WORKER, MAX, RESULT, SUM
from jax_passing.switch.data_planes import p4
from jax_passing.switch.data_planes.data_plane import JobSlots, Parent
from jax_passing.switch.data_planes.pipeline import DeviceError
from support.net.frames import IPV4, UDP, ethernet, ipv4, passing, udp, udp_checksum
from support.p4 import network

HOSTS = network.HOSTS
JOB, EPOCH, SLOT_FIRST, SLOT_COUNT = 7, 3, 64, 32
UDP_PORT = 5000  # of every worker, plus its number
LAST = 2**32 - 1


@pytest.fixture
def job(switch):
    """A job of workers 0 to 2, at ports 0 to 2."""
    with admitted(switch, 3):
        yield


@contextlib.contextmanager
def admitted(switch, workers):
    addresses = tuple((HOSTS[worker][1], UDP_PORT + worker) for worker in range(workers))
    switch.data_plane.add_job(JobSlots(JOB, EPOCH, SLOT_FIRST, SLOT_COUNT, addresses))
    try:
        yield
    finally:
        switch.data_plane.remove_job(JOB)


def frame(switch, host, data, *, port=None, udp_bytes=None, check=0, **ip_header):
    mac, ip = HOSTS[host]
    packet = udp(UDP_PORT + host if port is None else port, switch.udp_port, data, udp_bytes=udp_bytes, check=check)
    return ethernet(mac, switch.mac, IPV4, ipv4(ip, switch.ip, UDP, packet, **ip_header))


def fields(host, **changed):
    return {"job": JOB, "epoch": EPOCH, "worker": host, "slot": SLOT_FIRST} | changed


def send(switch, host, lanes, **changed):
    switch.ports[host].send(frame(switch, host, passing(lanes, **fields(host, **changed))))


def bare(host, **changed):
    """A packet without its 64 lanes."""
    return passing([], **fields(host, flags=BARE, count=64, **changed))


def result_frame(switch, host, lanes, **changed):
    data = passing(lanes, **fields(host, kind=RESULT, worker=EVERY_WORKER, **changed))
    return sent_frame(switch, host, data)


def sent_frame(switch, host, data):
    mac, ip = HOSTS[host]
    return ethernet(switch.mac, mac, IPV4, ipv4(switch.ip, ip, UDP, udp(switch.udp_port, UDP_PORT + host, data)))


def verdict_of(switch, act):
    """Waits for the verdict that `act` is counted as, and returns it."""
    before = switch.data_plane.stats()
    act()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        after = switch.data_plane.stats()
        changed = [name for name, count in after.items() if count != before[name]]
        if changed:
            assert len(changed) == 1
            return changed[0]
    raise AssertionError("counted as nothing")


EDGES = [0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, LAST]


def signed(lane):
    return lane - 2**32 if lane >> 31 else lane


@pytest.mark.parametrize("switch", [8, 16, 64, 256], indirect=True, ids=lambda lanes: f"{lanes} lanes")
@pytest.mark.parametrize("lane_format", [SUM, MAX])
def test_lanes_are_joined(switch, job, lane_format):
    """Each by itself, though they are computed many at once: all pairs of edges stand beside one another."""
    draw = random.Random(lane_format)
    pairs = [(a, b) for a in EDGES for b in EDGES]
    for sequence in range(40):
        lanes = [
            [draw.choice(EDGES) if draw.random() < 0.7 else draw.randrange(2**32) for _ in range(switch.lanes)]
            for _ in range(3)
        ]
        if sequence == 0:
            lanes[:2] = zip(*[pairs[lane % len(pairs)] for lane in range(switch.lanes)], strict=True)
        for host in (1, 0, 2):
            send(switch, host, lanes[host], sequence=sequence, lane_format=lane_format, flags=1 << host)
        join = (lambda column: sum(column) % 2**32) if lane_format == SUM else (lambda column: max(column, key=signed))
        joined = [join(column) for column in zip(*lanes, strict=True)]
        for host in range(3):
            expected = result_frame(switch, host, joined, sequence=sequence, lane_format=lane_format, flags=7)
            assert switch.ports[host].receive() == expected


DATA = passing([1] * 64, **fields(0))
LENGTHS = {
    "one lane less": (passing([1] * 63, **fields(0)), {}),
    "one lane more": (passing([1] * 65, **fields(0)), {}),
    "one byte less": (DATA[:-1], {}),
    "one byte more": (DATA + b"\0", {}),
    "no header": (b"", {}),
    "half a header": (DATA[:11], {}),
    "header alone": (DATA[:20], {}),
    "UDP says less": (DATA, {"udp_bytes": len(DATA) + 7}),
    "UDP says more": (DATA, {"udp_bytes": len(DATA) + 9}),
    "UDP says less than its header": (DATA, {"udp_bytes": 3}),
    "IP says less": (DATA, {"total_bytes": 28 + len(DATA) - 1}),
    "IP says more": (DATA, {"total_bytes": 28 + len(DATA) + 1}),
    "cut short on the way": (DATA[:-4], {"total_bytes": 28 + len(DATA), "udp_bytes": 8 + len(DATA)}),
    "wrong IP checksum": (DATA, {"checksum_error": 0x0100}),
}


@pytest.mark.parametrize("what", LENGTHS)
def test_malformed_length(switch, job, what):
    data, header = LENGTHS[what]
    assert verdict_of(switch, lambda: switch.ports[0].send(frame(switch, 0, data, **header))) == "malformed"
    assert switch.data_plane.slot_version(SLOT_FIRST, 0).empty


def summed(switch, data):
    """A payload of host 0, with its UDP checksum."""
    return data, udp_checksum(HOSTS[0][1], switch.ip, udp(UDP_PORT, switch.udp_port, data))


def verdict_of_payload(switch, data, check):
    return verdict_of(switch, lambda: switch.ports[0].send(frame(switch, 0, data, check=check)))


def test_a_payload_that_its_udp_checksum_does_not_fit(switch, job):
    def packet(low):
        return summed(switch, passing([low, *range(1, 64)], **fields(0)))

    def verdict(data, check):
        return verdict_of_payload(switch, data, check)

    data, check = packet(0)
    assert verdict(data[:-1] + b"\0", check) == "malformed"
    assert verdict(data, check ^ 0x0100) == "malformed"
    assert switch.data_plane.slot_version(SLOT_FIRST, 0).empty
    assert verdict(data, check) == "added"
    data, zero = packet(check)
    assert zero == 0
    assert verdict(data, 0xFFFF) == "duplicate"


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (OverflowError, JobSlots(8, 1, 0, 32, ((HOSTS[0][1], 1 << 16),))),
        (OverflowError, JobSlots(8, 1, 0, 32, ((HOSTS[0][1], 1),), parent=Parent(1 << 16, 1, 0, 0, (HOSTS[1][1], 1)))),
        (DeviceError, JobSlots(8, 1, 0, 32, ((HOSTS[0][1], 1),), parent=Parent(9, 1, 0, 0, (HOSTS[1][1], 1)))),
    ],
    ids=["port", "parent", "parent of two jobs"],
)
def test_a_job_that_is_refused_costs_no_other(switch, job, error, refused, monkeypatch):
    monkeypatch.setattr(p4, "CHECK_S", 0.0)
    plane = switch.data_plane
    other = JobSlots(9, 1, 32, 32, ((HOSTS[0][1], 1),), parent=Parent(9, 1, 0, 0, (HOSTS[1][1], 1)))
    plane.add_job(other)
    try:
        for _ in range(2):
            with pytest.raises(error):
                plane.add_job(refused)
            assert plane.check() == ""
        plane.add_job(JobSlots(8, 1, 0, 32, ((HOSTS[0][1], 1),)))
        plane.remove_job(8)
        assert verdict_of(switch, lambda: send(switch, 0, [1] * switch.lanes)) == "added"
    finally:
        plane.remove_job(9)


def test_bytes_behind_the_ip_packet_are_cut_off(switch):
    with admitted(switch, 1):
        switch.ports[0].send(frame(switch, 0, DATA) + b"trailer")
        assert switch.ports[0].receive() == result_frame(switch, 0, [1] * 64)


def test_a_header_alone_has_a_checksum_too(switch, job):
    data, check = summed(switch, bare(0))
    assert verdict_of_payload(switch, data, check ^ 0x0100) == "malformed"
    assert verdict_of_payload(switch, data, check) == "added"


def test_bytes_behind_a_header_alone_are_cut_off(switch):
    """The header grows into a result with lanes, or stays one."""
    with admitted(switch, 2):
        send(switch, 0, [1] * 64)
        switch.ports[1].send(frame(switch, 1, bare(1)) + b"trailer")
        for host in range(2):
            assert switch.ports[host].receive() == result_frame(switch, host, [1] * 64)
        for host in range(2):
            switch.ports[host].send(frame(switch, host, bare(host, sequence=1)) + b"trailer")
        for host in range(2):
            data = bare(host, kind=RESULT, worker=EVERY_WORKER, sequence=1)
            assert switch.ports[host].receive() == sent_frame(switch, host, data)


def test_a_slot_forgets_when_the_job_comes_again(switch):
    """Under the same number and epoch: the control plane clears nothing."""
    with admitted(switch, 3):
        assert verdict_of(switch, lambda: send(switch, 0, [1] * 64, sequence=9)) == "added"
    with admitted(switch, 3):
        assert switch.data_plane.slot_version(SLOT_FIRST, 0).empty
        assert verdict_of(switch, lambda: send(switch, 1, [1] * 64, sequence=8)) == "added"
        held = switch.data_plane.slot_version(SLOT_FIRST, 0)
        assert (held.sequence, held.bitmap) == (8, 0b010)
