"""A file describes a programmable switch and what is plugged into it."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, structs

from jax_passing.config import parse_address, unicast_address
from jax_passing.errors import ConfigError
from jax_passing.protocol.packet import LANES_AT_MTU_1500, PORT
from jax_passing.settings_parser import convert, from_file

Port = Annotated[int, Meta(ge=0, le=510)]


def ip_number(text: str) -> int:
    return int(ipaddress.IPv4Address(text))


def mac_number(text: str) -> int:
    if not re.fullmatch(r"(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", text):
        raise ValueError(f"{text!r} is no MAC address such as 02:00:00:00:00:01")
    return int(text.replace(":", ""), 16)


class Neighbour(Struct, frozen=True, forbid_unknown_fields=True):
    """A neighbour is a machine, or another switch, behind a port: for what the device can't learn from its traffic, or
    shall not."""

    address: str  # IPv4
    mac: str  # of the next hop, if a router stands between
    port: Port


class Device(Struct, frozen=True, forbid_unknown_fields=True):
    runtime: str  # host:port of its runtime server
    address: str  # IPv4, its own, unused elsewhere: where hosts send packets
    mac: str  # its own
    ports: Annotated[tuple[Port, ...], Meta(min_length=1)]  # where hosts may be
    neighbours: tuple[Neighbour, ...] = ()
    udp_port: Annotated[int, Meta(ge=1, le=65535)] = PORT  # the program's own; a build may change it
    device_id: Annotated[int, Meta(ge=0)] = 0  # p4runtime: the server's number for it
    program: str = ""  # p4runtime: the compiler's output for the device
    p4info: str = ""  # p4runtime: its description, binary
    lanes: Annotated[int, Meta(ge=3, le=LANES_AT_MTU_1500)] | None = None  # p4runtime: of the program

    @property
    def runtime_address(self) -> tuple[str, int]:
        return parse_address(self.runtime)


def _check(device: Device) -> None:
    """Checks the values beyond their types. Raises ValueError."""
    if device.runtime_address[1] == 0:
        raise ValueError(f"runtime: expected a port from 1 to 65535; got {device.runtime!r}")
    if len(set(device.ports)) < len(device.ports):
        raise ValueError(f"ports: expected each one once; got {list(device.ports)}")
    _check_addresses(device.address, device.mac)
    addresses = {device.address}
    ports: dict[int, int] = {}  # by MAC address
    for known in device.neighbours:
        _check_addresses(known.address, known.mac)
        if known.address in addresses:
            raise ValueError(f"{known.address} is there twice: as the device's own or a neighbour's")
        addresses.add(known.address)
        if known.port not in device.ports:
            raise ValueError(f"the neighbour {known.address} is at port {known.port}, which isn't in ports")
        mac = mac_number(known.mac)
        if mac == mac_number(device.mac):
            raise ValueError(f"the neighbour {known.address} has the device's own MAC address {known.mac}")
        if ports.setdefault(mac, known.port) != known.port:  # at one port: hosts behind a router
            raise ValueError(f"the MAC address {known.mac} is at two ports, {ports[mac]} and {known.port}")


def _check_addresses(address: str, mac: str) -> None:
    ip_number(unicast_address(address))
    number = mac_number(mac)
    if number == 0 or number >> 40 & 1:  # the lowest bit of the first byte: a group, or all
        raise ValueError(f"{mac!r} is no machine's MAC address")


def read_device(path: str | Path) -> Device:
    """Reads DEVICE.toml; paths in it count from its folder. Raises ConfigError."""
    values = convert(Device, from_file(Device, path, "the switch's setting device"))
    missing = [field.name for field in structs.fields(Device) if field.required and field.name not in values]
    if missing:
        raise ConfigError(f"Bad device file {path}: {' and '.join(missing)} missing. docs/data_planes/p4.md shows one.")
    folder = Path(path).parent
    device = Device(**values | {key: str(folder / values[key]) for key in ("program", "p4info") if key in values})
    try:
        _check(device)
    except ValueError as error:
        raise ConfigError(f"Bad device file {path}: {error}. docs/data_planes/p4.md shows one.") from error
    return device
