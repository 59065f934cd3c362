"""The control plane asks this of a data plane: of whatever adds up packets. The back ends are in data_planes/.

A data plane knows jobs by number and their slots by range; names, leases and who may join are the control plane's. All
calls come from one thread and return within microseconds to milliseconds.
"""

import ipaddress
import logging
import zlib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from jax_passing.protocol.packet import GROUP_PORT, LANES_AT_MTU_1500
from jax_passing.protocol.plane_sockets import PlaneSockets
from jax_passing.switch.data_planes.job_counts import JobCounts
from jax_passing.switch.data_planes.reach import REACH_MAX

log = logging.getLogger("jax_passing.switch")

GROUPS = ipaddress.IPv4Network("239.192.0.0/14")  # for use inside an organization (RFC 2365)


class DataPlaneError(Exception):
    """This may happen to any device: it is lost, can't be reached, or refuses what was asked. The text says it all."""


def unexpected(error: Exception) -> bool:
    """Says whether the log needs its traceback, not the text alone."""
    return not isinstance(error, DataPlaneError)


@dataclass(frozen=True)
class MulticastGroup:
    """A group is an IPv4 multicast group whose members hear a job's results, each sent once for all workers."""

    address: str
    port: int
    source: str  # our own address, as the workers know it: they hear no other's packets


def group_of(job: int, own_address: str, port: int) -> MulticastGroup | None:
    """Returns the group of a job of the switch at this address and port; None if the address isn't IPv4."""
    own = ipaddress.ip_address(own_address)
    if own.version != 4:
        return None
    # Jobs of this switch get groups of their own, and switches on one network most likely, too.
    shift = zlib.crc32(own.packed + port.to_bytes(2)) + job
    return MulticastGroup(str(GROUPS[shift % GROUPS.num_addresses]), GROUP_PORT, own_address)


@dataclass(frozen=True)
class JobKeys:
    """By these keys the packets of a job have tags (keys.packet_key)."""

    contributions: tuple[bytes, ...]  # one a worker
    results: bytes


@dataclass(frozen=True)
class Parent:
    """This is the job one level up: there this switch is one worker, which contributes the sums of its own workers.

    A slot has the same offset in the job's range at both, so both give the job equally many slots.
    """

    job: int  # the parent's numbers, from its welcome
    epoch: int
    slot_first: int
    worker: int  # which one this switch is there
    address: tuple[str, int]  # the parent's data port
    # Connected to it, perhaps in its group: the software data plane takes it over, and sends and receives by it. None
    # for a data plane that speaks to its parent from its own data port.
    socket: PlaneSockets | None = None
    keys: tuple[bytes, bytes] | None = None  # of our contributions and of results there, if packets have tags


@dataclass(frozen=True)
class JobSlots:
    """A job has this share of the switch."""

    job: int  # 1 to 65535
    epoch: int  # 1 to 65535; packets of any other epoch of the job are dropped
    slot_first: int
    slot_count: int  # a power of two
    addresses: tuple[tuple[str, int], ...]  # IP address and UDP port of each worker: a host, or a child switch
    group: MulticastGroup | None = None  # all workers hear it
    parent: Parent | None = None  # None at the root of a tree, or if there is but one level
    keys: JobKeys | None = None  # None: packets have no tags
    lanes_per_chunk: int = LANES_AT_MTU_1500  # the most of a packet of the job
    reach: int = REACH_MAX  # how far ahead of the furthest complete position a contribution may be (reach.py)
    # Each worker knows us by one of our IP addresses, and takes packets from no other. Empty: any is right.
    own_addresses: tuple[str, ...] = ()
    planes: int = 1  # it has these slots at each of the first planes


@dataclass(frozen=True)
class SlotVersion:
    """One version of a slot holds this."""

    empty: bool
    sequence: int
    bitmap: int  # bit w: worker w was added
    complete: bool


