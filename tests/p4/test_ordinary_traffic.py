"""Traffic that isn't for the switch passes through unchanged; ARP and ping to its own address are answered."""

import struct

import pytest

from jax_passing.switch.data_planes.pipeline import DeviceError
from support.net.frames import (
    ARP,
    BROADCAST,
    ICMP,
    IPV4,
    IPV6,
    TCP,
    UDP,
    VLAN,
    arp,
    checksum,
    echo,
    ethernet,
    ipv4,
    passing,
    udp,
)
from support.p4.network import HOSTS

(A_MAC, A_IP), (B_MAC, B_IP), *_ = HOSTS
NO_MAC = "00:00:00:00:00:00"


def received(switch, port):
    return switch.ports[port].receive(0.3)


def test_arp_for_the_switch_is_answered(switch):
    asked = arp(1, HOSTS[0], (NO_MAC, switch.ip))
    for to in (BROADCAST, switch.mac):  # a cache is refreshed by a request to one
        switch.ports[0].send(ethernet(A_MAC, to, ARP, asked))
        answer = arp(2, (switch.mac, switch.ip), HOSTS[0])
        assert switch.ports[0].receive() == ethernet(switch.mac, A_MAC, ARP, answer)
    assert [received(switch, port) for port in (1, 2, 3)] == [None] * 3


def test_arp_for_others_reaches_all_but_the_sender(switch):
    frame = ethernet(A_MAC, BROADCAST, ARP, arp(1, HOSTS[0], (NO_MAC, B_IP)))
    switch.ports[0].send(frame)
    assert [switch.ports[port].receive() for port in (1, 2, 3)] == [frame] * 3
    assert received(switch, 0) is None


# Two of the last three make the checksum of the answer 0xFFFF and that of the request 0, the ends of its arithmetic; in
# the third there is a carry.
@pytest.mark.parametrize("payload", [b"", b"\1\2\3\4odd", b"x" * 1400, b"\x00\x00", b"\xf7\xff", b"\xf8\xff"])
def test_ping_is_answered(switch, payload):
    to_switch = ipv4(A_IP, switch.ip, ICMP, echo(8, payload), ttl=1)
    switch.ports[0].send(ethernet(A_MAC, switch.mac, IPV4, to_switch))
    answer = switch.ports[0].receive()
    assert answer is not None
    assert answer[:34] == ethernet(switch.mac, A_MAC, IPV4, ipv4(switch.ip, A_IP, ICMP, echo(0, payload)))[:34]
    assert answer[34:36] == b"\0\0"
    assert answer[38:] == payload
    assert checksum(answer[34:]) == 0


SUMMED = passing([1] * 64)


def ordinary(dst: str) -> dict[str, tuple[int, bytes]]:
    """Payloads of Ethernet frames, by type, that the switch doesn't sum wherever they go."""
    summed = udp(5000, 7171, SUMMED)
    whole = ipv4(A_IP, dst, UDP, summed)
    return {
        "TCP": (IPV4, ipv4(A_IP, dst, TCP, b"t" * 100)),
        "another UDP port": (IPV4, ipv4(A_IP, dst, UDP, udp(5000, 7172, SUMMED))),
        "options": (IPV4, ipv4(A_IP, dst, UDP, summed, options=b"\1" * 8)),
        "first fragment": (IPV4, ipv4(A_IP, dst, UDP, summed, fragment=0x2000)),
        "last fragment": (IPV4, ipv4(A_IP, dst, UDP, summed, fragment=0x0010)),
        "half a UDP header": (IPV4, whole[:24]),
        "half an IP header": (IPV4, whole[:10]),
        "a VLAN tag": (VLAN, b"\0\1\x08\0" + whole),
        "IPv6": (IPV6, b"\x60" + b"\0" * 39),
        "an unknown type": (0x88B5, b"anything"),
    }


# To another host these are ordinary, too.
OTHERS = {
    "a contribution to another host": (IPV4, ipv4(A_IP, B_IP, UDP, udp(5000, 7171, SUMMED))),
    "the same, cut short": (IPV4, ipv4(A_IP, B_IP, UDP, udp(5000, 7171, SUMMED))[:60]),
    "the same with a wrong checksum": (IPV4, ipv4(A_IP, B_IP, UDP, udp(5000, 7171, SUMMED), checksum_error=1)),
    "a ping of another host": (IPV4, ipv4(A_IP, B_IP, ICMP, echo(8, b"hello"))),
}


