"""Predicts how long sums take: for `plan` and `auto`, `simulate`, and steps of training.

A sum is a pipeline over several resources (links, processors), so its time is that of the slowest one, plus the round
trips in which nothing flows. docs/train/collectives.md derives it.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jax_passing.config import RANKS_MAX
from jax_passing.errors import ConfigError
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.constants import NATIVE_BYTES, lane_bytes
from jax_passing.predict.schemes import SCHEMES, Scheme
from jax_passing.protocol.packet import WORKERS_MAX

Strategy = Literal["passing", "flat", "native"]
SCHEME_OF: dict[Strategy, str] = {"passing": "passing", "flat": "flat", "native": "ring"}


@dataclass(frozen=True)
class Prediction:
    """One sum.

    Attributes:
      time_s: how long it takes.
      link_bytes: wire bytes that the busiest link of a host, server or shard carries, the way that carries more.
      bound: the resource that sets the time.
      shared_processors_s: how long the sum would keep all shared cores busy; 0 if none is shared.
    """

    time_s: float
    link_bytes: float
    bound: str
    shared_processors_s: float = 0.0


@dataclass(frozen=True)
class Costs:
    """A scheme's sums cost this on a cluster: a wait, and the same for each byte, as flows that begin together take
    time in proportion to their sizes.

    Attributes:
      scheme: its name.
      cluster: where they run.
      waits_s: how long nothing flows.
      of_byte: what each byte costs that a device gives.
    """

    scheme: str
    cluster: Cluster
    waits_s: float
    of_byte: Prediction

    def of(self, size_bytes: float) -> Prediction:
        """Predicts a sum to which each device gives `size_bytes`."""
        flowing_s = self.of_byte.time_s * size_bytes
        return Prediction(
            self.waits_s + flowing_s,
            self.of_byte.link_bytes * size_bytes,
            "latency" if self.waits_s > flowing_s else self.of_byte.bound,
            self.of_byte.shared_processors_s * size_bytes,
        )


@functools.lru_cache(1024)
def costs(cluster: Cluster, scheme: str) -> Costs | None:
    """Returns what sums cost; None if this cluster can't have the scheme. Raises ConfigError for an unknown one."""
    if scheme not in SCHEMES:
        raise ConfigError(f"There is no scheme {scheme!r}. Take some of {', '.join(SCHEMES)}.")
    built = SCHEMES[scheme](cluster)
    if built is None:
        return None
    return Costs(scheme, cluster, built.waits_s, of_byte(built))


def of_byte(built: Scheme) -> Prediction:
    """Returns what each byte costs, without waits."""
    return Prediction(
        sum(phase.duration_s() for phase in built.phases),
        sum(phase.link_bytes for phase in built.phases),
        max((phase.slowest() for phase in built.phases), key=lambda time: time[0])[1],
        sum(phase.shared_s for phase in built.phases),
    )


def all_costs(cluster: Cluster, schemes: Sequence[str] = tuple(SCHEMES)) -> dict[str, Costs]:
    """Returns what sums cost, by scheme. Schemes that the cluster can't have are left out."""
    return {name: found for name in schemes if (found := costs(cluster, name)) is not None}


def predict(
    cluster: Cluster, strategy: Strategy, elements: int, dtype: str = "float32", wire_dtype: str = "full"
) -> Prediction:
    """Predicts one sum, of `elements` on each device. The processors' work is taken to shrink as narrow lanes do."""
    found = costs(cluster, SCHEME_OF[strategy])
    assert found is not None
    return found.of(elements * (NATIVE_BYTES[dtype] if strategy == "native" else lane_bytes(dtype, wire_dtype)))


def choose(
    cluster: Cluster, elements: int, candidates: Sequence[Strategy], dtype: str = "float32", wire_dtype: str = "full"
) -> Strategy:
    """Returns the candidate that takes least time; of equals the first of them."""
    return min(candidates, key=lambda strategy: predict(cluster, strategy, elements, dtype, wire_dtype).time_s)


def ranks_max(cluster: Cluster) -> int:
    """Counts the ranks that its switches add up: those of one switch, or of a tree where hosts alone are more."""
    return WORKERS_MAX if cluster.hosts <= WORKERS_MAX else RANKS_MAX


def fits_flat(cluster: Cluster) -> bool:
    """Tells whether these switches can add up what every device sends."""
    return cluster.hosts * cluster.devices_per_host <= ranks_max(cluster)
