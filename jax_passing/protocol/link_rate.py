"""The rate of the link that carries this host's packets, as Linux knows it."""

import ctypes
import fcntl
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915
_SYS_NET = Path("/sys/class/net")


class _InterfaceRequest(ctypes.Structure):
    """struct ifreq: a name, then here a sockaddr_in."""

    _fields_ = (("name", ctypes.c_char * 16), ("address", ctypes.c_ubyte * 24))


def _interface_of(address: str) -> str | None:
    """The interface that has this IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = _InterfaceRequest(name=name.encode())
            try:
                fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:  # has none
                continue
            if socket.inet_ntoa(struct.pack("4B", *request.address[4:8])) == address:
                return name
    return None


def link_gbit(address: str, sys_net: Path = _SYS_NET) -> float | None:
    """Gbit/s of the network card with this IPv4 address of ours.

    None if it isn't known. Interfaces without a device behind them (veth, bridges) invent their speed: not taken.
    """
    name = _interface_of(address)
    if name is None or not (sys_net / name / "device").exists():
        return None
    try:
        megabit = int((sys_net / name / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabit / 1000 if megabit > 0 else None  # -1: unknown
