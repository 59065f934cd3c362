"""The reference model of a switch: docs/internals/protocol.md as a program. Packet in; verdict and packets out.

It keeps every contribution and computes results from all of them, so that it shares no idea with what it checks.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from jax_passing.protocol.packet import (
    BARE,
    CONTRIBUTION,
    EVERY_WORKER,
    LANES_AT_MTU_1500,
    NO_RESULT,
    RESULT,
    STICKY,
    SUM,
    WORKERS_MAX,
    MalformedError,
    Packet,
    decode,
)

Address = Hashable  # only compared


@dataclass(frozen=True)
class Limits:
    """The limits that a data plane declares.

    Attributes:
      lanes_per_chunk: lanes that a packet carries, at most.
      whole_chunks: every packet has exactly this number of lanes; others are malformed to it.
      worker_limit: workers that a job may have.
      trees: whether its jobs have a parent, to which it passes their sums; None: as you like.
      multicast: whether it can send results to a group.
      bare: whether it knows packets without lanes; else they are malformed to it.
      bare_copies: whether a result that has lanes goes without them to the workers that need none.
      reach: how far ahead of the furthest complete sequence of its job a contribution may be; None: as you like.
      fresh_jobs: nothing is complete of a job when an exchange begins, so that the model knows what is too far; a live
        switch's jobs have played other exchanges.
    """

    lanes_per_chunk: int = LANES_AT_MTU_1500
    whole_chunks: bool = False
    worker_limit: int = WORKERS_MAX
    trees: bool | None = None
    multicast: bool = False
    bare: bool = True
    bare_copies: bool = True
    reach: int | None = None
    fresh_jobs: bool = True


@dataclass(frozen=True)
class Parent:
    """The switch that a job's sums go to, and the job's numbers there."""

    job: int
    epoch: int
    slot_first: int
    worker: int  # which one this switch is there
    address: Address


@dataclass(frozen=True)
class Job:
    number: int
    epoch: int
    slot_first: int
    slot_count: int
    workers: tuple[Address, ...]
    parent: Parent | None = None
    group: Address | None = None  # where all workers hear its results

    @property
    def everybody(self) -> tuple[Address, ...]:
        """Returns the addresses of a result that is for all."""
        return self.workers if self.group is None else (self.group,)


@dataclass(frozen=True)
class Answer:
    """The switch's answer: `packet` goes to each of `to`, and `bare`, which has no lanes, to each of `bare_to`. If both
    are empty, the switch is silent."""

    verdict: str
    to: tuple[Address, ...] = ()
    packet: bytes = b""
    bare_to: tuple[Address, ...] = ()
    bare: bytes = b""


@dataclass(frozen=True)
class State:
    """A switch's account of a slot version, so that people learn who is missing."""

    empty: bool = True
    sequence: int = 0
    bitmap: int = 0  # bit w: worker w is in
    complete: bool = False  # the result is there

    def __str__(self) -> str:
        if self.empty:
            return "nothing"
        return f"sequence {self.sequence}, workers {self.bitmap:#x}{', complete' * self.complete}"


@dataclass
class SlotVersion:
    """The contributions by worker, all of one sequence, format and element count, and the parent's result."""

    contributions: dict[int, Packet] = field(default_factory=dict)
    from_parent: Packet | None = None

    @property
    def first(self) -> Packet:
        return next(iter(self.contributions.values()))

    @property
    def needing(self) -> set[int]:
        """Returns the workers that need the result's lanes."""
        return {worker for worker, packet in self.contributions.items() if not packet.flags & NO_RESULT}


def _signed(lane: int) -> int:
    return lane - (1 << 32) if lane >> 31 else lane


def _combined(contributions: dict[int, Packet]) -> Packet:
    """Combines contributions: all their sticky flags, and for each lane the sum modulo 2^32 or the signed maximum, over
    those that have lanes. If none has, the sum has none, either."""
    flags = 0
    for each in contributions.values():
        flags |= each.flags & STICKY
    first, *others = [each for each in contributions.values() if not each.flags & BARE] or [*contributions.values()]
    if first.flags & BARE:
        return replace(first, flags=flags | BARE)
    lanes = list(first.lanes)
    for other in others:
        pairs = zip(lanes, other.lanes, strict=True)
        lanes = [(a + b) % (1 << 32) if first.lane_format == SUM else max(a, b, key=_signed) for a, b in pairs]
    return replace(first, flags=flags, lanes=tuple(lanes))


def is_newer(sequence: int, held: int) -> bool:
    """Compares by serial number arithmetic; a sequence exactly 2^31 away, which RFC 1982 leaves open, is newer."""
    return 1 <= (sequence - held) % (1 << 32) <= 1 << 31


def is_ahead(sequence: int, of: int, by: int) -> bool:
    """Returns whether `sequence` is ahead by more than `by`."""
    return by < (sequence - of) % (1 << 32) < 1 << 31


