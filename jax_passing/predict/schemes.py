"""The ways to sum over hosts, each as the flows that it has. docs/reference/scale.md lists them.

Parts that are alike are simulated once: all chunks of a host on one link are one flow, and one processor stands for all
that do the same. So 4,096 hosts have some 8,000 flows, whatever the sum's size, and no packets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax_passing.predict import constants
from jax_passing.predict import traffic as names
from jax_passing.predict.cluster import Cluster, goodput_under_loss, tcp_bytes_per_s_under_loss
from jax_passing.predict.traffic import Traffic
from jax_passing.protocol.packet import WORKERS_MAX


@dataclass(frozen=True)
class Scheme:
    """A sum's traffic, in phases that follow on one another, and how long nothing flows."""

    phases: tuple[Traffic, ...]
    waits_s: float


Builder = Callable[[Cluster], "Scheme | None"]


def _capacity(ns_per_kb: float) -> float:
    return 1024 / ns_per_kb * 1e9


def _switch_traffic(cluster: Cluster) -> Traffic:
    return Traffic(cluster, constants.UDP_WIRE_BYTES_PER_BYTE, slowdown=1 / goodput_under_loss(cluster.loss))


def _ring_traffic(cluster: Cluster) -> Traffic:
    return Traffic(cluster, constants.TCP_WIRE_BYTES_PER_BYTE, 1.0 if cluster.links_only else constants.RING_STALL)


def _add_up_in_host(traffic: Traffic) -> float:
    """Adds the ring inside a host, if its devices have links. Returns what the host's processor has to add up, in ns
    per KB, if they don't."""
    cluster = traffic.cluster
    others = cluster.devices_per_host - 1
    if cluster.in_host_gbit is None:
        return constants.IN_HOST_NS_PER_KB * others
    traffic.work(names.IN_HOST, 2 * others / cluster.devices_per_host, cluster.in_host_gbit * 1e9 / 8)
    return 0.0


def _through_switches(
    traffic: Traffic,
    busiest_switch: float,
    all_switches: float,
    levels: int = 1,
    devices_send: bool = False,
    host_load: float = 1.0,
) -> Scheme:
    """Adds what processors do for sums by switches, and what bounds a rank.

    Args:
      busiest_switch: bytes that the busiest switch receives, for a sum of one byte.
      all_switches: the same of all switches.
      levels: switches on the way to the root.
      devices_send: whether each device is a rank, not each host.
      host_load: bytes that a host, or such a device, encodes and sends, or receives and decodes: the mean of both ways.
    """
    cluster = traffic.cluster
    host_ns = constants.HOST_NS_PER_KB * host_load + (0.0 if devices_send else _add_up_in_host(traffic))
    ranks = cluster.hosts * (cluster.devices_per_host if devices_send else 1)
    if not cluster.links_only:
        traffic.work(names.HOST_PROCESSOR, 1.0, _capacity(host_ns))
        traffic.work(names.SWITCH_PROCESSOR, busiest_switch, _capacity(constants.SWITCH_NS_PER_KB))
        if cluster.shared_cores:
            work_ns = ranks * host_ns + all_switches * constants.SWITCH_NS_PER_KB
            traffic.work(names.SHARED_PROCESSORS, 1.0, _capacity(work_ns / cluster.shared_cores))
    call_us = 0.0 if cluster.links_only else constants.CALL_US * cluster.crowd(cluster.hosts)
    return Scheme((traffic,), (call_us + cluster.round_trip_us * levels) * 1e-6)


def one_host(cluster: Cluster) -> Scheme:
    """Nothing is sent."""
    traffic = _switch_traffic(cluster)
    in_host_ns = _add_up_in_host(traffic)
    if in_host_ns and not cluster.links_only:
        traffic.work(names.HOST_PROCESSOR, 1.0, _capacity(in_host_ns))
    return Scheme((traffic,), 0.0 if cluster.links_only else constants.CALL_US * 1e-6)


