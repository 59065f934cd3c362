import socket

import pytest

from jax_passing.protocol.link_rate import _interface_of, link_gbit


@pytest.fixture
def loopback(tmp_path):
    """A made-up /sys/class/net whose loopback interface has a device behind it."""
    name = next(name for _, name in socket.if_nameindex() if name == _interface_of("127.0.0.1"))
    (tmp_path / name / "device").mkdir(parents=True)
    return tmp_path / name


def test_the_interface_is_found_by_its_address():
    assert _interface_of("127.0.0.1") == "lo"
    assert _interface_of("192.0.2.1") is None
    assert _interface_of("::1") is None


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


def test_loopback_has_no_rate():
    assert link_gbit("127.0.0.1") is None
