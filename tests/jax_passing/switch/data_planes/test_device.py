"""The device's file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_passing.errors import ConfigError
from jax_passing.switch.data_planes.device import Neighbour, read_device

GOOD = """
runtime = "127.0.0.1:9090"
address = "10.0.0.254"
mac = "02:00:00:00:00:fe"
ports = [0, 1]
program = "passing.json"
neighbours = [{ address = "10.0.0.1", mac = "02:00:00:00:00:01", port = 0 }]
"""
# This host is a neighbour already, at another port.
SECOND = '{ address = "10.0.0.1", mac = "02:00:00:00:00:01", port = 1 }'


def test_what_stands_in_it(tmp_path):
    file = tmp_path / "device.toml"
    file.write_text(GOOD)
    device = read_device(file)
    assert device.runtime_address == ("127.0.0.1", 9090)
    assert (device.address, device.ports, device.udp_port) == ("10.0.0.254", (0, 1), 7171)
    assert device.neighbours == (Neighbour("10.0.0.1", "02:00:00:00:00:01", 0),)
    assert device.program == str(tmp_path / "passing.json")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('runtime = "127.0.0.1:9090"', "", "runtime missing"),
        ("127.0.0.1:9090", "here", "HOST:PORT"),
        ('"10.0.0.254"', '"fe80::1"', "fe80::1"),
        ("02:00:00:00:00:fe", "2:0", "'2:0' is no MAC address"),
        ("ports = [0, 1]", "ports = []", "length >= 1"),
        ("ports = [0, 1]", "ports = [0, 511]", "[0, 511] of ports (file"),
        ('mac = "02:00:00:00:00:01"', 'mac = ""', "'' is no MAC address"),
        ("port = 0 }", "slot = 0 }", "unknown field `slot` - at `$[0]`"),
        ("program", "programme", "Unknown setting 'programme'"),
        ("127.0.0.1:9090", "127.0.0.1:0", "runtime: expected a port from 1 to 65535"),
        ("ports = [0, 1]", "ports = [0, 1, 0]", "ports: expected each one once"),
        ("10.0.0.254", "0.0.0.0", "0.0.0.0 isn't the IP address of one machine"),
        ("10.0.0.254", "255.255.255.255", "255.255.255.255 isn't the IP address of one machine"),
        ("10.0.0.1", "224.0.0.1", "224.0.0.1 isn't the IP address of one machine"),
        ("10.0.0.1", "10.0.0.254", "10.0.0.254 is there twice"),
        ("02:00:00:00:00:01", "02:00:00:00:00:FE", "the device's own MAC address"),
        ("02:00:00:00:00:fe", "ff:ff:ff:ff:ff:ff", "'ff:ff:ff:ff:ff:ff' is no machine's MAC address"),
        ("02:00:00:00:00:01", "01:00:5e:00:00:01", "'01:00:5e:00:00:01' is no machine's MAC address"),
        ("02:00:00:00:00:01", "00:00:00:00:00:00", "'00:00:00:00:00:00' is no machine's MAC address"),
        ("port = 0 }", "port = 7 }", "10.0.0.1 is at port 7, which isn't in ports"),
        (" }]", f" }}, {SECOND}]", "10.0.0.1 is there twice"),
        (" }]", f" }}, {SECOND.replace('.1', '.2', 1)}]", "is at two ports, 0 and 1"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, message):
    file = tmp_path / "device.toml"
    assert old in GOOD
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError, match="device.toml") as caught:
        read_device(file)
    assert message in str(caught.value)


def test_two_hosts_behind_one_router(tmp_path):
    file = tmp_path / "device.toml"
    second = SECOND.replace("10.0.0.1", "10.0.0.2").replace("port = 1", "port = 0")
    file.write_text(GOOD.replace(" }]", f" }}, {second}]"))
    assert [known.address for known in read_device(file).neighbours] == ["10.0.0.1", "10.0.0.2"]


@given(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 20), st.text("[]{}=\"'#,.:0a\n\0\x7fä", max_size=6)))
def test_any_file_is_read_or_refused_by_name(tmp_path_factory, change):
    at, length, more = change
    file = tmp_path_factory.mktemp("any") / "device.toml"
    file.write_text(GOOD[:at] + more + GOOD[at + length :])
    try:
        assert read_device(file).ports
    except ConfigError as error:
        assert "device.toml" in str(error)  # noqa: PT017


def test_it_may_be_missing(tmp_path):
    with pytest.raises(ConfigError, match="the switch's setting device"):
        read_device(tmp_path / "device.toml")
