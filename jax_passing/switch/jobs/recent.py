"""Counters of jobs are looked at now and then, so that it can be said what was counted in the last minute."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from jax_passing.switch.data_planes.data_plane import DataPlane, counts_of
from jax_passing.switch.data_planes.job_counts import JobCounts, WaitingChunk, WorkerCounts
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Epoch

SAMPLE_S = 5.0
WINDOW_S = 60.0
SAMPLES = round(WINDOW_S / SAMPLE_S) + 1
_LANE_BYTES = 4

_Key = tuple[int, int]  # numbers of a job and of its epoch, which nobody but us then keeps


@dataclass(frozen=True)
class Counted:
    """A job has counted this in some seconds: `counts` has the differences, but what waits, and how long workers have
    been silent, as it is now."""

    seconds: float
    counts: JobCounts

    @property
    def sum_bytes(self) -> int:
        return self.counts.lanes * _LANE_BYTES

    @property
    def goodput_gbit(self) -> float:
        return self.sum_bytes * 8 / self.seconds / 1e9

    @property
    def resends(self) -> int:
        return sum(worker.resends for worker in self.counts.workers)

    @property
    def waited_shares(self) -> list[float]:
        """By worker, the share of the time in which others waited for it."""
        return [min(1.0, worker.waited_us / 1e6 / self.seconds) for worker in self.counts.workers]


@dataclass(frozen=True)
class _Sample:
    at: float
    counts: JobCounts


class Recent:
    """Knows of each running epoch what it has counted up to a minute ago."""

    def __init__(
        self,
        data_plane: DataPlane,
        on_waiting: Callable[[Epoch, WaitingChunk], None],
        on_counted: Callable[[Epoch, Counted, float], None],
    ):
        """Is told each time somebody looks: `on_waiting` of the chunk of a job that has waited longest, `on_counted` of
        what was counted since the last time."""
        self._data_plane, self._on_waiting, self._on_counted = data_plane, on_waiting, on_counted
        self._samples: dict[_Key, deque[_Sample]] = {}
        self._next = 0.0

    def look(self, epochs: list[Epoch], now: float) -> None:
        """Is called all the time, with the epochs that form or run."""
        if now < self._next:
            return
        self._next = now + SAMPLE_S
        running = {_key(epoch): epoch for epoch in epochs if epoch.state is EpochState.RUNNING}
        self._samples = {key: self._samples.get(key, deque(maxlen=SAMPLES)) for key in running}
        for key, epoch in running.items():
            if (counts := counts_of(self._data_plane, epoch.job.number)) is not None:
                before = self._samples[key][-1] if self._samples[key] else _beginning(epoch, counts, now)
                self._on_counted(epoch, _since(before, counts, now), now)
                self._samples[key].append(_Sample(now, counts))
                if counts.oldest is not None:
                    self._on_waiting(epoch, counts.oldest)

    def counted(self, epoch: Epoch, now: float) -> tuple[Counted, Counted, Counted] | None:
        """Returns what a running epoch has counted in the last seconds, in the last minute, or since it began if that
        is shorter, and since it began; None if nobody can tell."""
        counts = counts_of(self._data_plane, epoch.job.number)
        if counts is None:
            return None
        beginning = _beginning(epoch, counts, now)
        samples = [beginning, *self._samples.get(_key(epoch), ())]
        before = [sample for sample in samples if sample.at <= now - SAMPLE_S] or samples[:1]
        within = [sample for sample in samples if sample.at >= now - WINDOW_S] or samples[-1:]
        return _since(before[-1], counts, now), _since(within[0], counts, now), _since(beginning, counts, now)


def _key(epoch: Epoch) -> _Key:
    return epoch.job.number, epoch.number


def _beginning(epoch: Epoch, counts: JobCounts, now: float) -> _Sample:
    """Returns what had been counted when the epoch began."""
    return _Sample(min(epoch.since, now), JobCounts(0, 0, 0, None, (WorkerCounts(),) * len(counts.workers)))


def _since(sample: _Sample, counts: JobCounts, now: float) -> Counted:
    before = sample.counts
    workers = tuple(
        WorkerCounts(
            new.contributions - old.contributions,
            new.resends - old.resends,
            new.last - old.last,
            max(0, new.waited_us - old.waited_us),  # a wait of more than an hour begins anew
            new.silent_us,
        )
        for new, old in zip(counts.workers, before.workers, strict=True)
    )
    difference = JobCounts(
        counts.chunks - before.chunks, counts.lanes - before.lanes, counts.waiting, counts.oldest, workers
    )
    return Counted(max(now - sample.at, 1e-3), difference)
