"""Predicts how long sums take on simulated clusters."""

from collections.abc import Sequence
from dataclasses import dataclass

from jax_passing.errors import ConfigError
from jax_passing.predict.cluster import SimulatedCluster
from jax_passing.predict.schemes import SCHEMES


@dataclass(frozen=True)
class SimulatedSum:
    """A sum on a cluster. Its time grows by the same for each byte, as flows that begin together take time in
    proportion to their sizes.

    Attributes:
      scheme: its name.
      cluster: where it runs.
      waits_s: how long nothing flows.
      s_per_byte: seconds for each byte of float32 that a device gives.
      link_bytes: bytes that the busiest link of a host or a server carries, one way, for each byte of float32.
      bound: the resource that sets the time.
    """

    scheme: str
    cluster: SimulatedCluster
    waits_s: float
    s_per_byte: float
    link_bytes: float
    bound: str

    def time_s(self, size_bytes: float) -> float:
        return self.waits_s + size_bytes * self.s_per_byte

    def bound_of(self, size_bytes: float) -> str:
        return "latency" if self.waits_s > size_bytes * self.s_per_byte else self.bound


def simulate_sums(
    clusters: Sequence[SimulatedCluster], schemes: Sequence[str] = tuple(SCHEMES)
) -> list[list[SimulatedSum]]:
    """Simulates each scheme on each cluster. Schemes that a cluster can't have are left out.

    Returns the sums of each cluster. Raises ConfigError for an unknown scheme.
    """
    for name in schemes:
        if name not in SCHEMES:
            raise ConfigError(f"There is no scheme {name!r}. Take some of {', '.join(SCHEMES)}.")
    found: list[list[SimulatedSum]] = []
    for cluster in clusters:
        found.append([])
        for name in schemes:
            if (scheme := SCHEMES[name][0](cluster)) is not None:
                s_per_byte = sum(phase.duration_s() for phase in scheme.phases)
                bound = max(phase.slowest() for phase in scheme.phases)[1]
                link_bytes = sum(phase.link_bytes for phase in scheme.phases)
                found[-1].append(SimulatedSum(name, cluster, scheme.waits_s, s_per_byte, link_bytes, bound))
    return found
