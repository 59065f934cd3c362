"""Linux knows which workers are behind a port of their own, so that what one of them is sent passes no other's link.

That is so where each is reached by another network card, or by another port of one bridge, as its table of addresses
says. Of anything else, such as a VLAN, nobody knows whether it ends at one link.
"""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from jax_passing.protocol.link_rate import interface_of

_SYS_NET, _NEIGHBOURS = Path("/sys/class/net"), Path("/proc/net/arp")
_BRIDGE_ENTRY = struct.Struct("=6sB?IB3x")  # MAC address, port, is it the bridge's own, age, the port's upper half


def are_apart(
    workers: Sequence[str], own_addresses: Sequence[str], sys_net: Path = _SYS_NET, neighbours: Path = _NEIGHBOURS
) -> bool:
    """Says whether each of these IP addresses is behind a port of its own.

    `own_addresses`: by which each of them knows us; or none, then nobody can tell.
    """
    if len(own_addresses) != len(workers):
        return False
    names = {own: interface_of(own) for own in set(own_addresses)}
    ports = [
        _port_of(worker, names[own], sys_net, neighbours) for worker, own in zip(workers, own_addresses, strict=True)
    ]
    return None not in ports and len(set(ports)) == len(ports)


def _port_of(worker: str, name: str | None, sys_net: Path, neighbours: Path) -> tuple[str, int] | None:
    if name is None:
        return None
    if (sys_net / name / "device").exists():
        return name, 0
    try:
        table = (sys_net / name / "brforward").read_bytes()
        mac = _mac_of(worker, name, neighbours.read_text().splitlines())
    except (OSError, ValueError):
        return None
    for known, low, is_own, _, high in _BRIDGE_ENTRY.iter_unpack(table[: len(table) // 16 * 16]):
        if known == mac and not is_own:
            return name, high << 8 | low
    return None


def _mac_of(worker: str, name: str, lines: Iterable[str]) -> bytes | None:
    """Returns the MAC address of a neighbour at this interface, as the kernel lists them. Raises ValueError."""
    for line in lines:
        address, *_, mac, _, device = line.split() if len(line.split()) == 6 else [""] * 6
        if (address, device) == (worker, name):
            return bytes.fromhex(mac.replace(":", ""))
    return None
