import socket
import struct

import pytest

from jax_passing.protocol.link_rate import interface_of
from jax_passing.switch.data_planes.ports import are_apart

MACS = {"10.0.0.1": "02:00:00:00:00:01", "10.0.0.2": "02:00:00:00:00:02", "10.0.0.3": "02:00:00:00:00:03"}
OWN = "127.0.0.1"
NAME = next(name for _, name in socket.if_nameindex() if name == interface_of(OWN))
HEAD = "IP address       HW type     Flags       HW address            Mask     Device\n"


class Machine:
    """A made-up machine whose interface of `OWN` is a bridge."""

    def __init__(self, folder):
        self.sys_net, self.neighbours = folder / "net", folder / "arp"
        self.bridge = self.sys_net / NAME
        self.bridge.mkdir(parents=True)
        lines = [f"{ip}  0x1  0x6  {mac}  *  {NAME}\n" for ip, mac in MACS.items()]
        self.neighbours.write_text(HEAD + "".join(lines))

    def learn(self, *entries):
        """Fills the bridge's table: (MAC address, port, is it the bridge's own)."""
        rows = [
            struct.pack("=6sBBIBBH", bytes.fromhex(mac.replace(":", "")), port % 256, is_own, 0, port // 256, 0, 0)
            for mac, port, is_own in entries
        ]
        (self.bridge / "brforward").write_bytes(b"".join(rows))

    def are_apart(self, *workers, own=OWN):
        return are_apart(workers, [own] * len(workers), self.sys_net, self.neighbours)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_ports_of_a_bridge(machine):
    one, two, three = MACS
    machine.learn((MACS[one], 1, False), (MACS[two], 2, True), (MACS[two], 257, False), (MACS[three], 1, False))
    assert machine.are_apart(one, two)
    assert not machine.are_apart(one, three)  # behind one port
    assert not machine.are_apart(one, "10.0.0.9")  # nobody knows it
    assert not machine.are_apart(one, two, own="192.0.2.1")  # nor this address of ours
    machine.learn((MACS[one], 1, False), (MACS[two], 2, True))
    assert not machine.are_apart(one, two)


def test_a_table_that_says_nothing(machine):
    one, two, _ = MACS
    assert not machine.are_apart(one, two)  # it is no bridge
    machine.learn((MACS[one], 1, False), (MACS[two], 2, False))
    machine.neighbours.unlink()
    assert not machine.are_apart(one, two)


def test_a_card_is_one_port(machine):
    one, two, _ = MACS
    (machine.bridge / "device").mkdir()
    assert machine.are_apart(one)
    assert not machine.are_apart(one, two)


def test_without_addresses_of_ours():
    assert not are_apart(["10.0.0.1"], [])
