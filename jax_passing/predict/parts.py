"""Predicts the collectives in which each host has a part of the array: what it sends and receives of them, and how long
that takes, with lanes left out (docs/internals/lanes.md) and without."""

from dataclasses import dataclass

from jax_passing.predict import constants
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.schemes import Scheme, central, one_host
from jax_passing.predict.sums import Costs, costs, of_byte

# A byte of a sum of floats takes these shares on the wire: its frame, a header alone in its place, its exponents.
_FRAME = constants.UDP_FRAME_BYTES_PER_BYTE / constants.UDP_WIRE_BYTES_PER_BYTE
_HEADER = constants.BARE_FRAME_BYTES_PER_BYTE / constants.UDP_WIRE_BYTES_PER_BYTE
_EXPONENTS = 1 - _FRAME

RING_SHARES = {"psum_scatter": 0.5, "all_gather": 0.5, "both at once": 1.0, "broadcast": None}
"""The collectives, with how much of a ring's all-reduce JAX's own takes; None: JAX has none."""


@dataclass(frozen=True)
class PredictedCollective:
    """One collective of an array.

    Attributes:
      collective: its name.
      time_s: how long it takes where the switch knows packets without lanes.
      up_bytes: wire bytes that a host's link carries to the switch, of the host that sends most.
      down_bytes: the same from the switch.
      bound: the resource that sets the time.
      all_lanes_s: how long it takes where the switch doesn't know them, and hosts send and get zeros.
      native_s: how long JAX's own takes, in a ring; None if it has none.
    """

    collective: str
    time_s: float
    up_bytes: float
    down_bytes: float
    bound: str
    all_lanes_s: float
    native_s: float | None


def _with_lanes(share: float) -> float:
    """Returns what a byte takes of which this share has lanes, and the rest has headers."""
    return share * _FRAME + (1 - share) * _HEADER


def loads(collective: str, hosts: int, leaves_out: bool) -> tuple[list[float], list[float]]:
    """Returns what each host sends, and what it receives, for an array of one byte."""
    own, others = (1 / hosts, 1 - 1 / hosts) if leaves_out else (1.0, 1.0)
    everything, nothing = _with_lanes(1.0), _with_lanes(0.0 if leaves_out else 1.0)
    if collective == "broadcast":
        rest = hosts - 1
        return [everything, *[nothing] * rest], [nothing, *[everything] * rest]
    scatter = _with_lanes(others) + _EXPONENTS, _with_lanes(own) + _EXPONENTS
    gather = _with_lanes(own), _with_lanes(others)
    both = scatter[0] + gather[0], scatter[1] + gather[1]
    up, down = {"psum_scatter": scatter, "all_gather": gather, "both at once": both}[collective]
    return [up] * hosts, [down] * hosts


def _scheme(collective: str, cluster: Cluster, leaves_out: bool) -> Scheme:
    return one_host(cluster) if cluster.hosts == 1 else central(cluster, *loads(collective, cluster.hosts, leaves_out))


def predict_collectives(cluster: Cluster, size_bytes: float) -> list[PredictedCollective]:
    """Predicts the collectives of an array of float32: each device gives so many bytes to `psum_scatter`, and gets so
    many of the others."""
    ring = costs(cluster, "ring")
    assert ring is not None
    found = []
    for name, share in RING_SHARES.items():
        bare, whole = (_scheme(name, cluster, leaves_out) for leaves_out in (True, False))
        now, before = (Costs(name, cluster, each.waits_s, of_byte(each)).of(size_bytes) for each in (bare, whole))
        found.append(
            PredictedCollective(
                name,
                now.time_s,
                bare.phases[0].host_bytes("out") * size_bytes,
                bare.phases[0].host_bytes("into") * size_bytes,
                now.bound,
                before.time_s,
                None if share is None else share * ring.of(size_bytes).time_s,
            )
        )
    return found
