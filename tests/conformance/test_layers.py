"""The scapy layer builds and dissects the packets of the golden table."""

from contextlib import suppress
from dataclasses import asdict

import pytest
from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from jax_passing.conformance.exchanges import golden
from jax_passing.conformance.layers import Passing
from jax_passing.protocol.packet import MAX, RESULT, TAGGED, MalformedError, Packet, decode


def well_formed():
    for case in golden.read():
        for step in case.steps:
            for data in (step.packet, step.out):
                with suppress(MalformedError):
                    yield data, decode(data)


def signed(lanes):
    return [lane - (1 << 32) if lane >> 31 else lane for lane in lanes]


def test_every_golden_packet():
    for data, packet in well_formed():
        fields = {**asdict(packet), "lanes": signed(packet.lanes)}
        assert fields.pop("tag") == b""
        assert bytes(Passing(**fields)) == data
        layer = Passing(data)
        assert {name: getattr(layer, name) for name in fields} == fields
        assert layer.element_count == len(packet.lanes)
        assert not layer.payload


def test_a_tag():
    packet = Packet(type=RESULT, lanes=(1, 2), tag=b"12345678")
    layer = Passing(packet.encode() + Packet(lanes=(3,)).encode())
    assert (layer.type, layer.tag) == (RESULT | TAGGED, b"12345678")
    assert layer.payload.lanes == [3]


def test_defaults_are_those_of_a_packet():
    assert bytes(Passing()) == Packet().encode()


@pytest.mark.parametrize("port", [7171, 7172])
def test_it_is_found_in_udp(port):
    data = Packet(type=RESULT, lane_format=MAX, lanes=(1, 2)).encode()
    packet = IP(bytes(IP(src="10.0.0.1", dst="239.192.0.1") / UDP(sport=7171, dport=port) / Raw(data)))
    assert packet[Passing].lanes == [1, 2]
    assert "signed maximum" in packet[Passing].show(dump=True)


def test_several_packets_in_one_datagram():
    data = Packet(sequence=1, lanes=(1,)).encode() + Packet(sequence=2, lanes=(5, 6)).encode()
    layer = Passing(data)
    assert (layer.sequence, layer.payload.sequence, layer.payload.lanes) == (1, 2, [5, 6])
