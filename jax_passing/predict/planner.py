"""Predicts how long a sum takes with each strategy, so that `auto` can choose; docs/train/collectives.md derives it.

A sum is a pipeline over several resources (links, processors), so its time is that of the slowest one, plus the round
trips in which nothing flows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jax_passing.config import RANKS_MAX
from jax_passing.protocol.packet import WORKERS_MAX

Strategy = Literal["passing", "flat", "native"]
PREDICTABLE: tuple[Strategy, ...] = ("passing", "flat", "native")

LANE_BYTES = {
    "bool": 4, "int8": 4 / 3, "int16": 8 / 3, "int32": 4, "int64": 12,
    "uint8": 4 / 3, "uint16": 8 / 3, "uint32": 4, "uint64": 12, "bfloat16": 2, "float16": 4, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of an element on the wire "full" to a switch (docs/internals/fixed_point.md): of up to 16 ranks. More of them
take more for int8 and uint8, from 129 on for bfloat16, from 258 on for int16 and uint16."""
NARROW_PARTS = {"float32": 1, "float16": 1, "bfloat16": 1, "complex64": 2}
"""How many integers of a narrow wire an element has there. Other dtypes travel "full"."""
NATIVE_BYTES = {
    "bool": 4, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "bfloat16": 4, "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes that an element takes in `lax.psum` on CPU, which adds bfloat16 up as float32."""

# Packets. Ours: 20 bytes of header on 1,440 of lanes, and 8 bytes of exponents for each block of 256 float32. TCP's:
# 1,448 bytes of payload beside 52 of headers with timestamps. Either behind 14 bytes of Ethernet, as tbf counts.
UDP_FRAME_BYTES_PER_BYTE = (1440 + 20 + 28 + 14) / 1440
UDP_WIRE_BYTES_PER_BYTE = UDP_FRAME_BYTES_PER_BYTE * (1 + 8 / (4 * 256))
TCP_WIRE_BYTES_PER_BYTE = 1514 / 1448

# Measured on 2 cores of an AMD EPYC (Zen 5) that all hosts and the switch share: docs/reference/benchmarks.md.
# Processors, in ns of one core per KB (1024 bytes):
HOST_NS_PER_KB = 650.0  # of the sum: encode, send, receive, decode; the kernel has the most of it
IN_HOST_NS_PER_KB = 100.0  # to add one more device's buffer: docs/reference/benchmarks.md, "Fixed point"
SWITCH_NS_PER_KB = 230.0  # that it receives: to receive, add, and send its share of the result
RING_NS_PER_KB = 1300.0  # that a host sends in gloo's ring, with what steps wait for each other
# Waiting:
CALL_US = 150.0  # of a host's processor: from the call in Python to the first packet, and back from the last one
ROUND_TRIP_US = 60.0  # host, switch, host
RING_STEP_US = 400.0  # of a host's processor: one of gloo's 2(N-1) steps, mostly waking threads
RING_STALL = 1.04  # gloo's steps don't overlap altogether: the time of a large sum over that of its bytes

UNKNOWN_LINK_GBIT = 10.0  # what `auto` reckons with if no host knows its link
SHARED_PROCESSORS = "the shared processors"  # a resource


@dataclass(frozen=True)
class Cluster:
    """Where the sum runs. The same on every host, so that all of them plan alike.

    Attributes:
      hosts: H.
      devices_per_host: L.
      link_gbit: rate of each host's link, both ways at once.
      shards: switches that share the sum, behind one link each; 0: one switch has a port for each host, or, where
        there are more ranks than it takes, a tree of switches has them.
      colocated: the shards stand behind the links of the hosts 0, 1, …, not behind links of their own.
      shard_link_gbit: rate of a shard's own link; None: that of the hosts.
      shared_cores: cores that all hosts and the switch share, as on a benchmark's machine; 0: none is shared.
    """

    hosts: int
    devices_per_host: int = 1
    link_gbit: float = UNKNOWN_LINK_GBIT
    shards: int = 0
    colocated: bool = False
    shard_link_gbit: float | None = None
    shared_cores: int = 0

    def __post_init__(self) -> None:
        if self.hosts < 1 or self.devices_per_host < 1 or self.shards < 0 or self.shared_cores < 0:
            raise ValueError("hosts and devices_per_host start at 1, shards and shared_cores at 0")
        if self.link_gbit <= 0 or (self.shard_link_gbit is not None and self.shard_link_gbit <= 0):
            raise ValueError("a link's rate is above 0")
        if self.colocated and not 1 <= self.shards <= self.hosts:
            raise ValueError("co-located shards stand behind a host's link each: 1 to hosts of them")


@dataclass(frozen=True)
class Prediction:
    """One strategy's sum.

    Attributes:
      strategy: its name, or that of a parameter server.
      time_s: how long the sum takes.
      link_bytes: wire bytes that the busiest link carries, the way that carries more.
      bound: the resource that sets the time.
      shared_processors_s: how long the sum would keep all shared cores busy; 0 if none is shared.
    """

    strategy: str
    time_s: float
    link_bytes: float
    bound: str
    shared_processors_s: float = 0.0


def _prediction(strategy: str, waits_s: float, link_bytes: float, resources: dict[str, float]) -> Prediction:
    bound = max(resources, key=lambda name: resources[name])
    busy_s = resources[bound]
    what = "latency" if waits_s > busy_s else bound
    return Prediction(strategy, busy_s + waits_s, link_bytes, what, resources.get(SHARED_PROCESSORS, 0.0))


def _link_s(wire_bytes: float, gbit: float) -> float:
    return wire_bytes * 8 / (gbit * 1e9)


def _crowd(cluster: Cluster, threads: int) -> float:
    """How much longer something takes where so many threads share the processors."""
    return max(1.0, threads / cluster.shared_cores) if cluster.shared_cores else 1.0


def _through_switch(cluster: Cluster, strategy: str, size_bytes: float) -> Prediction:
    """S bytes from each of R ranks to the switch and back: one rank a host, or one a device (flat)."""
    ranks_per_host = cluster.devices_per_host if strategy == "flat" else 1
    devices_per_rank = cluster.devices_per_host // ranks_per_host
    ranks, kilobytes = cluster.hosts * ranks_per_host, size_bytes / 1024
    in_host_s = kilobytes * IN_HOST_NS_PER_KB * (devices_per_rank - 1) * 1e-9
    if cluster.hosts == 1 and strategy == "passing":
        return _prediction(strategy, CALL_US * 1e-6, 0.0, {"the host's processor": in_host_s})
    host_s = kilobytes * HOST_NS_PER_KB * 1e-9 + in_host_s
    tree = cluster.shards == 0 and ranks > WORKERS_MAX
    switches_s = kilobytes * SWITCH_NS_PER_KB * 1e-9 * ranks
    switch_s = switches_s * WORKERS_MAX / ranks if tree else switches_s / max(1, cluster.shards)  # the busiest one's
    wire = size_bytes * UDP_WIRE_BYTES_PER_BYTE * ranks_per_host  # of one host, to all shards together
    hosts, shards = cluster.hosts, cluster.shards
    if cluster.colocated:
        # A host's own shard costs its link nothing. Beside its rank's bytes for the other shards, the link of a host
        # with a shard carries that shard's results to the other hosts.
        host_wire = max(wire * (shards - 1) / shards + wire * (hosts - 1) / shards, wire if shards < hosts else 0.0)
        shard_wire = 0.0
    else:
        host_wire, shard_wire = wire, wire * hosts / shards if shards else 0.0
    resources = {
        "the host's link": _link_s(host_wire, cluster.link_gbit),
        "the host's processor": host_s,
        "the switch's processor": switch_s,
    }
    if shard_wire:
        resources["the shard's link"] = _link_s(shard_wire, cluster.shard_link_gbit or cluster.link_gbit)
    if cluster.shared_cores:
        resources[SHARED_PROCESSORS] = (ranks * host_s + switches_s) / cluster.shared_cores
    # Two levels are enough for all ranks that a job may have.
    waits_s = (CALL_US * _crowd(cluster, cluster.hosts) + ROUND_TRIP_US * (1 + tree)) * 1e-6
    return _prediction(strategy, waits_s, max(host_wire, shard_wire), resources)


def _ring(cluster: Cluster, size_bytes: float) -> Prediction:
    """JAX's own all-reduce: a ring through all devices, those of a host side by side, 2(N-1) steps of S/N bytes."""
    devices = cluster.hosts * cluster.devices_per_host
    steps = 2 * (devices - 1)
    sent = size_bytes * steps / devices
    waits_s = steps * RING_STEP_US * _crowd(cluster, devices) * 1e-6
    host_s = sent / 1024 * RING_NS_PER_KB * 1e-9
    if cluster.hosts == 1:
        return _prediction("native", waits_s, 0.0, {"the host's processor": host_s})
    wire = sent * TCP_WIRE_BYTES_PER_BYTE
    resources = {
        "the host's link": _link_s(wire, cluster.link_gbit) * RING_STALL,
        "the host's processor": host_s,
    }
    if cluster.shared_cores:
        resources[SHARED_PROCESSORS] = devices * host_s / cluster.shared_cores
    return _prediction("native", waits_s, wire, resources)


def lane_bytes(dtype: str, wire: str = "full") -> float:
    """Returns the bytes of an element on its way to a switch."""
    if wire == "full" or dtype not in NARROW_PARTS:
        return LANE_BYTES[dtype]
    return int(wire.removeprefix("int")) / 8 * NARROW_PARTS[dtype]


def predict(
    cluster: Cluster, strategy: Strategy, elements: int, dtype: str = "float32", wire: str = "full"
) -> Prediction:
    """Predicts the time of one sum of so many elements of a dtype, on each device."""
    if strategy == "native":
        return _ring(cluster, elements * NATIVE_BYTES[dtype])
    return _through_switch(cluster, strategy, elements * lane_bytes(dtype, wire))


def parameter_servers(cluster: Cluster, elements: int) -> list[Prediction]:
    """Predicts a float32 sum by servers in place of switches: one behind its own link, or one behind each host's."""
    single = replace(cluster, shards=1, colocated=False, shard_link_gbit=None)
    everywhere = replace(cluster, shards=cluster.hosts, colocated=True, shard_link_gbit=None)
    named = (("parameter server", single), ("servers, co-located", everywhere))
    return [replace(predict(where, "passing", elements), strategy=name) for name, where in named]


def choose(
    cluster: Cluster, elements: int, candidates: Sequence[Strategy], dtype: str = "float32", wire: str = "full"
) -> Strategy:
    """The candidate that takes least time; of equals the first of them."""
    return min(candidates, key=lambda strategy: predict(cluster, strategy, elements, dtype, wire).time_s)


def ranks_max(cluster: Cluster) -> int:
    """Counts the ranks that its switches add up: those of one switch, or of a tree where hosts alone are more."""
    return WORKERS_MAX if cluster.hosts <= WORKERS_MAX else RANKS_MAX


def fits_flat(cluster: Cluster) -> bool:
    """Tells whether these switches can add up what every device sends."""
    return cluster.hosts * cluster.devices_per_host <= ranks_max(cluster)
