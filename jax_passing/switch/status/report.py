"""The switch reports its status to whoever asks, at most a few times a second anew."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from jax_passing import job_names
from jax_passing.protocol import alike
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.all_versions import PROTOCOL_VERSION
from jax_passing.protocol.outside import Outside
from jax_passing.protocol.overview import Document
from jax_passing.switch.data_planes.data_plane import DataPlane, unexpected
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.jobs import JobTable
from jax_passing.switch.jobs.recent import Recent
from jax_passing.switch.meetings.meetings import Meetings
from jax_passing.switch.status.document import (
    JOBS_MAX,
    of_chronicle,
    of_drain,
    of_epoch,
    of_job,
    of_journals,
    of_meetings,
)

log = logging.getLogger("jax_passing.switch")

AGAIN_S = 0.5  # making it takes a look at all slots, and anybody may ask
ASK_HOSTS_S = 5.0  # hosts are asked to write their records no more often
ASK_HOSTS_UNPROVED_S = 60.0  # where anybody may have them asked


@dataclass(frozen=True)
class SwitchFacts:
    """A switch tells this of itself, which never changes. `parent`: its address, for people."""

    instance: str
    data_plane: str
    parent: str | None
    has_key: bool
    lease_s: float
    link_gbit: float | None


class Report:
    def __init__(
        self,
        facts: SwitchFacts,
        data_plane: DataPlane,
        jobs: JobTable,
        meetings: Meetings,
        recent: Recent,
        outside: Outside,
        counts: Callable[[], Mapping[str, int]],
        connections: Callable[[], int],
    ):
        """`counts`: tells the control plane's counters. `connections`: says how many there are."""
        self._facts = facts
        self._data_plane, self._jobs, self._meetings, self._recent = data_plane, jobs, meetings, recent
        self._outside = outside
        self._counts, self._connections = counts, connections
        self._began = outside.now()
        self._made_at = float("-inf")
        self._made: Document = {}
        self._events: dict[str | None, msgspec.Raw] = {}  # as old as the document, by their job
        self._asked_hosts_at: dict[str, float] = {}  # by their jobs

    @property
    def has_key(self) -> bool:
        return self._facts.has_key

    def now(self) -> float:
        """Returns the time by which the document counts."""
        return self._outside.now()

    def answer(self, query: messages.StatusQuery, job: str | None) -> messages.Status:
        """Returns what to tell who asks: the document, with the last events if flight records are wanted. Then the
        hosts are asked to write theirs. `job`: the only one of which the other may know."""
        document = self.document(job)
        if not query.records:
            return messages.Status(document)
        now = self._outside.now()
        again_s = ASK_HOSTS_S if self._facts.has_key else ASK_HOSTS_UNPROVED_S
        before = {of: at for of, at in self._asked_hosts_at.items() if now - at < again_s}
        self._asked_hosts_at = dict(before)
        running = [epoch for epoch in self._jobs.epochs() if epoch.state is EpochState.RUNNING]
        for epoch in running:
            of = job_names.base(epoch.job.name)
            if job in (None, of) and of not in before:
                self._asked_hosts_at[of] = now
                for member in epoch.members:
                    member.connection.send(messages.WriteRecord())
        if job not in self._events:
            chronicle = self._jobs.chronicle
            events = of_journals((chronicle.journal, chronicle.refused_journal), now, job)
            self._events[job] = msgspec.Raw(msgspec.json.encode(events))
        return messages.Status({**document, "events": self._events[job], "hosts_asked": self._asked_hosts_at != before})

    def document(self, job: str | None = None) -> Document:
        """Returns the whole document, or what an owner of this job's key may see of it."""
        now = self._outside.now()
        if now - self._made_at >= AGAIN_S:
            self._made_at, self._made, self._events = now, self._make(now), {}
        return self._made if job is None else of_job(self._made, job)

    def _make(self, now: float) -> Document:
        facts, epochs, planes = self._facts, self._jobs.epochs(), self._data_plane.planes
        return {
            "switch": {
                "version": alike.version_of("jax_passing"),
                "protocol_version": PROTOCOL_VERSION,
                "instance": facts.instance,
                "data_plane": facts.data_plane,
                "up_s": now - self._began,
                "parent": facts.parent,
                "has_key": facts.has_key,
                "lease_s": facts.lease_s,
                "link_gbit": facts.link_gbit,
                "planes": planes,
                "slots": self._data_plane.slot_total * planes,
                "slots_used": self._jobs.starts.slots_held * planes,
                "lanes_per_chunk": self._data_plane.lanes_per_chunk,
                "connections": self._connections(),
                "jobs": len(epochs),
                "draining": of_drain(self._jobs.drain, now),
                "trouble": self._trouble(),
            },
            "jobs": [of_epoch(epoch, self._recent, now) for epoch in epochs[:JOBS_MAX]],
            **of_meetings(self._meetings.by_job.values(), now),
            **of_chronicle(self._jobs.chronicle, now),
            "packets": self._packets(),
            "counts": {**self._counts(), "recoveries_forgotten": self._jobs.chronicle.recoveries.forgotten},
        }

    def _trouble(self) -> str:
        """Says why no packet is added up now; else empty."""
        try:
            return self._data_plane.trouble()
        except Exception as error:  # whatever the device's driver raises
            return str(error) or type(error).__name__

    def _packets(self) -> dict[str, int] | None:
        try:
            return dict(self._data_plane.stats())
        except Exception as error:  # whatever the device's driver raises
            log.error("the data plane can't tell its counters: %s", error, exc_info=unexpected(error))
            return None
