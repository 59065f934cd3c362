import ipaddress
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from jax_passing.protocol.link_rate import interface_of, link_gbit, one_card

IPV6_ADDRESSES = Path("/proc/net/if_inet6")


@pytest.fixture
def loopback(tmp_path):
    """A made-up /sys/class/net whose loopback interface has a device behind it."""
    name = next(name for _, name in socket.if_nameindex() if name == interface_of("127.0.0.1"))
    (tmp_path / name / "device").mkdir(parents=True)
    return tmp_path / name


def test_the_interface_is_found_by_its_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
    assert interface_of("2001:db8::1") is None


def interfaces_by_ipv6_address():
    """This machine's, as the kernel lists them."""
    interfaces = {}
    for line in IPV6_ADDRESSES.read_text().splitlines():
        digits, *_, name = line.split()
        interfaces.setdefault(str(ipaddress.IPv6Address(int(digits, 16))), []).append(name)
    return interfaces


@pytest.mark.skipif(not IPV6_ADDRESSES.exists() or not IPV6_ADDRESSES.read_text(), reason="no IPv6 on this machine")
def test_the_interface_is_found_by_its_ipv6_address():
    for address, names in interfaces_by_ipv6_address().items():
        assert interface_of(address) == (names[0] if len(names) == 1 else None)


def test_an_address_of_a_link_that_several_interfaces_have_says_nothing(monkeypatch):
    held = {name: [SimpleNamespace(address=f"fe80::1%{name}")] for name in ("eth0", "eth0.5")}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: held)
    assert interface_of("fe80::1") is None
    del held["eth0.5"]
    assert interface_of("fe80::1") == "eth0"


def test_a_card_tells_its_rate(loopback):
    (loopback / "speed").write_text("25000\n")
    assert link_gbit("127.0.0.1", loopback.parent) == 25.0


@pytest.mark.parametrize("text", ["-1\n", "0\n", "", "fast"])
def test_a_card_may_not_know(loopback, text):
    (loopback / "speed").write_text(text)
    assert link_gbit("127.0.0.1", loopback.parent) is None


def test_what_virtual_interfaces_invent_is_not_taken(loopback):
    (loopback / "speed").write_text("10000\n")
    (loopback / "device").rmdir()
    assert link_gbit("127.0.0.1", loopback.parent) is None


def test_addresses_of_one_card(loopback):
    assert one_card({"127.0.0.1"}, loopback.parent)
    assert not one_card({"127.0.0.1", "10.254.254.254"}, loopback.parent)  # nobody's
    assert not one_card(set(), loopback.parent)
    (loopback / "device").rmdir()  # a bridge: each that is connected to it has a port
    assert not one_card({"127.0.0.1"}, loopback.parent)


def test_loopback_has_no_rate():
    assert link_gbit("127.0.0.1") is None
