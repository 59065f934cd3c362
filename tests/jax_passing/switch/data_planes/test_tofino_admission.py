"""The rows give each packet the verdict that the checks of docs/internals/protocol.md give it, one after the other."""

import random

import pytest

from jax_passing.protocol.packet import CONTRIBUTION, EVERY_WORKER, RESULT
from jax_passing.switch.data_planes import tofino_admission
from jax_passing.switch.data_planes.data_plane import JobSlots, Parent
from jax_passing.switch.data_planes.device import ip_number

OWN = "10.0.0.254"
GROUP = 5
PARENT = Parent(job=1, epoch=2, slot_first=64, worker=3, address=("10.0.9.9", 7171))
JOBS = (
    JobSlots(job=1, epoch=7, slot_first=0, slot_count=16, addresses=(("10.0.0.1", 100), ("10.0.0.2", 100))),
    JobSlots(job=2, epoch=2, slot_first=16, slot_count=8, addresses=(("10.0.0.1", 101),), parent=PARENT),
)
FIELDS = ("pass", "own_ip", "type", "job", "epoch", "worker", "ip", "udp_port", "slot")


def looked_up(table, packet):
    holds = [row for row in table if all(packet[key] & row.masks[key] == value for key, value in row.match.items())]
    if not holds:
        return "refuse", {"verdict": 6}
    highest = max(row.priority for row in holds)
    found = [row for row in holds if row.priority == highest]
    assert len({(row.action, tuple(sorted(row.parameters.items()))) for row in found}) == 1, found
    return found[0].action, dict(found[0].parameters)


def refused(verdict):
    return "refuse", {"verdict": verdict}


def checked(packet):
    """The same by ifs. For packets to the switch itself, in their first pass."""
    above = next((job for job in JOBS if job.parent and job.parent.job == packet["job"]), None)
    if packet["type"] == RESULT and above is not None:
        parent = above.parent
        offset = packet["slot"] - parent.slot_first
        if packet["epoch"] != parent.epoch:
            return refused(7)
        if packet["worker"] != EVERY_WORKER:
            return refused(8)
        if (packet["ip"], packet["udp_port"]) != (ip_number(parent.address[0]), parent.address[1]):
            return refused(9)
        if not 0 <= offset < above.slot_count:
            return refused(10)
        shift = (above.slot_first - parent.slot_first) % 65536
        assert (packet["slot"] + shift) % 65536 == above.slot_first + offset
        return "from_parent", {"job": above.job, "epoch": above.epoch, "slot_shift": shift}
    job = next((job for job in JOBS if job.job == packet["job"]), None)
    if job is None:
        return refused(6)
    if packet["epoch"] != job.epoch:
        return refused(7)
    if packet["worker"] >= len(job.addresses):
        return refused(8)
    ip, udp_port = job.addresses[packet["worker"]]
    if (packet["ip"], packet["udp_port"]) != (ip_number(ip), udp_port):
        return refused(9)
    if not 0 <= packet["slot"] - job.slot_first < job.slot_count:
        return refused(10)
    if packet["type"] != CONTRIBUTION:
        return refused(11)
    everybody = (1 << len(job.addresses)) - 1 | (1 << 31 if job.parent else 0)
    bit = 1 << packet["worker"]
    return "accept", {"worker": bit, "others": everybody & ~bit, "group": GROUP}


def some_packet(draw):
    return {
        "pass": 0,
        "own_ip": ip_number(OWN),
        "type": draw.choice((1, 1, 2, 3)),
        "job": draw.choice((1, 2, 3)),
        "epoch": draw.choice((2, 7, 9)),
        "worker": draw.choice((0, 1, 2, 0xFFFF)),
        "ip": ip_number(draw.choice(("10.0.0.1", "10.0.0.2", "10.0.9.9"))),
        "udp_port": draw.choice((100, 101, 7171)),
        "slot": draw.choice((0, 15, 16, 23, 24, 63, 64, 71, 72, 65535)),
    }


def table():
    return [row for job in JOBS for row in tofino_admission.rows(job, OWN, GROUP)]


def test_rows_give_the_verdict_of_the_checks():
    rows = table()
    draw = random.Random(1)
    seen = set()
    for _ in range(3_000):
        packet = some_packet(draw)
        expected = checked(packet)
        assert looked_up(rows, packet) == expected, packet
        seen.add(expected[0] + str(expected[1].get("verdict", "")))
    assert seen == {"accept", "from_parent", *(f"refuse{verdict}" for verdict in range(6, 12))}


def test_rows_name_only_keys_of_the_table():
    assert {key for row in table() for key in row.match} <= set(FIELDS)


def test_packets_to_others_are_left_alone():
    rows = table()
    draw = random.Random(2)
    for _ in range(500):
        packet = some_packet(draw) | {"own_ip": ip_number("10.0.0.253")}
        assert looked_up(rows, packet) == refused(6)  # which counts for packets to us only


@pytest.mark.parametrize("later", [1, 2])
def test_later_passes_are_accepted_again(later):
    packet = dict(zip(FIELDS, (later, ip_number(OWN), 1, 1, 7, 0, ip_number("10.0.0.1"), 100, 3), strict=True))
    assert looked_up(table(), packet) == ("accept", {"worker": 1, "others": 2, "group": GROUP})


def test_a_translated_result_answers():
    numbers = (tofino_admission.ANSWER_PASS, ip_number(OWN), 2, 2, 2, 0xFFFF, ip_number("10.0.9.9"), 7171, 16)
    assert looked_up(table(), dict(zip(FIELDS, numbers, strict=True))) == ("answer", {"group": GROUP})
