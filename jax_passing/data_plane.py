"""What the control plane asks of a data plane: the software one in this process, or a programmable switch.

A data plane knows jobs by number and their slots by range; names, leases and admission are the control plane's. All
calls come from one thread and return within microseconds to milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jax_passing import _native


@dataclass(frozen=True)
class JobSlots:
    """A job's share of the switch."""

    job: int  # 1 to 65535
    epoch: int  # 1 to 65535; packets of any other epoch of the job are dropped
    slot_first: int
    slot_count: int  # a power of two
    addresses: tuple[tuple[str, int], ...]  # IP address and UDP port of each rank


@dataclass(frozen=True)
class SlotVersion:
    """What one version of a slot holds."""

    empty: bool
    sequence: int
    bitmap: int  # bit r: rank r was added
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

    def add_job(self, job: JobSlots) -> None:
        """Clears the slots, then adds packets of this job and epoch that come from these addresses."""

    def remove_job(self, job: int) -> None:
        """Drops the job's packets from now on."""

    def slot_version(self, slot: int, version: int) -> SlotVersion: ...

    def stats(self) -> Mapping[str, int]:
        """Counters for the log."""

    def close(self) -> None: ...


class SoftwareDataPlane:
    """The slot pool in C++ behind a UDP port of this machine. Raises OSError if it can't be bound."""

    host = ""

    def __init__(self, host: str, port: int, *, slot_total: int, lanes_per_chunk: int):
        self._native = _native.SoftwareDataPlane(host, port, slot_total)
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
        )

    def remove_job(self, job: int) -> None:
        self._native.remove_job(job)

    def slot_version(self, slot: int, version: int) -> SlotVersion:
        return SlotVersion(*self._native.slot_state(slot, version))

    def stats(self) -> Mapping[str, int]:
        return self._native.stats()

    def close(self) -> None:
        self._native.close()