@pytest.mark.parametrize("what", [*ordinary(B_IP), *OTHERS])
def test_ordinary_traffic_passes_unchanged(switch, what):
    """A frame leaves by the port of a known MAC address, and for an unknown one by all ports but the sender's."""
    kind, payload = (ordinary(B_IP) | OTHERS)[what]
    before = switch.verdicts()
    to_b = ethernet(A_MAC, B_MAC, kind, payload)
    switch.ports[0].send(to_b)
    assert switch.ports[1].receive() == to_b
    to_unknown = ethernet(A_MAC, "02:00:00:00:00:99", kind, payload)
    switch.ports[0].send(to_unknown)
    assert [switch.ports[port].receive() for port in (1, 2, 3)] == [to_unknown] * 3
    assert received(switch, 0) is None
    assert switch.verdicts() == before


@pytest.mark.parametrize("what", ordinary(B_IP))
def test_only_whole_udp_packets_for_the_switch_are_taken(switch, what):
    kind, payload = ordinary(switch.ip)[what]
    before = switch.verdicts()
    switch.ports[0].send(ethernet(A_MAC, switch.mac, kind, payload))
    dropped = kind == IPV4 and what != "half an IP header"
    # Whatever else bears the switch's MAC address is of no kind that it knows: ordinary traffic to nobody.
    for port in (1, 2, 3):
        if dropped:
            assert received(switch, port) is None
        else:
            assert switch.ports[port].receive() is not None
    assert received(switch, 0) is None
    assert switch.verdicts() == before


def test_a_contribution_to_another_mac_address_is_ordinary(switch):
    frame = ethernet(A_MAC, B_MAC, IPV4, ipv4(A_IP, switch.ip, UDP, udp(5000, 7171, SUMMED)))
    before = switch.verdicts()
    switch.ports[0].send(frame)
    assert switch.ports[1].receive() == frame
    assert switch.verdicts() == before


def test_hosts_are_known_from_their_traffic(switch):
    new = [("02:00:00:00:00:c9", "10.0.0.201", 2), ("02:00:00:00:00:ca", "10.0.0.202", 3)]
    for mac, ip, port in new:
        with pytest.raises(DeviceError, match=f"no packet of {ip}"):
            switch.data_plane._neighbour(ip)
        switch.ports[port].send(ethernet(mac, BROADCAST, ARP, arp(1, (mac, ip), (NO_MAC, A_IP))))
        assert all(switch.ports[other].receive() for other in range(4) if other != port)
        found = switch.data_plane._neighbour(ip)
        assert (found.mac, found.port) == (mac, port)
    (mac, ip, _), _ = new
    switch.ports[3].send(ethernet(mac, A_MAC, IPV4, ipv4(ip, A_IP, TCP, b"")))  # it has moved
    assert switch.ports[0].receive() is not None
    assert switch.data_plane._neighbour(ip).port == 3


VLAN_TAGGED = struct.pack("!HH", 5, IPV4) + ipv4("10.0.0.211", A_IP, TCP, b"")
WITHOUT_ADDRESS = {
    "IPv6": ("33:33:00:00:00:01", IPV6, b"\x60" + b"\0" * 39),
    "LLDP": ("01:80:c2:00:00:0e", 0x88CC, b"\x02\x07\x04" + b"\1" * 6 + b"\0\0"),
    "STP": ("01:80:c2:00:00:00", 38, b"\x42\x42\x03" + b"\0" * 35),
    "a VLAN tag": (BROADCAST, VLAN, VLAN_TAGGED),
    "half an IP header": (BROADCAST, IPV4, ipv4("10.0.0.211", A_IP, TCP, b"")[:19]),
    "ARP of another network": (
        BROADCAST,
        ARP,
        struct.pack("!HHBB", 6, IPV4, 8, 4) + b"\0\0\0\1\0\0\0\0\x0a\0\0\xd3" * 2,
    ),
}


@pytest.mark.parametrize("before", ["IPv4", "ARP"])
@pytest.mark.parametrize("what", WITHOUT_ADDRESS)
def test_frames_without_an_ip_address_move_no_neighbour(switch, what, before):
    """The headers that a frame lacks have, in bmv2, the values of an earlier frame: of a host that is elsewhere.

    The jobs of tests/end_to_end can't show this: their namespaces have no IPv6, for the sake of tests that count
    packets. The interpreter keeps old values as bmv2 does; where this test was written there was no bmv2 to run it on.
    """
    host, ip, port = "02:00:00:00:00:d3", "10.0.0.211", 2
    if before == "ARP":
        first = ethernet(host, A_MAC, ARP, arp(2, (host, ip), HOSTS[0]))
    else:
        first = ethernet(host, A_MAC, IPV4, ipv4(ip, A_IP, TCP, b""))
    to, kind, payload = WITHOUT_ADDRESS[what]
    for _ in range(3):
        switch.ports[port].send(first)
        assert switch.ports[0].receive() == first
        other = ethernet("02:00:00:00:00:99", to, kind, payload)
        switch.ports[3].send(other)
        assert [switch.ports[number].receive() for number in (0, 1, 2)] == [other] * 3
        found = switch.data_plane._neighbour(ip)
        assert (found.mac, found.port) == (host, port)
