"""The program for Tofino follows the protocol, as far as that can be said without one: its text, interpreted."""

import shutil

import pytest

from jax_passing.conformance import run
from jax_passing.conformance.exchanges.model import Job, Parent
from jax_passing.protocol.packet import EVERY_WORKER, RESULT, Packet, decode
from support.net.frames import ARP, BROADCAST, ICMP, IPV4, TCP, UDP, arp, echo, ethernet, ipv4, udp
from support.p4 import tna_model

pytestmark = pytest.mark.skipif(shutil.which("cpp") is None, reason="no cpp, the C preprocessor")


CASES = [
    pytest.param(target, case, id=f"{name}-{case.section}: {case.description}")
    for target, name in ((1, "tofino"), (2, "tofino2"))
    for case in run.cases(tna_model.limits_of(target), seed=0, exchanges=10)
]


@pytest.mark.parametrize(("target", "case"), CASES)
def test_case(target, case):
    outcome = run.outcome(tna_model.TofinoDevice(target), case)
    if outcome.not_applicable:
        pytest.skip(outcome.not_applicable)
    assert not outcome.failure


def test_a_slot_that_goes_on_between_two_passes_is_not_read():
    switch = tna_model.Tofino(1)
    addresses = {"A0": ("10.0.1.1", 1024), "A1": ("10.0.1.2", 1024)}
    switch.add_job(Job(3, 11, 8, 4, tuple(addresses)), dict(addresses))

    def send(worker, sequence):
        packet = Packet(job=3, epoch=11, worker=worker, slot=9, sequence=sequence, lanes=(sequence,) * tna_model.LANES)
        verdict, sent = switch.on_packet(packet.encode(), addresses[f"A{worker}"])
        assert not sent
        return verdict

    switch.slow = True
    assert [send(0, 7), send(1, 7)] == ["added", "complete"]
    assert [(to, decode(out).lanes) for to, out in switch.pass_on()] == [("A0", (14,) * 64), ("A1", (14,) * 64)]
    assert [send(0, 7), send(1, 8)] == ["resend", "added"]  # by protocol worker 1 has the result of 7, worker 0 lost it
    assert switch.pass_on() == []
    assert send(0, 8) == "complete"
    assert [(to, decode(out).sequence) for to, out in switch.pass_on()] == [("A0", 8), ("A1", 8)]


def test_a_result_is_not_for_what_another_epoch_has_left():
    switch = tna_model.Tofino(1)
    addresses = {"A0": ("10.0.1.1", 1024), "P": ("10.0.1.2", 1024)}
    fields = {"slot": 9, "sequence": 7, "lanes": (1,) * tna_model.LANES}
    result = {**fields, "type": RESULT, "job": 4, "worker": EVERY_WORKER, "slot": 33}

    def verdicts(epoch):
        switch.remove_jobs()
        switch.add_job(Job(3, epoch, 8, 4, ("A0",), Parent(4, epoch + 100, 32, 5, "P")), dict(addresses))
        from_parent = Packet(**result, epoch=epoch + 100).encode()
        first = switch.on_packet(from_parent, addresses["P"])
        sent = switch.on_packet(Packet(**fields, job=3, epoch=epoch).encode(), addresses["A0"])
        return first[0], sent[0]

    assert verdicts(11) == ("stale", "forwarded")
    assert verdicts(12) == ("stale", "forwarded")


OWN_MAC = "00:00:00:00:00:fe"
HOST, OTHER = ("02:00:00:00:00:07", "10.0.1.7"), ("02:00:00:00:00:08", "10.0.1.8")
PORT, OTHER_PORT = 13, 14


@pytest.fixture(params=["listed", "unlisted"])
def switch(request):
    switch = tna_model.Tofino(1)
    switch.add_neighbour(int(OTHER[0].replace(":", ""), 16), OTHER_PORT)
    if request.param == "listed":
        switch.add_neighbour(int(HOST[0].replace(":", ""), 16), PORT)
    return switch


def test_answers_leave_where_the_question_came_in(switch):
    """Also those to a host that nobody has listed: it would be asked for at all ports but its own."""
    asked = ethernet(HOST[0], BROADCAST, ARP, arp(1, HOST, ("00:00:00:00:00:00", tna_model.OWN_IP)))
    answer = ethernet(OWN_MAC, HOST[0], ARP, arp(2, (OWN_MAC, tna_model.OWN_IP), HOST))
    assert switch.on_frame(asked, PORT) == (PORT, answer)

    for payload in (b"hello", b"\xf8\xff"):  # the second one's checksum has a carry
        ping = ethernet(HOST[0], OWN_MAC, IPV4, ipv4(HOST[1], tna_model.OWN_IP, ICMP, echo(8, payload)))
        answer = ethernet(OWN_MAC, HOST[0], IPV4, ipv4(tna_model.OWN_IP, HOST[1], ICMP, echo(0, payload)))
        assert switch.on_frame(ping, PORT) == (PORT, answer)


def test_other_traffic_goes_by_mac_address(switch):
    to_other = ethernet(HOST[0], OTHER[0], IPV4, ipv4(HOST[1], OTHER[1], TCP, b"data"))
    assert switch.on_frame(to_other, PORT) == (OTHER_PORT, to_other)
    to_nobody = ethernet(HOST[0], "02:00:00:00:00:09", IPV4, ipv4(HOST[1], OTHER[1], TCP, b"data"))
    assert switch.on_frame(to_nobody, PORT) == ("flooded", to_nobody)
    for_other = ethernet(HOST[0], BROADCAST, ARP, arp(1, HOST, ("00:00:00:00:00:00", OTHER[1])))
    assert switch.on_frame(for_other, PORT) == ("flooded", for_other)
    to_us = ethernet(HOST[0], OWN_MAC, IPV4, ipv4(HOST[1], tna_model.OWN_IP, TCP, b"data"))
    assert switch.on_frame(to_us, PORT) is None


@pytest.mark.parametrize("is_bare", [False, True])
@pytest.mark.parametrize(("more", "verdict"), [(0, "complete"), (4, "malformed")])
def test_ip_says_how_long_a_packet_is(is_bare, more, verdict):
    switch = tna_model.Tofino(1)
    switch.add_job(Job(3, 11, 8, 4, ("A0",)), {"A0": (HOST[1], 1024)})
    packet = Packet(job=3, epoch=11, slot=9, lanes=(1,) * tna_model.LANES)
    data = udp(1024, tna_model.UDP_PORT, (packet.without_lanes() if is_bare else packet).encode())
    to_us = ipv4(HOST[1], tna_model.OWN_IP, UDP, data, total_bytes=20 + len(data) + more)
    switch.on_frame(ethernet(HOST[0], OWN_MAC, IPV4, to_us), PORT)
    assert switch.verdicts() == {verdict: 1}
