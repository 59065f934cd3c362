"""The PCI tree in /sys tells which network card is nearest to a GPU: the one that shares the longest path with it."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

_ROOT_OR_ADDRESS = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}|[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_CLASSES = {"net": "sys/class/net", "rdma": "sys/class/infiniband"}
_NVIDIA, _DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")  # VGA and 3D controllers


@dataclass(frozen=True)
class Node:
    """`path`: the root complex and the addresses from there on, of bridges and of the device itself. `numa`: its node,
    -1 if the machine doesn't tell."""

    name: str
    path: tuple[str, ...]
    numa: int = -1


@dataclass(frozen=True)
class Neighbour:
    """The cards that are nearest to a GPU. `shared`: the number of steps that they share; 0: not even the root."""

    cards: tuple[Node, ...]
    shared: int


def node(name: str, link: Path) -> Node | None:
    """Returns the PCI node of the device to which this link of /sys leads; None if it isn't on PCI."""
    if not link.exists():
        return None
    real = Path(os.path.realpath(link))
    path = tuple(part for part in real.parts if _ROOT_OR_ADDRESS.fullmatch(part))
    if not path:
        return None
    numa = -1
    for folder in (real, *real.parents):  # a virtio device has it in the PCI device above
        if (folder / "numa_node").is_file():
            numa = int((folder / "numa_node").read_text())
            break
    return Node(name, path, numa)


def gpu(root: Path, address: str) -> Node | None:
    """Returns the node of the GPU with this address, as the driver has it."""
    return node(address, _folder(root, address))


def _folder(root: Path, address: str) -> Path:
    """Returns the device's folder in /sys, where a domain may have fewer digits than the driver gives it."""
    domain, _, rest = address.lower().partition(":")
    return root / f"sys/bus/pci/devices/{int(domain, 16):04x}:{rest}"


def nvidia_devices(root: Path) -> list[str]:
    """Lists the addresses of the graphics cards on the bus, with a driver or without."""
    found = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            vendor, kind = ((folder / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASSES):
            found.append(folder.name)
    return found


def cards(root: Path) -> list[Node]:
    """Lists network and RDMA devices; several of one card are one node."""
    by_path: dict[tuple[str, ...], list[Node]] = {}
    for folder in _CLASSES.values():
        for link in sorted((root / folder).glob("*")):
            if (found := node(link.name, link / "device")) is not None:
                by_path.setdefault(found.path, []).append(found)
    return [Node("/".join(one.name for one in nodes), path, nodes[0].numa) for path, nodes in sorted(by_path.items())]


def nearest(of: Node, candidates: Sequence[Node]) -> Neighbour | None:
    """Returns the candidates nearest to `of`; None if there are none. Where the way says nothing, those of the same
    NUMA node are nearer."""
    if not candidates:
        return None

    def nearness(card: Node) -> tuple[int, bool]:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(of.path, card.path, strict=False))
        return len(list(same)), of.numa >= 0 and of.numa == card.numa

    best = max(map(nearness, candidates))
    return Neighbour(tuple(card for card in candidates if nearness(card) == best), best[0])


def link_bytes_per_s(root: Path, address: str) -> float | None:
    """Returns what the device's own PCI link carries one way, at its highest speed and with its present lanes.

    An idle card slows its link down, so the present speed would mislead. None if /sys doesn't tell.
    """
    folder = _folder(root, address)
    try:
        speed = re.match(r"[\d.]+", (folder / "max_link_speed").read_text())
        width = int((folder / "current_link_width").read_text())
    except (OSError, ValueError):
        return None
    if speed is None or width <= 0:
        return None
    transfers = float(speed[0]) * 1e9
    return transfers * width / 8 * (8 / 10 if transfers < 8e9 else 128 / 130)
