"""The switch remembers how jobs have recovered: a failure ended an epoch, and then another one began."""

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
      forgotten: how many jobs had no room here. Those that have run longest keep theirs: strangers can let as many jobs
        fail as they like, but each of them has to run as long.
    """

    def __init__(self, data_plane: DataPlane, outside: Outside):
        self._data_plane, self._outside = data_plane, outside
        self._failed: dict[str, Interruption] = {}  # by the job, until it runs again; the oldest first
        self._by_job: dict[str, deque[Recovery]] = {}  # the job that has recovered last is the last
        self.counted: Counter[str] = Counter()
        self.stood_s: defaultdict[str, float] = defaultdict(float)
        self.classes: Counter[tuple[str, int]] = Counter()
        self.forgotten = 0
        self._ran_s: dict[str, float] = {}  # how long epochs ran that failed here, by the job

    def failed(self, epoch: Epoch, failed: messages.Failed) -> Interruption:
        """Is called while the epoch still has its members, and the data plane its counters."""
        now = self._outside.now()
        culprit = epoch.where(failed.ranks) if failed.ranks else ""
        ranks, why = tuple(sorted(failed.ranks)), failed.message[: messages.REASON_MAX]
        since = now - self._stood_still_s(epoch)
        interruption = Interruption(now, since, epoch.number, failed.kind, culprit, ranks, why)
        job = epoch.job.name
        self._ran_s[job] = self._ran_s.get(job, 0.0) + now - epoch.since
        self._put(self._failed, job, interruption)
        return interruption

    def heard(self, job: str, interruption: Interruption) -> None:
        """Is called when hosts that meet here say why. What this switch has seen itself counts more, unless they ran
        elsewhere since."""
        if not is_kind(interruption.kind):  # metrics count by it
            return
        own = self._failed.get(job)
        if own is None or interruption.at > own.at + HEARD_S:
            self._put(self._failed, job, interruption)

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
        self._put(self._by_job, job, of_job)
        return recovery

    def _put(self, by_job: dict[str, _T], job: str, value: _T) -> None:
        """Remembers something of a job, and forgets what is too old; and if there are too many, of the others the one
        that ran least, or of several such jobs the first."""
        by_job.pop(job, None)
        by_job[job] = value
        since = self._outside.now() - KEPT_S
        for old in [job for job, one in self._failed.items() if one.at < since]:
            del self._failed[old]
        for old in [job for job, several in self._by_job.items() if several[-1].at < since]:
            del self._by_job[old]
        if len(by_job) > JOBS_MAX:
            del by_job[min((other for other in by_job if other != job), key=self._ran)]
            self.forgotten += 1
        known = self._failed.keys() | self._by_job.keys()
        self._ran_s = {job: ran_s for job, ran_s in self._ran_s.items() if job in known}

    def _ran(self, job: str) -> float:
        return self._ran_s.get(job, 0.0)

    def last(self, most: int) -> list[Recovery]:
        """Returns those of the last hour, the last first, with those that are awaited still. If there are too many, the
        last ones of each job count more than earlier ones, and jobs that have run longest come before others."""
        now = self._outside.now()
        ranked = [(0, Recovery(each.at, job, each, None, now - each.since)) for job, each in self._failed.items()]
        ranked += [each for several in self._by_job.values() for each in enumerate(reversed(several))]
        recent = [(index, one) for index, one in ranked if now - one.at <= KEPT_S]
        recent.sort(key=lambda each: (each[0], -self._ran(each[1].job)))
        return sorted((one for _, one in recent[:most]), key=lambda one: -one.at)


def put_last(by_job: dict[str, _T], job: str, value: _T) -> None:
    """Remembers something of a job, as the last one, and forgets the first one if there are more than JOBS_MAX."""
    by_job.pop(job, None)
    if len(by_job) >= JOBS_MAX:
        del by_job[next(iter(by_job))]
    by_job[job] = value
