"""The data plane in this process is the slot pool in C++ behind a UDP port."""

from collections.abc import Mapping, Set

from jax_passing import _native
from jax_passing.protocol.link_rate import one_card
from jax_passing.protocol.packet import WORKERS_MAX
from jax_passing.switch.data_planes.data_plane import JobSlots, MulticastGroup, Parent, SlotVersion, group_of
from jax_passing.switch.data_planes.job_counts import JobCounts, WaitingChunk, WorkerCounts
from jax_passing.switch.data_planes.ports import are_apart


class SoftwareDataPlane:
    """Sums packets in this process. Raises OSError if the port can't be bound."""

    host = ""
    whole_chunks = False
    takes_bare = True
    can_tag = True
    worker_limit = WORKERS_MAX

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
            parent=None if job.parent is None else _native_parent(job.parent),
            keys=None if job.keys is None else (job.keys.contributions, job.keys.results),
            reach=job.reach,
            own_addresses=list(job.own_addresses),
            ports_apart=are_apart([host for host, _ in job.addresses], job.own_addresses),
        )

    def has_one_port(self, own_addresses: Set[str]) -> bool:
        return one_card(own_addresses)

    def group(self, job: int, own_address: str) -> MulticastGroup | None:
        return group_of(job, own_address, self.port) if self._multicast else None

    def socket_to(self, host: str, port: int) -> _native.UdpSocket | None:
        return _native.UdpSocket(host, port)

    def probe(self, group: MulticastGroup, job: int, epoch: int, nonce: int) -> None:
        self._native.probe(group=_native_group(group), job=job, epoch=epoch, nonce=nonce, lanes=self.lanes_per_chunk)

    def stop_multicast(self, job: int) -> None:
        self._native.stop_multicast(job)

    def hears_parents_group(self, job: int) -> bool:
        return self._native.hears_parents_group(job)

    def remove_job(self, job: int) -> None:
        self._native.remove_job(job)

    def slot_version(self, slot: int, version: int) -> SlotVersion:
        return SlotVersion(*self._native.slot_version(slot, version))

    def check(self) -> str:
        return ""

    def trouble(self) -> str:
        return ""

    def overflows(self) -> Mapping[int, int]:
        return self._native.overflows()

    def counts(self, job: int) -> JobCounts | None:
        found = self._native.counts(job)
        if found is None:
            return None
        oldest, workers = found["oldest"], tuple(WorkerCounts(**worker) for worker in found["workers"])
        waiting = None if oldest is None else WaitingChunk(*oldest)
        return JobCounts(found["chunks"], found["lanes"], found["waiting"], waiting, workers)

    def stats(self) -> Mapping[str, int]:
        return self._native.stats()

    def close(self) -> None:
        self._native.close()
        del self._native  # and with it the port


def _native_parent(parent: Parent) -> _native.ParentLink:
    if parent.socket is None:
        raise ValueError("The software data plane reaches a job's parent through a socket, and was given none.")
    return _native.ParentLink(
        parent.socket,
        job=parent.job,
        epoch=parent.epoch,
        slot_first=parent.slot_first,
        worker=parent.worker,
        keys=parent.keys,
    )


def _native_group(group: MulticastGroup) -> tuple[tuple[str, int], str]:
    return (group.address, group.port), group.source
