"""The bytes of one sum: flows through links, and what processors have to do beside them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from jax_passing.predict.cluster import Cluster
from jax_passing.predict.fair_shares import Resource, duration_s

HOST_LINK, RACK_LINK = "the host's link", "the rack's link"
SERVER_LINK, SHARD_LINK = "the server's link", "the shard's link"
HOST_PROCESSOR, SWITCH_PROCESSOR = "the host's processor", "the switch's processor"
SHARED_PROCESSORS, IN_HOST, TCP_UNDER_LOSS = "the shared processors", "links inside the host", "TCP under loss"


@dataclass
class Traffic:
    """Flows that begin together, for a sum of one byte.

    Attributes:
      cluster: where they flow.
      wire_bytes: bytes that a link carries for each byte of the sum, headers included.
      slowdown: how many times as long a link takes as its bytes would.
      capacities: bytes of the sum a second that each resource takes.
      loads: bytes of the sum that go through each resource.
      flows: sizes and routes.
    """

    cluster: Cluster
    wire_bytes: float
    slowdown: float = 1.0
    capacities: dict[Resource, float] = field(default_factory=dict)
    loads: defaultdict[Resource, float] = field(default_factory=lambda: defaultdict(float))
    flows: list[tuple[float, tuple[Resource, ...]]] = field(default_factory=list)

    def out(self, host: int) -> Resource:
        return self._resource((HOST_LINK, ("out", host)), self._rate())

    def into(self, host: int) -> Resource:
        return self._resource((HOST_LINK, ("into", host)), self._rate())

    def server_link(self, way: str) -> Resource:
        return self._resource((SERVER_LINK, way), self._rate())

    def shard_link(self, way: str) -> Resource:
        """Returns the link of one shard, which stands for those of all."""
        gbit = self.cluster.shard_link_gbit or self.cluster.link_gbit
        return self._resource((SHARD_LINK, way), self._rate() * gbit / self.cluster.link_gbit)

    def rack(self, host: int) -> int:
        return host // self.cluster.rack_hosts if self.cluster.rack_hosts else 0

    def rack_link(self, rack: int, way: str) -> Resource:
        assert self.cluster.rack_hosts is not None
        links = self.cluster.rack_hosts / self.cluster.oversubscription
        return self._resource((RACK_LINK, (way, rack)), links * self._rate())

    def to_centre(self, host: int) -> tuple[Resource, ...]:
        return self.out(host), *(self.rack_link(rack, "out") for rack in self._racks_of(host))

    def from_centre(self, host: int) -> tuple[Resource, ...]:
        return *(self.rack_link(rack, "into") for rack in self._racks_of(host)), self.into(host)

    def between(self, sender: int, receiver: int) -> tuple[Resource, ...]:
        if self.rack(sender) == self.rack(receiver):
            return self.out(sender), self.into(receiver)
        return *self.to_centre(sender), *self.from_centre(receiver)

    def send(self, size: float, route: Sequence[Resource]) -> None:
        if size > 0 and route:
            self.flows.append((size, tuple(route)))
            for resource in route:
                self.loads[resource] += size

    def work(self, what: str, load: float, capacity: float) -> None:
        """Lets something beside the links take `load` bytes of the sum. One stands for all that are alike."""
        self.send(load, [self._resource((what, 0), capacity)])

    def duration_s(self) -> float:
        """Returns how long the flows take for a sum of one byte."""
        return duration_s(self.capacities, self.flows)

    @property
    def link_bytes(self) -> float:
        """Returns the bytes that the busiest link of a host, server or shard carries one way, for a sum of one byte."""
        links = [load for (what, _), load in self.loads.items() if what in (HOST_LINK, SERVER_LINK, SHARD_LINK)]
        return max(links, default=0.0) * self.wire_bytes

    def host_bytes(self, way: str) -> float:
        """Returns the bytes that the busiest of all hosts' links carries one way, "out" or "into"."""
        links = [self.loads.get((HOST_LINK, (way, host)), 0.0) for host in range(self.cluster.hosts)]
        return max(links) * self.wire_bytes

    def slowest(self) -> tuple[float, str]:
        """Returns how long the slowest resource takes for a sum of one byte, and what it is."""
        times = [(load / self.capacities[resource], resource[0]) for resource, load in self.loads.items()]
        return max(times, key=lambda time: time[0], default=(0.0, "latency"))

    @property
    def shared_s(self) -> float:
        """Returns how long shared cores, if there are any, are busy for a sum of one byte."""
        shared = (SHARED_PROCESSORS, 0)
        return self.loads[shared] / self.capacities[shared] if shared in self.loads else 0.0

    def _rate(self) -> float:
        return self.cluster.link_gbit * 1e9 / 8 / (self.wire_bytes * self.slowdown)

    def _racks_of(self, host: int) -> tuple[int, ...]:
        return (self.rack(host),) if self.cluster.rack_hosts else ()

    def _resource(self, resource: Resource, capacity: float) -> Resource:
        self.capacities.setdefault(resource, capacity)
        return resource
