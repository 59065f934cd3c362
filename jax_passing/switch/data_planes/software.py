"""The data plane in this process is the slot pool in C++ behind a UDP port. With several threads each has a pool and a
port of its own, its plane: a job has the same numbers on all planes that it uses, and each has its part of the job's
packets."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import TypeVar

from jax_passing import _native
from jax_passing.protocol import keys
from jax_passing.protocol.link_rate import one_card
from jax_passing.protocol.packet import WORKERS_MAX
from jax_passing.protocol.plane_sockets import PlaneSockets, following_ports
from jax_passing.switch.data_planes.data_plane import JobKeys, JobSlots, MulticastGroup, Parent, SlotVersion, group_of
from jax_passing.switch.data_planes.job_counts import JobCounts, WaitingChunk, WorkerCounts, of_planes
from jax_passing.switch.data_planes.ports import are_apart

Key = TypeVar("Key", int, str)


class SoftwareDataPlane:
    """Sums packets in this process. Raises OSError if the port can't be bound."""

    host = ""
    whole_chunks = False
    takes_bare = True
    can_tag = True
    worker_limit = WORKERS_MAX

    def __init__(
        self,
        host: str,
        port: int,
        *,
        slot_total: int,
        lanes_per_chunk: int,
        multicast: bool = True,
        threads: int = 1,
    ):
        """`port`: of the first plane; those of the others follow. `slot_total`: of all planes."""
        self.slot_total = slot_total // threads
        self._natives = [_native.SoftwareDataPlane(host, port, self.slot_total)]
        self._natives += [
            _native.SoftwareDataPlane(host, following, self.slot_total)
            for following in following_ports(self.port, threads)
        ]
        self._planes_of: dict[int, int] = {}  # by job
        self._multicast = multicast
        self.planes = threads
        self.lanes_per_chunk = lanes_per_chunk

    @property
    def port(self) -> int:
        return self._natives[0].port

    def _of(self, job: int) -> list[_native.SoftwareDataPlane]:
        """Returns the planes that the job uses."""
        return self._natives[: self._planes_of.get(job, 1)]

    def add_job(self, job: JobSlots) -> None:
        ports_apart = are_apart([host for host, _ in job.addresses], job.own_addresses)
        for plane, native in enumerate(self._natives[: job.planes]):
            try:
                _add(native, job, plane, ports_apart)
            except Exception:
                for added in self._natives[:plane]:
                    added.remove_job(job.job)
                raise
        self._planes_of[job.job] = job.planes

    def has_one_port(self, own_addresses: Set[str]) -> bool:
        return one_card(own_addresses)

    def group(self, job: int, own_address: str) -> MulticastGroup | None:
        return group_of(job, own_address, self.port) if self._multicast else None

    def socket_to(self, host: str, port: int, planes: int) -> PlaneSockets | None:
        return PlaneSockets(host, port, min(planes, self.planes))

    def path_nonce(self, host: str) -> int:
        return self._natives[0].path_nonce(host)

    def probe(self, group: MulticastGroup, job: int, epoch: int, nonce: int, lanes: int) -> None:
        for native in self._natives:
            native.probe(group=_native_group(group), job=job, epoch=epoch, nonce=nonce, lanes=lanes)

    def stop_multicast(self, job: int) -> None:
        for native in self._of(job):
            native.stop_multicast(job)

    def hears_parents_group(self, job: int) -> bool:
        return all(native.hears_parents_group(job) for native in self._of(job))

    def remove_job(self, job: int) -> None:
        for native in self._of(job):
            native.remove_job(job)
        self._planes_of.pop(job, None)

    def slot_version(self, slot: int, version: int, plane: int = 0) -> SlotVersion:
        return SlotVersion(*self._natives[plane].slot_version(slot, version))

    def check(self) -> str:
        return ""

    def trouble(self) -> str:
        return ""

    def overflows(self) -> Mapping[int, int]:
        return _total(native.overflows() for native in self._natives)

    def counts(self, job: int) -> JobCounts | None:
        several = [_counts(native, job) for native in self._of(job)]
        return of_planes([counts for counts in several if counts is not None])

    def stats(self) -> Mapping[str, int]:
        return _total(native.stats() for native in self._natives)

    def close(self) -> None:
        for native in self._natives:
            native.close()
        self._natives.clear()  # and with them the ports


def _total(several: Iterable[Mapping[Key, int]]) -> Mapping[Key, int]:
    total: Counter[Key] = Counter()
    for counts in several:
        total.update(counts)
    return total


def _add(native: _native.SoftwareDataPlane, job: JobSlots, plane: int, ports_apart: bool) -> None:
    native.add_job(
        job=job.job,
        epoch=job.epoch,
        slot_first=job.slot_first,
        slot_count=job.slot_count,
        addresses=list(job.addresses),
        group=None if job.group is None else _native_group(job.group),
        parent=None if job.parent is None else _native_parent(job.parent, plane),
        keys=None if job.keys is None else keys_of_plane(job.keys, plane),
        reach=job.reach,
        own_addresses=list(job.own_addresses),
        lanes_per_chunk=job.lanes_per_chunk,
        ports_apart=ports_apart,
    )


def keys_of_plane(of_job: JobKeys, plane: int) -> tuple[tuple[bytes, ...], bytes]:
    contributions = tuple(keys.of_plane(key, plane) for key in of_job.contributions)
    return contributions, keys.of_plane(of_job.results, plane)


def _counts(native: _native.SoftwareDataPlane, job: int) -> JobCounts | None:
    found = native.counts(job)
    if found is None:
        return None
    oldest, workers = found["oldest"], tuple(WorkerCounts(**worker) for worker in found["workers"])
    waiting = None if oldest is None else WaitingChunk(*oldest)
    return JobCounts(found["chunks"], found["lanes"], found["waiting"], waiting, workers)


def _native_parent(parent: Parent, plane: int) -> _native.ParentLink:
    if parent.socket is None:
        raise ValueError("The software data plane reaches a job's parent through a socket, and was given none.")
    return _native.ParentLink(
        parent.socket.planes[plane],
        job=parent.job,
        epoch=parent.epoch,
        slot_first=parent.slot_first,
        worker=parent.worker,
        keys=keys.pair_of_plane(parent.keys, plane),
    )


def _native_group(group: MulticastGroup) -> tuple[tuple[str, int], str]:
    return (group.address, group.port), group.source
