"""Linux knows the rate of the link that carries this host's packets."""

from collections.abc import Set
from pathlib import Path

import psutil

_SYS_NET = Path("/sys/class/net")


def interface_of(address: str) -> str | None:
    """Returns the interface that has this address, IPv4 or IPv6, if only one does.

    Sockets tell an address of one link (fe80::…) without the interface, and two VLANs of a card may share it.
    """
    interfaces = psutil.net_if_addrs().items()
    names = [name for name, held in interfaces if any(address == one.address.partition("%")[0] for one in held)]
    return names[0] if len(names) == 1 else None


def card_of(address: str, sys_net: Path = _SYS_NET) -> str | None:
    """Returns the interface with this address of ours, if it is a network card: None for veth, bridges and the like."""
    name = interface_of(address)
    return None if name is None or not (sys_net / name / "device").exists() else name


def one_card(addresses: Set[str], sys_net: Path = _SYS_NET) -> bool:
    """Says whether all these addresses of ours are those of one network card."""
    cards = {card_of(address, sys_net) for address in addresses}
    return len(cards) == 1 and None not in cards


def link_gbit(address: str, sys_net: Path = _SYS_NET) -> float | None:
    """Returns the rate in Gbit/s of the network card with this address of ours.

    None if it isn't known. Interfaces without a device behind them (veth, bridges) invent their speed: not taken.
    psutil tells it of those too, so the speed is read where the device is looked for.
    """
    if (name := card_of(address, sys_net)) is None:
        return None
    try:
        megabit = int((sys_net / name / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabit / 1000 if megabit > 0 else None  # -1: unknown
