"""The collectives of star.py: what each rank gives and gets, and the least bytes that they take.

A *piece* is an array: its first element in the whole, its number of elements, and the member whose values they are.
"""

from collections.abc import Callable
from typing import Any

from jax_passing.predict.constants import (
    TCP_WIRE_BYTES_PER_BYTE,
    UDP_FRAME_BYTES_PER_BYTE,
    UDP_WIRE_BYTES_PER_BYTE,
)

COLLECTIVES = ("psum", "psum_scatter", "all_gather", "broadcast", "both")
NO_LANES = (20 + 28 + 14) / 1440  # of a chunk's bytes: a packet that is a header alone
EXPONENTS = UDP_WIRE_BYTES_PER_BYTE - UDP_FRAME_BYTES_PER_BYTE
SUM = None  # in place of a member

Piece = tuple[Any, int, Any]
Traffic = Callable[[str, int], float]


def gives(collective: str, first: int, count: int, index: Any, members: int) -> list[Piece]:
    """Returns what device `index` gives, where the whole has elements [first, first + count)."""
    whole, part = (first, count, index), (first + index * (count // members), count // members, 0)
    return {"all_gather": [part], "both": [whole, part]}.get(collective, [whole])


def gets(collective: str, first: int, count: int, index: Any, members: int) -> list[Piece]:
    """Returns what device `index` gets of that."""
    gathered, own = (first, count, 0), (first + index * (count // members), count // members, SUM)
    results: dict[str, list[Piece]] = {
        "psum": [(first, count, SUM)],
        "psum_scatter": [own],
        "all_gather": [gathered],
        "broadcast": [gathered],
        "both": [own, gathered],
    }
    return results[collective]


def carry_out(collective: str, operations: Any, xs: list[Any], axis: str) -> Any:
    """Carries it out on a device. `operations` has the functions; `both` asks for two that don't wait for each other,
    as a reduce-scatter of one layer and an all-gather of the next."""
    match collective:
        case "psum":
            return operations.psum(xs, axis)
        case "psum_scatter":
            return operations.psum_scatter(xs, axis, tiled=True)
        case "all_gather":
            return operations.all_gather(xs, axis, tiled=True)
        case "broadcast":
            return operations.broadcast(xs, axis)
    scattered = operations.psum_scatter(xs[::2], axis, tiled=True)
    gathered = operations.all_gather(xs[1::2], axis, tiled=True)
    return [each for pair in zip(scattered, gathered, strict=True) for each in pair]


# The least that the busier direction of a host's link carries, over the bytes of the whole.


def in_network(collective: str, hosts: int, by_group: bool = True) -> float:
    """By a switch (docs/internals/lanes.md). If results go to a group, who has a part hears it, too, where more than
    eight others need it."""
    rest = (hosts - 1) / hosts
    heard = 1.0 if by_group and hosts > 9 else rest
    scatter_up, scatter_down = (share * UDP_FRAME_BYTES_PER_BYTE + EXPONENTS for share in (rest, 1 / hosts))
    gather_up, gather_down = (share * UDP_FRAME_BYTES_PER_BYTE for share in (1 / hosts, heard))
    limits = {
        "psum": UDP_WIRE_BYTES_PER_BYTE,
        "psum_scatter": scatter_up + NO_LANES / hosts,
        "all_gather": gather_down + (1 - heard) * NO_LANES,
        "broadcast": UDP_FRAME_BYTES_PER_BYTE,
        "both": max(scatter_up + gather_up + NO_LANES, scatter_down + gather_down + rest * NO_LANES),
    }
    return limits[collective]


def by_unicast(collective: str, hosts: int) -> float:
    return in_network(collective, hosts, by_group=False)


def directly(collective: str, hosts: int) -> float:
    """From host to host, by TCP."""
    times = {"psum": 2.0, "psum_scatter": 1.0, "all_gather": 1.0, "both": 2.0}
    if collective == "broadcast":
        return TCP_WIRE_BYTES_PER_BYTE
    return times[collective] * (hosts - 1) / hosts * TCP_WIRE_BYTES_PER_BYTE


def by_gloo(collective: str, hosts: int) -> float:
    """As `directly`; JAX has no broadcast, so the others add zeros to the root's."""
    return directly("psum" if collective == "broadcast" else collective, hosts)


def for_jax(collective: str, hosts: int) -> float:
    """Sums go through the switch, and what is only moved goes from host to host."""
    rest = (hosts - 1) / hosts
    return {
        "all_gather": directly("all_gather", hosts),
        "both": in_network("psum_scatter", hosts) + rest * TCP_WIRE_BYTES_PER_BYTE,
    }.get(collective, in_network("psum" if collective == "broadcast" else collective, hosts))