class DataPlane(Protocol):
    @property
    def host(self) -> str:
        """Hosts send packets there; empty if it is the control plane's address."""

    @property
    def port(self) -> int: ...

    @property
    def planes(self) -> int:
        """Returns how many threads take packets, each at its own port, `port` and those that follow. A device has one
        plane."""

    @property
    def slot_total(self) -> int:
        """Returns how many slots each plane has."""

    @property
    def lanes_per_chunk(self) -> int:
        """The most 32-bit lanes that a packet may have here."""

    @property
    def whole_chunks(self) -> bool:
        """Packets have exactly `lanes_per_chunk` lanes, others are dropped: hosts pad with zeros."""

    @property
    def takes_bare(self) -> bool:
        """Says whether it knows packets without lanes: contributions that add nothing, and results for those who need
        no lanes of them. Elsewhere hosts send all lanes, and get them."""

    def has_one_port(self, own_addresses: Set[str]) -> bool:
        """Says whether all who reach it at these addresses of its machine do so through one port of the network."""

    @property
    def can_tag(self) -> bool:
        """Says whether it can check tags of packets, and make them."""

    @property
    def worker_limit(self) -> int:
        """Returns how many may contribute to a slot at most; 64 fit into the protocol's bitmap."""

    def group(self, job: int, own_address: str) -> MulticastGroup | None:
        """Returns where results of this job could go once for all ranks, if its hosts turn out to hear that.

        `own_address` is the switch's, as all the hosts know it. None if every packet is addressed to one worker: a
        switch that replicates results in its pipeline does that, and its hosts have nothing to join.
        """

    def socket_to(self, host: str, port: int, planes: int) -> PlaneSockets | None:
        """Makes Parent.socket, to a parent whose data port this is, with so many planes. None: it will be spoken to
        from our own data port.

        Raises OSError.
        """

    def path_nonce(self, host: str) -> int:
        """Returns the number with which it sends probes of paths (wire/probe.h) back to this IP address. Asked only if
        packets may be longer than all paths carry."""

    def probe(self, group: MulticastGroup, job: int, epoch: int, nonce: int, lanes: int) -> None:
        """Sends a burst (wire/probe.h) to the group, before the job is added. `lanes`: of the job's packets."""

    def add_job(self, job: JobSlots) -> None:
        """Clears the slots, then adds packets of this job and epoch that come from these addresses.

        Results go to the job's group if it has one, else to each worker; to one that asks again, always to it alone.
        Raises DataPlaneError.
        """

    def stop_multicast(self, job: int) -> None:
        """Results go to each worker from now on: one of them hears the group no longer."""

    def hears_parents_group(self, job: int) -> bool:
        """Returns False once results of a parent that sends them to a group come only because we ask again."""

    def remove_job(self, job: int) -> None:
        """Drops the job's packets from now on. Raises DataPlaneError."""

    def slot_version(self, slot: int, version: int, plane: int) -> SlotVersion | None:
        """Returns what a slot holds; None if nobody can look into this device's slots."""

    def check(self) -> str:
        """Says why the jobs that were added are gone with the device's state, once; else empty. Called all the time.

        Whatever it raises counts as such a reason.
        """

    def trouble(self) -> str:
        """Says why packets aren't added up now; else empty."""

    def overflows(self) -> Mapping[int, int]:
        """Returns how many packets of each job were lost since it was added, because they came faster than they were
        handled.

        Under 0: of no job, since the start. Empty if nobody can tell.
        """

    def counts(self, job: int) -> JobCounts | None:
        """Returns what was counted of a job; None if nobody can tell, or if there is no such job."""

    def stats(self) -> Mapping[str, int]:
        """Returns counters for the log."""

    def close(self) -> None: ...


def counts_of(data_plane: DataPlane, job: int) -> JobCounts | None:
    """Returns DataPlane.counts; None, too, if the device fails, which is logged."""
    try:
        return data_plane.counts(job)
    except Exception as error:  # whatever the device's driver raises
        log.error("the data plane can't tell what it counted: %s", error, exc_info=unexpected(error))
        return None
