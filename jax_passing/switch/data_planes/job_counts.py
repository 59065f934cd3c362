"""A data plane that sees each packet counts of a job, by worker, who comes last, and how long chunks wait for it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerCounts:
    """Counts what one worker has done since the job was added.

    Attributes:
      contributions: chunks of it that were added.
      resends: chunks of it that had been added before.
      last: chunks that it completed, as the last of several workers.
      waited_us: how long some chunk lacked nothing but this worker's contribution.
      silent_us: since its latest contribution.
    """

    contributions: int = 0
    resends: int = 0
    last: int = 0
    waited_us: int = 0
    silent_us: int = 0


@dataclass(frozen=True)
class WaitingChunk:
    """A chunk isn't complete. If all workers are in its bitmap, it waits for the parent's result."""

    slot: int
    version: int
    sequence: int
    bitmap: int
    waited_us: int  # since the latest contribution


@dataclass(frozen=True)
class JobCounts:
    """Counts what a job has done since it was added.

    Attributes:
      chunks: to which all workers have contributed.
      lanes: of these chunks.
      waiting: how many chunks aren't complete.
      oldest: the one of them that has waited longest.
    """

    chunks: int
    lanes: int
    waiting: int
    oldest: WaitingChunk | None
    workers: tuple[WorkerCounts, ...]


def of_planes(several: Sequence[JobCounts]) -> JobCounts | None:
    """Returns what all planes of a switch counted of a job; None if none did."""
    if len(several) <= 1:
        return several[0] if several else None
    oldest = [counts.oldest for counts in several if counts.oldest is not None]
    return JobCounts(
        chunks=sum(counts.chunks for counts in several),
        lanes=sum(counts.lanes for counts in several),
        waiting=sum(counts.waiting for counts in several),
        oldest=max(oldest, key=lambda chunk: chunk.waited_us, default=None),
        workers=tuple(map(_of_worker, zip(*(counts.workers for counts in several), strict=True))),
    )


def _of_worker(several: Sequence[WorkerCounts]) -> WorkerCounts:
    """Planes wait side by side: a worker has kept others waiting for as long as at the plane that waited longest."""
    return WorkerCounts(
        contributions=sum(counts.contributions for counts in several),
        resends=sum(counts.resends for counts in several),
        last=sum(counts.last for counts in several),
        waited_us=max(counts.waited_us for counts in several),
        silent_us=min(counts.silent_us for counts in several),
    )