def central(cluster: Cluster, ups: Sequence[float], downs: Sequence[float], ranks_per_host: int = 1) -> Scheme:
    """Switches at the centre: one with a port for each host, or each rack; a tree of them; or shards of a link each.

    Args:
      cluster: where they are.
      ups: what each host sends.
      downs: what each host receives.
      ranks_per_host: by so many ranks.
    """
    traffic = _switch_traffic(cluster)
    ranks, shards = cluster.hosts * ranks_per_host, cluster.shards
    all_up, all_down = sum(ups), sum(downs)
    for host, (up, down) in enumerate(zip(ups, downs, strict=True)):
        if cluster.colocated:
            # A host's own shard costs its link nothing. Beside what its ranks send to the other shards, the link of a
            # host with a shard carries that shard's results to the other hosts.
            own = (host < shards) / shards
            traffic.send(up * (1 - own) + (all_down - down) * own, [traffic.out(host)])
            traffic.send(down * (1 - own) + (all_up - up) * own, [traffic.into(host)])
        else:
            traffic.send(up, traffic.to_centre(host))
            traffic.send(down, [traffic.into(host)])
    for rack in range(cluster.racks):  # a result goes to a rack once: multicast
        traffic.send(max(downs), [traffic.rack_link(rack, "into")])
    if shards and not cluster.colocated:
        traffic.send(all_up / shards, [traffic.shard_link("into")])
        traffic.send(all_down / shards, [traffic.shard_link("out")])
    added = (all_up + all_down) / 2
    busiest = added / (shards or max(1.0, ranks / WORKERS_MAX))
    return _through_switches(
        traffic,
        busiest,
        added,
        levels=2 if shards == 0 and ranks > WORKERS_MAX else 1,
        devices_send=ranks_per_host > 1,
        host_load=max(up + down for up, down in zip(ups, downs, strict=True)) / (2 * ranks_per_host),
    )


def _central_sum(cluster: Cluster, ranks_per_host: int) -> Scheme:
    loads = [float(ranks_per_host)] * cluster.hosts
    return central(cluster, loads, loads, ranks_per_host)


def passing(cluster: Cluster) -> Scheme:
    """Hosts add up their devices, then a switch adds up the hosts."""
    return one_host(cluster) if cluster.hosts == 1 else _central_sum(cluster, 1)


def flat(cluster: Cluster) -> Scheme:
    """Each device sends to the switch: SwitchML, ATP."""
    return _central_sum(cluster, cluster.devices_per_host)


def tree(cluster: Cluster) -> Scheme | None:
    """Each rack has a switch, and one stream leaves it."""
    if cluster.rack_hosts is None:
        return None
    traffic = _switch_traffic(cluster)
    for host in range(cluster.hosts):
        traffic.send(1, [traffic.out(host)])
        traffic.send(1, [traffic.into(host)])
    for rack in range(cluster.racks):
        traffic.send(1, [traffic.rack_link(rack, "out")])
        traffic.send(1, [traffic.rack_link(rack, "into")])
    busiest = max(min(cluster.rack_hosts, cluster.hosts), min(cluster.racks, WORKERS_MAX))
    levels = 2 if cluster.racks <= WORKERS_MAX else 3
    return _through_switches(traffic, busiest, cluster.hosts + cluster.racks, levels)


def in_rack(cluster: Cluster) -> Scheme | None:
    """The same, but each host of a rack has a switch, for a shard of the rack's sum."""
    if cluster.rack_hosts is None:
        return None
    traffic = _switch_traffic(cluster)
    for host in range(cluster.hosts):
        rack = traffic.rack(host)
        hosts = min(cluster.rack_hosts, cluster.hosts - rack * cluster.rack_hosts)  # the last rack may have fewer
        inside = 2 * (hosts - 1) / hosts  # to the shards of the others, and results of its own shard to them
        for link, way in ((traffic.out(host), "out"), (traffic.into(host), "into")):
            traffic.send(inside, [link])
            traffic.send(1 / hosts, [link, traffic.rack_link(rack, way)])
    busiest = max(1.0, min(cluster.racks, WORKERS_MAX))  # a shard of a rack's hosts adds up one byte; so does the spine
    return _through_switches(traffic, busiest, cluster.hosts + cluster.racks, 2)


def _server(cluster: Cluster, ranks_per_host: int) -> Scheme:
    """A parameter server on a machine of its own, at the centre."""
    traffic = _switch_traffic(cluster)
    for host in range(cluster.hosts):
        traffic.send(ranks_per_host, [*traffic.to_centre(host), traffic.server_link("into")])
        traffic.send(ranks_per_host, [traffic.server_link("out"), *traffic.from_centre(host)])
    ranks = cluster.hosts * ranks_per_host
    return _through_switches(traffic, ranks, ranks, devices_send=ranks_per_host > 1)


def server(cluster: Cluster) -> Scheme:
    """Hosts add up their devices."""
    return _server(cluster, 1)


def server_flat(cluster: Cluster) -> Scheme:
    """Each device sends to the server."""
    return _server(cluster, cluster.devices_per_host)


def server_at_host(cluster: Cluster) -> Scheme:
    """The server is at a host."""
    traffic = _switch_traffic(cluster)
    for host in range(1, cluster.hosts):
        traffic.send(1, traffic.between(host, 0))
        traffic.send(1, traffic.between(0, host))
    return _through_switches(traffic, cluster.hosts, cluster.hosts)


