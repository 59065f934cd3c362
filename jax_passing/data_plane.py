"""What the control plane asks of a data plane: the software one in this process, or a programmable switch.

A data plane knows jobs by number and their slots by range; names, leases and admission are the control plane's. All
calls come from one thread and return within microseconds to milliseconds.
"""

import ipaddress
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jax_passing import _native

GROUPS = ipaddress.IPv4Network("239.192.0.0/14")  # for use inside an organization (RFC 2365)
GROUP_PORT = 7172  # of all groups, so that a firewall can name it


@dataclass(frozen=True)
class Group:
    """An IPv4 multicast group whose members hear a job's results, each sent once for all workers."""

    address: str
    port: int
    source: str  # our own address, as the workers know it: they hear no other's packets


@dataclass(frozen=True)
class JobSlots:
    """A job's share of the switch."""

    job: int  # 1 to 65535
    epoch: int  # 1 to 65535; packets of any other epoch of the job are dropped
    slot_first: int
    slot_count: int  # a power of two
    addresses: tuple[tuple[str, int], ...]  # IP address and UDP port of each worker: a host, or a child switch
    group: Group | None = None  # all workers hear it


@dataclass(frozen=True)
class SlotVersion:
    """What one version of a slot holds."""

    empty: bool
    sequence: int
    bitmap: int  # bit w: worker w was added
    complete: bool


class DataPlane(Protocol):
    @property
    def host(self) -> str:
        """Where hosts send packets; empty if it is the control plane's address."""

    @property
    def port(self) -> int: ...

    @property
    def slot_total(self) -> int: ...

    @property
    def lanes_per_chunk(self) -> int:
        """32-bit lanes that one packet carries here."""

    def group(self, job: int, own_address: str) -> Group | None:
        """Where results of this job could go once for all ranks, if its hosts turn out to hear that.

        `own_address` is the switch's, as all the hosts know it. None if every packet is addressed to one worker: a
        switch that replicates results in its pipeline does that, and its hosts have nothing to join.
        """

    def probe(self, group: Group, job: int, epoch: int, nonce: int) -> None:
        """Sends a burst (wire/probe.h) to the group, before the job is added."""

    def add_job(self, job: JobSlots) -> None:
        """Clears the slots, then adds packets of this job and epoch that come from these addresses.

        Results go to the job's group if it has one, else to each worker; to one that asks again, always to it alone.
        """

    def stop_multicast(self, job: int) -> None:
        """Results go to each worker from now on: one of them hears the group no longer."""

    def remove_job(self, job: int) -> None:
        """Drops the job's packets from now on."""

    def slot_version(self, slot: int, version: int) -> SlotVersion: ...

    def stats(self) -> Mapping[str, int]:
        """Counters for the log."""

    def close(self) -> None: ...


class SoftwareDataPlane:
    """The slot pool in C++ behind a UDP port of this machine. Raises OSError if it can't be bound."""

    host = ""

    def __init__(self, host: str, port: int, *, slot_total: int, lanes_per_chunk: int, multicast: bool = True):
        self._native = _native.SoftwareDataPlane(host, port, slot_total)
        self._multicast = multicast
        self.slot_total = slot_total
        self.lanes_per_chunk = lanes_per_chunk

    @property
    def port(self) -> int:
        return self._native.port

    def add_job(self, job: JobSlots) -> None:
        self._native.add_job(
            job=job.job,
            epoch=job.epoch,
            slot_first=job.slot_first,
            slot_count=job.slot_count,
            addresses=list(job.addresses),
            group=None if job.group is None else _native_group(job.group),
        )

    def group(self, job: int, own_address: str) -> Group | None:
        own = ipaddress.ip_address(own_address)
        if not self._multicast or own.version != 4:
            return None
        # Jobs of this switch get groups of their own, and switches on one network most likely, too.
        shift = zlib.crc32(own.packed + self.port.to_bytes(2)) + job
        return Group(str(GROUPS[shift % GROUPS.num_addresses]), GROUP_PORT, own_address)

    def probe(self, group: Group, job: int, epoch: int, nonce: int) -> None:
        self._native.probe(group=_native_group(group), job=job, epoch=epoch, nonce=nonce, lanes=self.lanes_per_chunk)

    def stop_multicast(self, job: int) -> None:
        self._native.stop_multicast(job)

    def remove_job(self, job: int) -> None:
        self._native.remove_job(job)

    def slot_version(self, slot: int, version: int) -> SlotVersion:
        return SlotVersion(*self._native.slot_state(slot, version))

    def stats(self) -> Mapping[str, int]:
        return self._native.stats()

    def close(self) -> None:
        self._native.close()


def _native_group(group: Group) -> tuple[tuple[str, int], str]:
    return (group.address, group.port), group.source
