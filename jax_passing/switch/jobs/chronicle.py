"""The switch remembers which jobs have ended last, and who was refused, and writes both into the log."""

import logging
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from jax_passing.errors import JoinError, names
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Outside
from jax_passing.protocol.sentences import STANDS_STILL_S
from jax_passing.records.journal import SWITCH_EVENTS, SWITCH_TEXT_CHARACTERS_MAX, Journal
from jax_passing.switch.data_planes.data_plane import DataPlane
from jax_passing.switch.data_planes.job_counts import WaitingChunk
from jax_passing.switch.jobs.admission import reason_of
from jax_passing.switch.jobs.epoch_states import EpochState, Event
from jax_passing.switch.jobs.epochs import Epoch
from jax_passing.switch.jobs.recoveries import Recoveries

log = logging.getLogger("jax_passing.switch")

REMEMBERED = 16  # of either kind
REFUSALS_NOTED = 256  # for flight records
HOSTS_NAMED = 8


@dataclass(frozen=True)
class Refusal:
    """Somebody wasn't admitted. `job`: empty if nobody knows which one was meant. `reason`: one of REASONS."""

    at: float
    who: str
    job: str
    kind: str
    why: str
    reason: str


@dataclass(frozen=True)
class End:
    """An epoch of a job has ended, which had begun."""

    at: float
    job: str
    epoch: int
    ran_s: float
    why: str


class Chronicle:
    """Notes what becomes of jobs, as it happens.

    Attributes:
      refusals, ends: the last ones.
      recoveries: those of the last hour.
      refused_for: how many refusals there were, by their reasons.
      journal: has the ends and all else of jobs, for flight records.
      refused_journal: has refusals, for the same. Strangers can cause as many as they like.
    """

    def __init__(self, data_plane: DataPlane, outside: Outside):
        self._outside = outside
        self.recoveries = Recoveries(data_plane, outside)
        self.refusals: deque[Refusal] = deque(maxlen=REMEMBERED)
        self.ends: deque[End] = deque(maxlen=REMEMBERED)
        self.refused_for: Counter[str] = Counter()
        self.journal = Journal(SWITCH_EVENTS, SWITCH_TEXT_CHARACTERS_MAX)
        self.refused_journal = Journal(REFUSALS_NOTED, SWITCH_TEXT_CHARACTERS_MAX)
        self._stands_still: tuple[int, int, int, int] | None = None  # the last chunk of which this was noted

    def refused(self, who: str, why: str, *, job: str = "", kind: str = JoinError.__name__, reason: str = "") -> None:
        """`job`: that was meant. `kind`: of the error that the host raises. `reason`: one of REASONS; empty: that of
        the kind."""
        # Lines of different callers are of different kinds to the log's limit.
        log.warning("refused %s: %s", who, why, stacklevel=2)
        reason = reason or reason_of(kind)
        self.refused_for[reason] += 1
        self.refusals.append(Refusal(self._outside.now(), who, job, kind, why[: messages.REASON_MAX], reason))
        self.refused_journal.note(self._outside.now(), "refused", job, f"{who}: {why}", error=kind)

    def joined(self, epoch: Epoch, join: messages.RankJoin) -> None:
        level = logging.INFO if len(epoch.joined()) == 1 else logging.DEBUG
        log.log(level, "%s: rank %d of %d joined, at %s", epoch, join.rank, join.world_size, join.host)
        about = {"epoch": epoch.number, "rank": join.rank, "address": join.host, "host_name": join.host_name}
        self._note("joined", epoch.job.name, f"rank {join.rank} of {join.world_size}", **about)

    def started(self, epoch: Epoch) -> None:
        assert epoch.plan is not None
        epoch.since = self._outside.now()
        self._note("started", epoch.job.name, names(sorted(epoch.joined())), epoch=epoch.number)
        hosts = list(dict.fromkeys(member.connection.host for member in epoch.workers()))
        more = f" and {len(hosts) - HOSTS_NAMED} more" if len(hosts) > HOSTS_NAMED else ""
        log.info(
            "%s: started with %s at %s; slots from %d, packets of up to %d lanes, results by %s",
            epoch,
            names(sorted(epoch.joined())),
            ", ".join(hosts[:HOSTS_NAMED]) + more,
            epoch.slot_first,
            epoch.plan.lanes_per_chunk,
            f"multicast to {epoch.group.address}" if epoch.group else "unicast",
        )

        if (recovery := self.recoveries.started(epoch)) is not None:
            because = recovery.interruption.culprit or recovery.interruption.kind
            stood = f"{recovery.stood_s:.2f} s"
            log.info("%s: goes on after %s without a sum (%s)", epoch, stood, because)
            text = f"goes on after {stood}: {because}"
            self._note("recovered", epoch.job.name, text, epoch=epoch.number, stood_s=recovery.stood_s)

    def failed(self, epoch: Epoch, failed: messages.Failed) -> None:
        """Is called before the epoch has ended."""
        log.warning("%s failed: %s: %s", epoch, failed.kind, failed.message)
        if epoch.state is not EpochState.RUNNING:
            return
        interruption = self.recoveries.failed(epoch, failed)
        kind, ranks, culprit = interruption.kind, interruption.ranks, interruption.culprit
        about = {"epoch": epoch.number, "error": kind, "ranks": ranks, "culprit": culprit}
        self._note("failed", epoch.job.name, interruption.why, **about)

    def waits(self, epoch: Epoch, chunk: WaitingChunk) -> None:
        """A chunk isn't complete. It stands still if it has waited for long; that is noted once."""
        this = (epoch.job.number, epoch.number, chunk.slot, chunk.sequence)
        if chunk.waited_us < STANDS_STILL_S * 1e6 or this == self._stands_still:
            return
        self._stands_still = this
        missing, whom = epoch.awaited(chunk.bitmap)
        about = {"epoch": epoch.number, "slot": chunk.slot, "sequence": chunk.sequence, "missing": missing}
        self._note("stall", epoch.job.name, f"waited {chunk.waited_us / 1e6:.1f} s for {whom}", **about)

    def _note(self, kind: str, job: str, text: str, **facts: Any) -> None:
        self.journal.note(self._outside.now(), kind, job, text, **facts)

    def ended(self, epoch: Epoch, was: EpochState, event: Event, why: str) -> None:
        """`was`: its state before. `why`: what its members are told, if anything."""
        if was is not EpochState.RUNNING:
            log.debug("%s ended before it began: %s", epoch, event.value)
            return
        epoch.job.ran_until = now = self._outside.now()
        self._note("ended", epoch.job.name, why or event.value, epoch=epoch.number)
        ran_s = now - epoch.since
        log.info("%s ended after %.1f s: %s", epoch, ran_s, event.value)
        why = (why or event.value)[: messages.REASON_MAX]
        self.ends.append(End(now, epoch.job.name, epoch.number, ran_s, why))
