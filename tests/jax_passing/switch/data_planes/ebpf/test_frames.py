"""The program in the kernel takes those frames that are for it, and leaves the others to the stack."""

import socket
import struct

from support.net.bridge_network import SWITCH_MAC
from support.net.frames import checksum
from support.net.namespaces import inside
from support.switch.ebpf_packets import job_of, packet


def _frame(
    network, port: int, payload: bytes, *, with_checksum=True, spoilt=False, options=b"", fragment=0, to=None
) -> bytes:
    """Makes a frame from host 0."""
    ends = socket.inet_aton(network.address(0)) + socket.inet_aton(network.switch_address)
    length = 8 + len(payload)
    udp = struct.pack("!HHHH", 5000, port, length, 0) + payload

    if with_checksum:
        check = checksum(ends + struct.pack("!HH", 17, length) + udp) ^ (1 if spoilt else 0)
        udp = udp[:6] + struct.pack("!H", check) + udp[8:]
    size = 5 + len(options) // 4
    ip = struct.pack("!BBHHHBBH", 0x40 | size, 0, 4 * size + length, 1, fragment, 64, 17, 0) + ends + options
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    macs = bytes.fromhex((to or SWITCH_MAC).replace(":", "")) + b"\x02\0\0\0\0\1"
    return macs + b"\x08\0" + ip + udp


def test_what_the_stack_would_refuse_isnt_added(network, plane, workers):
    """Frames as they come from a network card that checks nothing."""
    with inside(network.namespace(0)):
        card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        card.bind(("eth0", 0x0800))
    card.settimeout(30)
    addresses = ((network.address(0), 5000),)
    plane.add_job(job_of(workers, addresses=addresses))

    def answer() -> bytes:
        while (frame := card.recv(2048))[26:30] != socket.inet_aton(network.switch_address):
            pass  # our own
        return frame

    def counted(frame: bytes) -> int:
        """Frames keep their order: one that is answered follows, and when its answer is here, all were dealt with."""
        before = plane.stats()["packets_received"]
        for one in (frame, _frame(network, plane.port, packet(0, 65, 1, [7]))):
            card.send(one)
        while answer()[42:] != packet(0xFFFF, 65, 1, [7], type=2):
            pass
        return plane.stats()["packets_received"] - before - 1

    good = packet(0, 64, 1, [5] * 360)
    card.send(_frame(network, plane.port, good))
    result = answer()
    assert result[:14] == b"\x02\0\0\0\0\1" + bytes.fromhex(SWITCH_MAC.replace(":", "")) + b"\x08\0"
    assert result[42:] == packet(0xFFFF, 64, 1, [5] * 360, type=2)
    assert result[40:42] == b"\0\0"  # no checksum, which isn't a wrong one
    assert counted(_frame(network, plane.port, good, with_checksum=False)) == 1
    assert counted(_frame(network, plane.port, good, spoilt=True)) == 0
    assert counted(_frame(network, plane.port, good, options=b"\1\1\1\1")) == 0
    assert counted(_frame(network, plane.port, good, fragment=0x2000)) == 0
    assert counted(_frame(network, plane.port, good, fragment=100)) == 0
    assert counted(_frame(network, plane.port + 1, good)) == 0
    assert counted(_frame(network, plane.port, good, to="01:00:5e:00:00:01")) == 0
    vlan = _frame(network, plane.port, good)
    assert counted(vlan[:12] + b"\x81\0\0\5" + vlan[12:]) == 0
    short = _frame(network, plane.port, packet(0, 64, 1, [5]))
    assert counted(short + b"\0" * (60 - len(short))) == 1  # Ethernet's padding
    assert counted(short[:-2]) == 0
    assert plane.stats()["complete"] == 2  # of both slots
    card.close()


def test_ordinary_traffic_goes_on(network, plane):
    """Between hosts, and to another port of the switch."""
    for namespace, address in ((network.switch, network.switch_address), (network.namespace(1), network.address(1))):
        with inside(namespace):
            there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        there.bind((address, 0))
        there.settimeout(30)
        with inside(network.namespace(0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
            here.sendto(packet(), there.getsockname())
        assert there.recv(2048) == packet()
        there.close()
    assert plane.stats()["packets_received"] == 0
