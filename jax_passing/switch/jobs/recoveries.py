"""The switch remembers how jobs have recovered: a failure ended an epoch, and then another one began."""

import heapq
import itertools
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import TypeVar

from jax_passing.errors import is_kind
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Outside
from jax_passing.switch.data_planes.data_plane import DataPlane, counts_of
from jax_passing.switch.jobs.epochs import Epoch

_T = TypeVar("_T")

KEPT_S = 3600.0
REMEMBERED = 32  # of each job, so that one that fails again and again takes nothing of others
JOBS_MAX = 64
HEARD_S = 1.0  # by so much later hosts may hear of a failure than their switch
# Upper ends of the classes in which standstills are counted, as Prometheus wants them.
STOOD_S = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass(frozen=True, slots=True)
class Interruption:
    """An epoch has ended so. `since`: when its last chunk stood still. `epoch`: None if it ran at another switch.
    `culprit`: names the ranks with their hosts, or the switch."""

    at: float
    since: float
    epoch: int | None
    kind: str
    culprit: str
    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """A job runs again, since `at`, in another epoch, or not yet: then `at` is when it failed, and `epoch` is None.
    `stood_s`: for how long it completed no chunk."""

    at: float
    job: str
    interruption: Interruption
    epoch: int | None
    stood_s: float


class Recoveries:
    """Notes failures and recoveries of all jobs, as they happen.

    Attributes:
      counted: how many there were that this switch has seen itself, by the kind of error.
      stood_s: how long all of them took together, by the kind.
      classes: how many were in each class of STOOD_S, or above them all, by the kind and the class.
    """

    def __init__(self, data_plane: DataPlane, outside: Outside):
        self._data_plane, self._outside = data_plane, outside
        self._failed: dict[str, Interruption] = {}  # by the job, until it runs again; the oldest first
        self._by_job: dict[str, deque[Recovery]] = {}  # the job that has recovered last is the last
        self.counted: Counter[str] = Counter()
        self.stood_s: defaultdict[str, float] = defaultdict(float)
        self.classes: Counter[tuple[str, int]] = Counter()

    def failed(self, epoch: Epoch, failed: messages.Failed) -> Interruption:
        """Is called while the epoch still has its members, and the data plane its counters."""
        now = self._outside.now()
        culprit = epoch.where(failed.ranks) if failed.ranks else ""
        ranks, why = tuple(sorted(failed.ranks)), failed.message[: messages.REASON_MAX]
        since = now - self._stood_still_s(epoch)
        interruption = Interruption(now, since, epoch.number, failed.kind, culprit, ranks, why)
        put_last(self._failed, epoch.job.name, interruption)
        return interruption

    def heard(self, job: str, interruption: Interruption) -> None:
        """Is called when hosts that meet here say why. What this switch has seen itself counts more, unless they ran
        elsewhere since."""
        if not is_kind(interruption.kind):  # metrics count by it
            return
        own = self._failed.get(job)
        if own is None or interruption.at > own.at + HEARD_S:
            put_last(self._failed, job, interruption)

    def _stood_still_s(self, epoch: Epoch) -> float:
        counts = counts_of(self._data_plane, epoch.job.number)
        return 0.0 if counts is None or counts.oldest is None else counts.oldest.waited_us / 1e6

    def started(self, epoch: Epoch) -> Recovery | None:
        """Returns what the job has recovered from, if it has."""
        job, now = epoch.job.name, self._outside.now()
        interruption = self._failed.pop(job, None)
        if interruption is None or now - interruption.at > KEPT_S:
            return None
        recovery = Recovery(now, job, interruption, epoch.number, now - interruption.since)
        if interruption.epoch is not None:
            kind = interruption.kind
            self.counted[kind] += 1
            self.stood_s[kind] += recovery.stood_s
            self.classes[kind, sum(recovery.stood_s > end for end in STOOD_S)] += 1
        of_job = self._by_job.get(job) or deque(maxlen=REMEMBERED)
        of_job.append(recovery)
        put_last(self._by_job, job, of_job)
        return recovery

    def last(self, most: int) -> list[Recovery]:
        """Returns those of the last hour, the last first, with those that are awaited still."""
        now = self._outside.now()
        awaited = [Recovery(each.at, job, each, None, now - each.since) for job, each in self._failed.items()]
        awaited.sort(key=lambda one: -one.at)
        # Those of each job are in order already.
        in_order = heapq.merge(awaited, *map(reversed, self._by_job.values()), key=lambda one: -one.at)
        return list(itertools.islice(itertools.takewhile(lambda one: now - one.at <= KEPT_S, in_order), most))


def put_last(by_job: dict[str, _T], job: str, value: _T) -> None:
    """Remembers something of a job, as the last one, and forgets the first one if there are more than JOBS_MAX."""
    by_job.pop(job, None)
    if len(by_job) >= JOBS_MAX:
        del by_job[next(iter(by_job))]
    by_job[job] = value