def shards(cluster: Cluster) -> Scheme:
    """Each host has a parameter server, for a shard of the sum.

    All pairs of hosts send to each other, so what a host sends into its rack is one flow, and the rest another.
    """
    traffic = _switch_traffic(cluster)
    for host in range(cluster.hosts):
        rack = traffic.rack(host)
        first = rack * cluster.rack_hosts if cluster.rack_hosts else 0
        near = min(cluster.rack_hosts or cluster.hosts, cluster.hosts - first)
        for link, way in ((traffic.out(host), "out"), (traffic.into(host), "into")):
            traffic.send(2 * (near - 1) / cluster.hosts, [link])
            if near < cluster.hosts:
                traffic.send(2 * (cluster.hosts - near) / cluster.hosts, [link, traffic.rack_link(rack, way)])
    return _through_switches(traffic, 1.0, cluster.hosts)


def _step_by_step(cluster: Cluster, phases: tuple[Traffic, ...], members: int, steps: int, sent: float) -> Scheme:
    """Adds what processors do in a ring, or in halving and doubling, for `members` that send `sent` bytes each."""
    first = phases[0]
    in_host_ns = _add_up_in_host(first) if members == cluster.hosts else 0.0
    if cluster.loss:
        first.work(names.TCP_UNDER_LOSS, sent, tcp_bytes_per_s_under_loss(cluster.loss, cluster.round_trip_us))
    if cluster.links_only:
        return Scheme(phases, steps * cluster.round_trip_us * 1e-6)
    host_ns = constants.RING_NS_PER_KB * sent + in_host_ns
    if host_ns:
        first.work(names.HOST_PROCESSOR, 1.0, _capacity(host_ns))
        if cluster.shared_cores and cluster.hosts > 1:
            first.work(names.SHARED_PROCESSORS, 1.0, _capacity(members * host_ns / cluster.shared_cores))
    return Scheme(phases, steps * constants.RING_STEP_US * cluster.crowd(members) * 1e-6)


def _ring(cluster: Cluster, members: int) -> Scheme:
    traffic = _ring_traffic(cluster)
    sent = 2 * (members - 1) / members
    if cluster.hosts > 1:
        for host in range(cluster.hosts):
            traffic.send(sent, traffic.between(host, (host + 1) % cluster.hosts))
    return _step_by_step(cluster, (traffic,), members, 2 * (members - 1), sent)


def ring(cluster: Cluster) -> Scheme:
    """The ring goes through all devices, those of a host side by side."""
    return _ring(cluster, cluster.hosts * cluster.devices_per_host)


def ring_of_hosts(cluster: Cluster) -> Scheme:
    """Hosts add up their devices, then a ring goes through the hosts."""
    return _ring(cluster, cluster.hosts)


def halving_doubling(cluster: Cluster) -> Scheme | None:
    """Near hosts exchange halves first, then ever farther ones ever smaller parts; then the same way back."""
    steps = cluster.hosts.bit_length() - 1
    if cluster.hosts != 1 << steps:
        return None
    phases: list[Traffic] = []
    sizes: list[tuple[float, int, bool]] = []  # steps with the same ways between racks are as fast: one phase
    for step in range(steps):
        far = cluster.rack_hosts is not None and any(
            host // cluster.rack_hosts != (host ^ 1 << step) // cluster.rack_hosts for host in range(cluster.hosts)
        )
        size = 2 * 2.0 ** -(step + 1)
        uniform = cluster.rack_hosts is None or cluster.rack_hosts & (cluster.rack_hosts - 1) == 0
        if sizes and uniform and sizes[-1][2] == far:
            sizes[-1] = (sizes[-1][0] + size, step, far)
        else:
            sizes.append((size, step, far))
    for size, step, _ in sizes:
        phases.append(_ring_traffic(cluster))
        for host in range(cluster.hosts):
            phases[-1].send(size, phases[-1].between(host, host ^ 1 << step))
    sent = 2 * (cluster.hosts - 1) / cluster.hosts
    return _step_by_step(cluster, tuple(phases) or (_ring_traffic(cluster),), cluster.hosts, 2 * steps, sent)


SCHEMES: dict[str, Builder] = {
    "passing": passing,
    "tree": tree,
    "in-rack": in_rack,
    "flat": flat,
    "ring": ring,
    "ring-of-hosts": ring_of_hosts,
    "halving-doubling": halving_doubling,
    "shards": shards,
    "server": server,
    "server-at-host": server_at_host,
    "server-flat": server_flat,
}
"""By name, what builds the traffic. A builder returns None where its scheme can't be."""
