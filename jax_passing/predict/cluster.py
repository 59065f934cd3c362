"""Describes a cluster to predict sums on, and what lost packets cost there."""

import math
from dataclasses import KW_ONLY, dataclass

from jax_passing.errors import ConfigError
from jax_passing.predict.constants import ROUND_TRIP_US, UNKNOWN_LINK_GBIT
from jax_passing.protocol.packet import WORKERS_MAX

HOSTS_MAX = 4096

# Goodput of sums by a switch where packets get lost, each by itself, over that without loss, as measured in
# docs/reference/benchmarks.md, "Packets that get lost". The first entry is assumed: 0.01 % costs nothing.
GOODPUT_UNDER_LOSS = ((0.0001, 1.0), (0.001, 0.996), (0.01, 0.966), (0.05, 0.78), (0.2, 0.118))


@dataclass(frozen=True)
class Cluster:
    """Where sums run. `auto` describes it alike on every host, so that all of them plan alike.

    Attributes:
      hosts: H, up to HOSTS_MAX.
      devices_per_host: G.
      link_gbit: rate of each host's link, both ways at once.
      shards: switches that share a sum of `passing` or `flat`, behind one link each; 0: one switch has a port for each
        host, or, where there are more ranks than it takes, a tree of switches has them.
      colocated: the shards stand behind the links of the hosts 0, 1, …, not behind links of their own.
      shard_link_gbit: rate of a shard's own link; None: that of the hosts.
      shared_cores: cores that all hosts and the switch share, as on a benchmark's machine; 0: none is shared.
      rack_hosts: hosts of each rack, whose links to the centre have the rate of its hosts' links together, divided by
        `oversubscription`; None: all hosts are at the centre.
      oversubscription: 1 or more.
      loss: probability with which a packet gets lost, each way.
      links_only: processors take no time, neither hosts' nor switches', as if hardware did all: only links and round
        trips count.
      in_host_gbit: rate at which each device of a host sends to others of it, in a ring; None: the host's processor
        adds up.
      round_trip_us: from a host to the switch and back to a host.
    """

    hosts: int
    devices_per_host: int = 1
    link_gbit: float = UNKNOWN_LINK_GBIT
    _: KW_ONLY
    shards: int = 0
    colocated: bool = False
    shard_link_gbit: float | None = None
    shared_cores: int = 0
    rack_hosts: int | None = None
    oversubscription: float = 1.0
    loss: float = 0.0
    links_only: bool = False
    in_host_gbit: float | None = None
    round_trip_us: float = ROUND_TRIP_US

    def __post_init__(self) -> None:
        """Raises ConfigError for what nothing can be predicted for."""

        def require(holds: bool, message: str) -> None:
            if not holds:
                raise ConfigError(f"Nothing can be predicted for this: {message}.")

        require(1 <= self.hosts <= HOSTS_MAX, f"hosts are 1 to {HOSTS_MAX}, not {self.hosts}")
        require(self.devices_per_host >= 1, f"a host has 1 device or more, not {self.devices_per_host}")
        for name in ("link_gbit", "shard_link_gbit", "in_host_gbit"):
            rate = getattr(self, name)
            require(rate is None or 0 < rate < math.inf, f"{name} is above 0 and finite, not {rate}")
        require(self.shards >= 0, f"shards are 0 or more, not {self.shards}")
        require(
            not self.colocated or 1 <= self.shards <= self.hosts,
            f"co-located shards stand behind a host's link each: 1 to {self.hosts} of them, not {self.shards}",
        )
        require(self.shared_cores >= 0, f"shared_cores are 0 or more, not {self.shared_cores}")
        require(
            self.rack_hosts is None or 1 <= self.rack_hosts <= WORKERS_MAX,
            f"a rack's switch takes 1 to {WORKERS_MAX} hosts, not {self.rack_hosts}",
        )
        require(self.rack_hosts is None or not self.colocated, "co-located shards are for hosts without racks")
        require(1 <= self.oversubscription < math.inf, f"oversubscription is 1 or more, not {self.oversubscription}")
        require(
            self.rack_hosts is not None or self.oversubscription == 1, "only racks are oversubscribed: set rack_hosts"
        )
        largest = GOODPUT_UNDER_LOSS[-1][0]
        require(0 <= self.loss <= largest, f"loss is a probability from 0 to {largest}, not {self.loss}")
        require(self.round_trip_us > 0, f"a round trip takes more than 0 us, not {self.round_trip_us}")

    @property
    def racks(self) -> int:
        return math.ceil(self.hosts / self.rack_hosts) if self.rack_hosts else 0

    def crowd(self, threads: int) -> float:
        """Returns how many times as long something takes where `threads` threads share the cores."""
        return max(1.0, threads / self.shared_cores) if self.shared_cores else 1.0


def goodput_under_loss(loss: float) -> float:
    """Returns the goodput of sums by a switch over that without loss: between measured points, a line over the
    logarithm of the loss."""
    below = (0.0, 1.0)
    for above in GOODPUT_UNDER_LOSS:
        if loss <= above[0]:
            if below[0] == 0.0:
                return 1.0
            share = math.log(loss / below[0]) / math.log(above[0] / below[0])
            return below[1] + share * (above[1] - below[1])
        below = above
    return below[1]


def tcp_bytes_per_s_under_loss(loss: float, round_trip_us: float) -> float:
    """Returns the bound of one TCP connection (Mathis et al., CCR 27(3), 1997). It wasn't measured here."""
    return math.sqrt(1.5 / loss) * 1448 / (round_trip_us * 1e-6) if loss else math.inf
