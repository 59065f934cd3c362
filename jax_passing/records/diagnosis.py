"""Reads from flight records why a job stood still: who waited for whom, since when, and what that host did. It tells
what the records show, and which of them are missing. Pure functions."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jax_passing.config import RANKS_MAX
from jax_passing.records.files import OURS, Record

Key = tuple[str, int]  # a sum's site and number, the same on all hosts


@dataclass(frozen=True)
class HostView:
    """One host's record, by the names of its sums.

    Attributes:
      record: as it was read.
      sums: its entries.
      ahead_s: by how much its clock is ahead of the first host's.
    """

    record: Record
    sums: dict[Key, Record]
    ahead_s: float = 0.0

    def at(self, ns: float) -> float:
        """Returns a time of an entry in seconds since 1970, by the first host's clock."""
        return ns / 1e9 - self.ahead_s

    @property
    def written_at(self) -> float:
        return float(self.facts["written_at"]) - self.ahead_s

    @classmethod
    def of(cls, record: Record) -> "HostView":
        return cls(
            record, {(entry["process_group"][0], entry["collective_seq_id"]): entry for entry in record["entries"]}
        )

    @property
    def facts(self) -> Record:
        facts: Record = self.record[OURS]
        return facts

    @property
    def rank(self) -> int:
        return int(self.facts["rank"])

    def pending(self) -> list[Key]:
        """Returns the sums that it waited for: those that a failure ended, too."""
        return [key for key, entry in self.sums.items() if entry["state"] in ("started", "failed")]

    def last_completed(self) -> Record | None:
        done = (entry for entry in self.sums.values() if entry["state"] == "completed")
        return max(done, key=lambda entry: entry["time_discovered_completed_ns"], default=None)


@dataclass
class Wait:
    """Some ranks waited in a sum for others.

    Attributes:
      sum: its entry on the rank that started it first.
      since: when that was, in seconds since 1970, by the first host's clock.
      waiting: ranks that had started it.
      absent: ranks whose records show that they hadn't.
      unknown: ranks without a record.
      done: ranks that had its result already.
    """

    sum: Record
    since: float
    waiting: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)

    @property
    def awaited(self) -> list[int]:
        return self.absent or self.unknown


@dataclass(frozen=True)
class Diagnosis:
    """The records show this of a job.

    Attributes:
      job, epoch, world_size: of the newest record.
      hosts: by rank.
      switches: records of the job's switches.
      left_out: how many records are of other jobs or epochs, or older ones of the same host.
      waits: the first is the one to look at.
      written_at: when the newest record was written, by the first host's clock.
    """

    job: str
    epoch: int
    world_size: int
    hosts: dict[int, HostView]
    switches: list[Record]
    left_out: int
    waits: list[Wait]
    written_at: float

    @property
    def without_record(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank not in self.hosts]

    def first_failure(self) -> Record | None:
        """Returns the event of the failure that came first."""
        failures = [
            {**event, "at": event["at"] - view.ahead_s}
            for view in self.hosts.values()
            for event in view.facts["events"]
            if event["kind"] == "failed" and event["job"] == self.job and event["at"] >= _joined_at(view)
        ]
        return min(failures, key=lambda event: event["at"], default=None)

    def last_stall(self, rank: int) -> Record | None:
        """Returns the last event by which a switch said that this rank's part was missing."""
        stalls = [
            {**event, "at": event["at"] - view.ahead_s}
            for view in self.hosts.values()
            for event in view.facts["events"]
            if event["kind"] == "stall" and rank in event.get("missing", ()) and event["at"] >= _joined_at(view)
        ]
        return max(stalls, key=lambda event: event["at"], default=None)

    def seen_by_switch(self, rank: int) -> tuple[Record, Record] | None:
        """Returns what a switch's record says of the member with this rank, and that record."""
        for switch in self.switches:
            for job in switch["jobs"]:
                for member in job["members"] if job["job"] == self.job else ():
                    if rank in member["ranks"]:
                        return member, switch
        return None


def _joined_at(view: HostView) -> float:
    job = view.facts["job"]
    events = (event for event in view.facts["events"] if event["kind"] == "joined" and event["job"] == job)
    return float(max((event["at"] for event in events), default=0.0))


def diagnose(records: Sequence[Record], job: str | None = None) -> Diagnosis | None:
    """Returns what the records show of this job, or of the one that the newest record is of; None if no host of it has
    one."""
    of_hosts = [one for one in records if one[OURS]["kind"] == "host" and job in (None, one[OURS]["job"])]
    of_hosts.sort(key=lambda one: one[OURS]["written_at"])
    if not of_hosts:
        return None
    newest = of_hosts[-1][OURS]
    hosts: dict[int, HostView] = {}
    for one in of_hosts:  # a later record of the same host replaces an earlier one
        if _epoch_of(one[OURS]) == _epoch_of(newest):
            hosts[one[OURS]["rank"]] = HostView.of(one)
    switches = [one for one in records if one[OURS]["kind"] == "switch"]
    world_size = newest["world_size"]
    if not 1 <= world_size <= RANKS_MAX:
        raise ValueError(f"there is no world of {world_size} hosts")
    hosts = _aligned(dict(sorted(hosts.items())))
    return Diagnosis(
        job=newest["job"],
        epoch=newest["epoch"],
        world_size=world_size,
        hosts=hosts,
        switches=switches,
        left_out=len(of_hosts) - len(hosts),
        waits=_waits(hosts, world_size),
        written_at=max(view.written_at for view in hosts.values()),
    )


def _aligned(hosts: dict[int, HostView]) -> dict[int, HostView]:
    """Aligns clocks by the results, which reach all hosts at once: by the median of the differences, as a host may be
    late with some of them."""
    first = _ends(next(iter(hosts.values())))
    aligned = {}
    for rank, view in hosts.items():
        ends = _ends(view)
        differences = [ends[key] - first[key] for key in ends.keys() & first.keys()]
        ahead_s = statistics.median(differences) / 1e9 if differences else 0.0
        aligned[rank] = dataclasses.replace(view, ahead_s=ahead_s)
    return aligned


def _ends(view: HostView) -> dict[Key, int]:
    done = ((key, entry) for key, entry in view.sums.items() if entry["state"] == "completed")
    return {key: entry["time_discovered_completed_ns"] for key, entry in done}


def _epoch_of(facts: Record) -> tuple[Any, ...]:
    return facts["job"], facts["epoch"], facts["world_size"]


def _waits(hosts: dict[int, HostView], world_size: int) -> list[Wait]:
    """Returns all waits: first those for ranks that are known not to have come, then by when they began."""
    found: dict[Key, Wait] = {}
    for rank, view in sorted(hosts.items()):
        for key in view.pending():
            entry = view.sums[key]
            since = view.at(entry["time_discovered_started_ns"])
            wait = found.setdefault(key, Wait(entry, since))
            wait.waiting.append(rank)
            if since < wait.since:
                wait.sum, wait.since = entry, since
    for key, wait in found.items():
        for rank in range(world_size):
            if rank in wait.waiting:
                continue
            if rank not in hosts:
                wait.unknown.append(rank)
            elif key in hosts[rank].sums:
                wait.done.append(rank)
            else:
                wait.absent.append(rank)
    return sorted(found.values(), key=lambda wait: (not wait.absent, not wait.unknown, wait.since))