class Switch:
    def __init__(self, limits: Limits):
        self._limits = limits
        self._jobs: dict[int, Job] = {}
        self._held: dict[tuple[int, int], SlotVersion] = {}  # by slot and version
        self._completed: dict[int, int] = {}  # by job: the furthest sequence to which all workers have contributed

    def add_job(self, job: Job) -> None:
        """Adds a job, or a new epoch of one. Its slots are empty."""
        self._jobs[job.number] = job
        self._completed[job.number] = 0
        for slot in range(job.slot_first, job.slot_first + job.slot_count):
            for version in (0, 1):
                self._held[slot, version] = SlotVersion()

    def stop_multicast(self, number: int) -> None:
        """Its results go to each worker from now on."""
        self._jobs[number] = replace(self._jobs[number], group=None)

    def remove_job(self, number: int) -> None:
        self._jobs.pop(number, None)

    def state(self, job: Job, slot: int, version: int) -> State:
        held = self._held[slot, version]
        if not held.contributions:
            return State()
        full = len(held.contributions) == len(job.workers)
        complete = full and (job.parent is None or held.from_parent is not None)
        bitmap = sum(1 << worker for worker in held.contributions)
        return State(False, held.first.sequence, bitmap, complete)

    def on_packet(self, data: bytes, source: Address) -> Answer:
        try:
            packet = decode(data)
        except MalformedError:
            return Answer("malformed")
        if self._limits.whole_chunks and packet.element_count != self._limits.lanes_per_chunk:
            return Answer("malformed")
        if not self._limits.bare and packet.flags & ~STICKY:
            return Answer("malformed")
        if packet.type == RESULT:
            for job in self._jobs.values():
                if job.parent is not None and job.parent.job == packet.job:
                    return self._on_result(job, job.parent, packet, source)
        return self._on_contribution(packet, source)

    def _on_contribution(self, packet: Packet, source: Address) -> Answer:
        job = self._jobs.get(packet.job)
        if job is None:
            return Answer("foreign_job")
        if packet.epoch != job.epoch:
            return Answer("foreign_epoch")
        if packet.worker >= len(job.workers):
            return Answer("foreign_worker")
        if source != job.workers[packet.worker]:
            return Answer("foreign_source")
        if not job.slot_first <= packet.slot < job.slot_first + job.slot_count:
            return Answer("foreign_slot")
        if packet.type != CONTRIBUTION:
            return Answer("not_contribution")
        if packet.element_count > self._limits.lanes_per_chunk:
            return Answer("malformed")
        completed, reach = self._completed[job.number], self._limits.reach
        if reach is not None and is_ahead(packet.sequence, completed, reach):
            return Answer("too_far")

        held = self._held[packet.slot, packet.version]
        if not held.contributions or is_newer(packet.sequence, held.first.sequence):
            held.contributions, held.from_parent = {}, None
        elif packet.sequence != held.first.sequence:
            return Answer("stale")
        elif (packet.element_count, packet.lane_format) != (held.first.element_count, held.first.lane_format):
            return Answer("mismatch")
        again = packet.worker in held.contributions
        if not again:
            held.contributions[packet.worker] = packet
        if len(held.contributions) < len(job.workers):
            return Answer("duplicate" if again else "added")
        if not again and is_ahead(packet.sequence, completed, 0):  # by a resend nothing gets complete
            self._completed[job.number] = packet.sequence

        combined = _combined(held.contributions)
        if job.parent is not None and held.from_parent is None:
            if not held.needing:
                combined = replace(combined, flags=combined.flags | NO_RESULT)
            return Answer("forwarded_again" if again else "forwarded", (job.parent.address,), _upwards(job, combined))
        result = _result(job, held.from_parent or combined, packet.slot)
        if not again:
            return self._to_all("complete", job, held, result)
        is_needed = packet.worker in held.needing
        answer = result if is_needed else result.without_lanes(NO_RESULT)
        return Answer("resend", (job.workers[packet.worker],), answer.encode())

    def _on_result(self, job: Job, parent: Parent, packet: Packet, source: Address) -> Answer:
        """Takes the parent's sum of all its workers, this switch among them."""
        if packet.epoch != parent.epoch:
            return Answer("foreign_epoch")
        if packet.worker != EVERY_WORKER:
            return Answer("foreign_worker")
        if source != parent.address:
            return Answer("foreign_source")
        if not parent.slot_first <= packet.slot < parent.slot_first + job.slot_count:
            return Answer("foreign_slot")
        slot = packet.slot - parent.slot_first + job.slot_first
        held = self._held[slot, packet.version]
        if len(held.contributions) < len(job.workers) or _content(packet) != _content(held.first):
            return Answer("stale")
        if held.from_parent is not None:
            return Answer("duplicate")
        if packet.flags & NO_RESULT and held.needing:  # it leaves out lanes that were asked for
            return Answer("stale")
        held.from_parent = packet
        return self._to_all("answered", job, held, _result(job, packet, slot))

    def _to_all(self, verdict: str, job: Job, held: SlotVersion, result: Packet) -> Answer:
        """Sends the result to those that need it, and to the others that it is here. A group gets it whole as soon as
        two workers need it; else it hears that it is here."""
        if not (self._limits.bare_copies or result.flags & BARE):
            return Answer(verdict, job.everybody, result.encode())
        bare = result.without_lanes(NO_RESULT).encode()
        needing = [address for worker, address in enumerate(job.workers) if worker in held.needing]
        others = [address for worker, address in enumerate(job.workers) if worker not in held.needing]
        if not needing:
            return Answer(verdict, job.everybody, bare)
        if not others or (job.group is not None and len(needing) > 1):
            return Answer(verdict, job.everybody, result.encode())
        return Answer(verdict, tuple(needing), result.encode(), job.everybody if job.group else tuple(others), bare)


def _content(packet: Packet) -> tuple[int, int, int]:
    """Returns the fields that a result shares with the contributions."""
    return packet.sequence, packet.lane_format, packet.element_count


def _result(job: Job, combined: Packet, slot: int) -> Packet:
    flags = combined.flags & ~NO_RESULT
    return replace(combined, type=RESULT, flags=flags, job=job.number, epoch=job.epoch, worker=EVERY_WORKER, slot=slot)


def _upwards(job: Job, combined: Packet) -> bytes:
    parent = job.parent
    assert parent is not None
    slot = parent.slot_first + combined.slot - job.slot_first
    return replace(combined, job=parent.job, epoch=parent.epoch, worker=parent.worker, slot=slot).encode()
