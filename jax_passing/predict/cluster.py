"""Describes a cluster to simulate, and turns the planner's constants into capacities."""

import math
from dataclasses import dataclass

from jax_passing.config import RANKS_MAX, RANKS_MAX_OF_WIRE, WIRES
from jax_passing.errors import ConfigError
from jax_passing.predict import planner
from jax_passing.protocol.packet import WORKERS_MAX

HOSTS_MAX = 4096
WIRE_SHARES = {wire: planner.lane_bytes("float32", wire) / 4 for wire in WIRES}
"""Bytes on the wire to a switch for each byte of float32."""
CHUNK_BYTES = 1440  # lanes of one packet, which take one slot

# Goodput of sums by a switch where packets get lost, each by itself, over that without loss: the middles of the ranges
# in docs/reference/benchmarks.md, "Packets that get lost", with the rule that narrows windows.
GOODPUT_UNDER_LOSS = ((0.0001, 1.0), (0.001, 0.995), (0.01, 0.885), (0.05, 0.47), (0.2, 0.018))


@dataclass(frozen=True, kw_only=True)
class SimulatedCluster:
    """A cluster. With the defaults it is the planner's, with one switch that has a port for each host.

    Attributes:
      hosts: H, up to HOSTS_MAX.
      devices_per_host: G.
      link_gbit: rate of each host's link, both ways at once.
      rack_hosts: hosts of each rack, whose links to the centre have the rate of its hosts' links together, divided by
        `oversubscription`; None: all hosts are at the centre.
      oversubscription: 1 or more.
      loss: probability with which a packet gets lost, each way.
      slots: chunks that a rank has in flight at most; None: as many as it takes.
      wire: how float32 travels to a switch.
      links_only: processors take no time, neither hosts' nor switches', as if hardware did all: only links and round
        trips count.
      in_host_gbit: rate at which each device of a host sends to others of it, in a ring; None: the host's processor
        adds up.
      round_trip_us: from a host to the switch and back to a host.
      shared_cores: as in the planner's cluster.
    """

    hosts: int
    devices_per_host: int = 1
    link_gbit: float = planner.UNKNOWN_LINK_GBIT
    rack_hosts: int | None = None
    oversubscription: float = 1.0
    loss: float = 0.0
    slots: int | None = None
    wire: str = "full"
    links_only: bool = False
    in_host_gbit: float | None = None
    round_trip_us: float = planner.ROUND_TRIP_US
    shared_cores: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigError for what can't be simulated."""

        def require(holds: bool, message: str) -> None:
            if not holds:
                raise ConfigError(f"This can't be simulated: {message}.")

        require(1 <= self.hosts <= HOSTS_MAX, f"hosts are 1 to {HOSTS_MAX}, not {self.hosts}")
        require(self.devices_per_host >= 1, f"a host has 1 device or more, not {self.devices_per_host}")
        for name, rate in (("link_gbit", self.link_gbit), ("in_host_gbit", self.in_host_gbit)):
            require(rate is None or 0 < rate < math.inf, f"{name} is above 0 and finite, not {rate}")
        require(
            self.rack_hosts is None or 1 <= self.rack_hosts <= WORKERS_MAX,
            f"a rack's switch takes 1 to {WORKERS_MAX} hosts, not {self.rack_hosts}",
        )
        require(1 <= self.oversubscription < math.inf, f"oversubscription is 1 or more, not {self.oversubscription}")
        require(
            self.rack_hosts is not None or self.oversubscription == 1, "only racks are oversubscribed: set rack_hosts"
        )
        largest = GOODPUT_UNDER_LOSS[-1][0]
        require(0 <= self.loss <= largest, f"loss is a probability from 0 to {largest}, not {self.loss}")
        require(self.slots is None or self.slots >= 1, f"slots are 1 or more, not {self.slots}")
        require(self.round_trip_us > 0, f"a round trip takes more than 0 us, not {self.round_trip_us}")
        require(self.shared_cores >= 0, f"shared_cores are 0 or more, not {self.shared_cores}")
        require(self.wire in WIRE_SHARES, f"wire is one of {', '.join(WIRE_SHARES)}, not {self.wire!r}")
        require(
            self.has_room_for(self.hosts),
            f"wire {self.wire!r} adds up at most {RANKS_MAX_OF_WIRE[self.wire]} hosts, not {self.hosts}: take a wider "
            "wire, or fewer hosts",
        )

    def has_room_for(self, ranks: int) -> bool:
        """Tells whether sums of so many ranks fit into the bits of the wire. A job's limit is none of a simulation."""
        most = RANKS_MAX_OF_WIRE[self.wire]
        return most == RANKS_MAX or ranks <= most

    @property
    def racks(self) -> int:
        return math.ceil(self.hosts / self.rack_hosts) if self.rack_hosts else 0

    @property
    def link_bytes_per_s(self) -> float:
        return self.link_gbit * 1e9 / 8

    @property
    def crowd(self) -> float:
        """How much longer a call takes where all hosts share some cores."""
        return max(1.0, self.hosts / self.shared_cores) if self.shared_cores else 1.0


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
