"""Sums through ports of a network switch, on a virtual clock: how near they come to what the ports carry.

Machines have links to one network switch, whose ports have a rate and a finite buffer. The cores of switches and hosts
are those that are shipped; control planes aren't here.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from _simulation import Faults, Packets

LANES = 360
HEADERS = 20 + 66  # bytes, of the packet itself and of all layers below
SLOTS = 1024  # of a job, as `jax-passing switch` has them
SWITCH = 1  # its machine; hosts follow
GROUP = 9_000
ORDER_US = 50  # a message to another host takes so long


@dataclass(frozen=True)
class Network:
    """All links of a star are alike, but for those that are said to be others.

    Attributes:
      gbit: rate of each link.
      switch_gbit: that of the switch's link, if it is another one.
      delay_us: of each link, one way.
      buffer_kb: of each port.
      packet_us: how long a machine takes for a packet that has come.
      loss: share of packets that are lost besides, each way.
      is_known: hosts hear in the welcome that they share the switch's port.
    """

    gbit: float = 100.0
    switch_gbit: float | None = None
    delay_us: int = 2
    buffer_kb: float = 200.0
    packet_us: float = 0.0
    loss: float = 0.0
    is_known: bool = True


OWN_PORTS = Network(gbit=1, switch_gbit=1000, delay_us=15, buffer_kb=16_000, is_known=False)


class Star:
    """Jobs of `hosts` hosts each at one switch. `slow`: rates of single hosts' links, by rank in each job."""

    def __init__(self, network: Network, hosts: int, jobs: int = 1, slow: dict[int, float] | None = None):
        self.network, self.hosts, self._slow = network, hosts, slow or {}
        faults = Faults(
            loss=network.loss, duplicate=0, reorder=0, delay_us=0, reorder_us=0,
            flip=0, brings_flipped=False, stale=0, stale_us=0,
        )  # fmt: skip
        self.packets = Packets(1, faults, faults, plain=True)
        self._messages = []  # of rank 0 to others, or of others to rank 0, under way
        self._sent = 0
        self.done_us = {}  # (host, execution) -> when
        self.machines = 1
        self.switch = self.packets.add_switch((self.add_machine(network.switch_gbit), 1), slot_count=jobs * SLOTS)
        self.jobs = [self._add_job(job) for job in range(jobs)]

    def add_machine(self, gbit: float | None = None) -> int:
        machine, network = self.machines, self.network
        self.machines += 1
        self.packets.add_link(
            machine,
            gbit=gbit or network.gbit,
            delay_us=network.delay_us,
            buffer_bytes=int(1000 * network.buffer_kb),
            packet_us=network.packet_us,
        )
        return machine

    def _add_job(self, job: int) -> list[int]:
        group, numbers = (GROUP + job, 1), (1 + job, 1, job * SLOTS)  # job, epoch, first slot
        machines = [self.add_machine(self._slow.get(rank)) for rank in range(self.hosts)]
        self.packets.add_job(
            self.switch,
            job=numbers[0],
            epoch=numbers[1],
            slot_first=numbers[2],
            slot_count=SLOTS,
            workers=[(machine, 1) for machine in machines],
            group=group,
            reach=6 * SLOTS,
            lanes_per_chunk=LANES,
        )
        return [self._add_host(job, rank, machine, group, numbers) for rank, machine in enumerate(machines)]

    def _add_host(self, job, rank, machine, group, numbers):
        socket = self.packets.open((machine, 1), (SWITCH, 1))
        self.packets.join_group(socket, group, job=numbers[0], epoch=numbers[1], nonce=1)
        return self.packets.add_host(
            rank=rank,
            world_size=self.hosts,
            shards=[(socket, *numbers, rank, 0, None, True)],
            slots_per_shard=SLOTS,
            lanes_per_chunk=LANES,
            incarnation=1 + job,
            ranks_at_port=self.hosts if self.network.is_known else 1,
        )

    def add_site(self, elements: int, dtype: str = "int32", moves: str = "all") -> int:
        return self.packets.add_site(
            dtype=dtype, leaves=[elements], device_count=1, maxima=False, wire="full", moves=moves, early=moves != "all"
        )

    @property
    def now_us(self) -> int:
        return self.packets.now_us

    def begin(self, job: list[int], execution: int, site: int) -> None:
        for host in job:
            self.packets.execute(host, execution, [site], spread_us=5)

    def has_done(self, job: list[int], execution: int) -> bool:
        return all((host, execution) in self.done_us for host in job)

    def run(self, until_us: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Returns whether `until` holds, by then."""
        while not (is_over := until()) and self.now_us < until_us:
            while self._messages and self._messages[0][0] <= self.now_us:
                _, _, host, message = heapq.heappop(self._messages)
                self.packets.order_message(host, message)
            next_us = self._messages[0][0] if self._messages else until_us
            for event in self.packets.run(min(until_us, next_us)):
                self._on_event(*event)
        return is_over

    def _on_event(self, kind, host, *what):
        if kind == "order":
            (job,) = [job for job in self.jobs if host in job]
            for to in job[1:] if host == job[0] else job[:1]:
                self._sent += 1
                heapq.heappush(self._messages, (self.now_us + ORDER_US, self._sent, to, what[0]))
        elif kind == "executed":
            self.done_us[host, what[0]] = self.now_us
        else:
            raise AssertionError((kind, host, *what))

    def again(self, job: list[int]) -> float:
        """Returns the share of the job's packets that were sent again."""
        sent, again = (sum(counts) for counts in zip(*map(self.packets.host_packets, job), strict=True))
        return again / sent


def limit_us(network: Network, hosts: int, elements: int) -> float:
    """Returns how long the packets of a sum take on the narrowest link."""
    bytes_of_rank = 4 * elements + HEADERS * -(-elements // LANES)
    gbit = [network.gbit, (network.switch_gbit or network.gbit) / hosts]
    return bytes_of_rank / 125 / min(gbit)


def through(network: Network, hosts: int, elements: int = 2**20, sums: int = 3, dtype: str = "int32", **star: dict):
    """Sums one after the other. Returns their share of the port's rate, what was sent again, and packets lost there."""
    stage = Star(network, hosts, **star)
    (job,), site = stage.jobs, stage.add_site(elements, dtype)
    least_us = sums * limit_us(network, hosts, elements)
    for execution in range(sums):
        stage.begin(job, execution, site)
        if not stage.run(int(1000 * least_us), lambda execution=execution: stage.has_done(job, execution)):
            return 0.0, stage.again(job), stage.packets.lost(SWITCH)
    return least_us / stage.now_us, stage.again(job), stage.packets.lost(SWITCH)


class Endless:
    """A job that sums without end from a moment on."""

    def __init__(self, stage: Star, job: list[int], site: int, from_us: int = 0):
        self.stage, self.job, self.site, self.from_us, self.execution = stage, job, site, from_us, -1

    def look(self) -> bool:
        if self.stage.now_us >= self.from_us and (self.execution < 0 or self.stage.has_done(self.job, self.execution)):
            self.execution += 1
            self.stage.begin(self.job, self.execution, self.site)
        return False

    def chunks(self) -> int:
        """Returns how many of its packets are through."""
        sent, again = self.stage.packets.host_packets(self.job[0])
        return sent - again


def shares_of_jobs(network: Network, hosts: int, jobs: int, apart_us: int, elements: int = 2**18, for_us: int = 20_000):
    """Jobs that begin one after the other. Returns how many packets of each come through, once all are there."""
    stage = Star(network, hosts, jobs)
    site = stage.add_site(elements)
    running = [Endless(stage, job, site, number * apart_us) for number, job in enumerate(stage.jobs)]

    def look() -> bool:
        for one in running:
            one.look()
        return False

    began_us = (jobs - 1) * apart_us + 2_000
    stage.run(began_us, look)
    before = [one.chunks() for one in running]
    stage.run(began_us + for_us, look)
    chunks = [one.chunks() - some for one, some in zip(running, before, strict=True)]
    carried = sum(chunks) * hosts * (4 * LANES + HEADERS) / 125 / network.gbit / for_us
    return chunks, carried, max(map(stage.again, stage.jobs))


def waiting_for_one(network: Network, hosts: int, late_us: int, elements: int = 2**20, sums: int = 3):
    """One host begins each sum `late_us` after the others. Returns the longest time that a sum takes from then on, over
    that of its packets, and the share of packets that were sent again."""
    stage = Star(network, hosts)
    (job,), site = stage.jobs, stage.add_site(elements, "float32")
    took_us = []
    for execution in range(sums):
        stage.begin(job[:-1], execution, site)
        stage.run(stage.now_us + late_us)
        came_us = stage.now_us
        stage.begin(job[-1:], execution, site)
        assert stage.run(came_us + 10**8, lambda execution=execution: stage.has_done(job, execution))
        took_us.append(stage.now_us - came_us)
    return max(took_us) / limit_us(network, hosts, elements), stage.again(job)


def jain(shares: list[float]) -> float:
    """Returns Jain's index of fairness: 1 if all are equal."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def beside_a_neighbour(network: Network, hosts: int, elements: int = 2**18, for_us: int = 20_000):
    """A flow like TCP's to the machine of the switch. Returns its share of the port's rate, and that of the job."""
    stage = Star(network, hosts)
    # Its own link is a faster one: at the same rate it would fill a full port for ever, and never lose a packet itself.
    neighbour = stage.packets.add_neighbour(stage.add_machine(4 * network.gbit), SWITCH)
    (job,), site = stage.jobs, stage.add_site(elements)
    endless = Endless(stage, job, site, 1_000)
    stage.run(3_000, endless.look)
    chunks, acknowledged = endless.chunks(), neighbour.acknowledged_bytes
    stage.run(3_000 + for_us, endless.look)
    port_bytes = network.gbit * 125 * for_us
    job_bytes = (endless.chunks() - chunks) * hosts * (4 * LANES + HEADERS)
    return (neighbour.acknowledged_bytes - acknowledged) * (1460 + 66) / 1460 / port_bytes, job_bytes / port_bytes


def small_beside_large(
    network: Network, hosts: int, dtype: str, elements: int = 2**21, rounds: int = 4, smalls: int = 10
) -> tuple[list[int], float]:
    """Small sums of that dtype one after the other in the midst of a large one of float32. Returns the microseconds
    that each takes but those of the first round, and the large one's time in the last round over that of its packets.
    """
    stage = Star(network, hosts)
    (job,), large, small = stage.jobs, stage.add_site(elements, "float32"), stage.add_site(100, dtype)
    took_us = []
    for first in range(0, rounds * (smalls + 1), smalls + 1):
        began_us = stage.now_us
        stage.begin(job, first, large)
        stage.run(began_us + int(limit_us(network, hosts, elements) / 5))
        for execution in range(first + 1, first + smalls + 1):
            asked_us = stage.now_us
            stage.begin(job, execution, small)
            assert stage.run(asked_us + 10**8, lambda execution=execution: stage.has_done(job, execution))
            took_us.append(stage.now_us - asked_us)
        assert stage.run(began_us + 10**8, lambda execution=first: stage.has_done(job, execution))
    return sorted(took_us[smalls:]), (stage.now_us - began_us) / limit_us(network, hosts, elements)


def together(
    network: Network, hosts: int, sites: list[tuple[str, str]], elements: int = 2**20, rounds: int = 3
) -> float:
    """Sums of these dtypes and moves begin at once. Returns how long all take, in the last round, over the least that a
    whole sum takes."""
    stage = Star(network, hosts)
    (job,), numbers = stage.jobs, [stage.add_site(elements, *one) for one in sites]
    for number in range(rounds):
        began_us, first = stage.now_us, number * len(sites)
        executions = range(first, first + len(sites))
        for execution, site in zip(executions, numbers, strict=True):
            stage.begin(job, execution, site)
        assert stage.run(began_us + 10**8, lambda these=executions: all(stage.has_done(job, each) for each in these))
    return (stage.now_us - began_us) / limit_us(network, hosts, elements)


def lines() -> Iterator[str]:
    """Measures one case after the other."""
    for buffer_kb in (200, 1000):
        for hosts in (8, 16, 32, 64):
            share, again, lost = through(Network(buffer_kb=buffer_kb), hosts)
            yield f"one port, {buffer_kb} KB, H={hosts}: {share:.1%} of the limit, {again:.2%} sent again, {lost} lost"
    for hosts, elements in ((8, 2**18), (64, 2**17)):  # smaller sums, as these take long
        share, again, lost = through(Network(is_known=False), hosts, elements)
        yield f"one that hosts don't know of, 200 KB, H={hosts}: {share:.1%}, {again:.2%} sent again, {lost} lost"
    lossless, *_ = through(OWN_PORTS, 2, 2**22)
    for loss in (0.001, 0.01, 0.05):
        share, again, _ = through(replace(OWN_PORTS, loss=loss), 2, 2**22)
        yield f"own ports of 1 Gbit/s, H=2, {loss:.1%} lost: {share / lossless:.1%} of without, {again:.2%} sent again"
    for jobs, apart_us in ((2, 0), (2, 3000), (4, 3000)):
        chunks, carried, again = shares_of_jobs(Network(), 8, jobs, apart_us)
        yield f"{jobs} jobs of 8, {apart_us} us apart: Jain {jain(chunks):.3f}, {carried:.1%}, {again:.2%} sent again"
    for hosts in (2, 8):
        neighbour, job = beside_a_neighbour(Network(), hosts)
        yield f"H={hosts} beside a flow like TCP's: it has {neighbour:.1%} of the port, the job {job:.1%}"
    share, again, _ = through(Network(), 8, slow={3: 5.0})
    yield f"one port, H=8, one host at 5 Gbit/s: {share * 100 / 40:.1%} of its link, {again:.2%} sent again"
    for name, network in (("one port", Network()), ("own ports of 1 Gbit/s", OWN_PORTS)):
        for late_us in (0, 10_000, 1_000_000):
            took, again = waiting_for_one(network, 4, late_us)
            late = f"one host {late_us} us late: {took:.3f} times the least time from then on"
            yield f"{name}, H=4, {late}, {again:.2%} sent again"
    for name, network, hosts in (("one port", Network(), 8), ("own ports of 1 Gbit/s", OWN_PORTS, 4)):
        for dtype in ("float32", "int32"):
            took_us, large = small_beside_large(network, hosts, dtype)
            half, most = took_us[len(took_us) // 2], took_us[-1]
            small = f"small sums of {dtype} take {half} us, {most} at most"
            yield f"{name}, H={hosts}: {small}, the large one {large:.2f} times its least"
    scatter, gather = ("float32", "scatter"), ("int32", "gather")  # a gather moves words
    for hosts in (2, 4):
        took = [together(OWN_PORTS, hosts, sites) for sites in ([scatter], [gather], [scatter, gather])]
        times = ", ".join(f"{each:.2f}" for each in took)
        yield f"own ports, H={hosts}: a scatter, a gather, both at once take {times} times as long as a sum"


def main() -> None:
    for line in lines():
        print(line, flush=True)
