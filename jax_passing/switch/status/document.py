"""The status of a switch is a document of plain values, which docs/operate/watching.md explains. Pure functions make it
from what the switch knows."""

import dataclasses
from collections.abc import Iterable

from jax_passing import job_names
from jax_passing.protocol import alike
from jax_passing.protocol.overview import Document
from jax_passing.records.journal import Journal
from jax_passing.switch.jobs.admission import REASONS, least
from jax_passing.switch.jobs.chronicle import Chronicle, End, Refusal
from jax_passing.switch.jobs.drain import Drain
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Epoch, Member
from jax_passing.switch.jobs.recent import Counted, Recent
from jax_passing.switch.jobs.recoveries import STOOD_S, Recoveries, Recovery
from jax_passing.switch.jobs.waits import whom_it_awaits
from jax_passing.switch.meetings.meetings import Meeting

JOBS_MAX = 256
MEETINGS_MAX = 64  # strangers may hold any number of them
WAITING_MAX = 16  # hosts of a meeting
WHY_CHARACTERS_MAX = 1000
RECOVERIES_MAX = 128
EVENTS_CHARACTERS_MAX = 512 * 1024  # of an answer, which is a line of the control connection


def of_epoch(epoch: Epoch, recent: Recent, now: float) -> Document:
    """Describes one job at this switch. Values that nobody can tell are None."""
    name = epoch.job.name.partition(job_names.SHARD_MARK)[0]
    joins = epoch.joined().values()
    running = epoch.state is EpochState.RUNNING
    link_gbit = least(*(join.link_gbit for join in joins))
    counted = recent.counted(epoch, now) if running else None
    return {
        "job": name,
        "shard": job_names.shard_of(epoch.job.name),
        "shards": max((join.shards for join in joins), default=1),
        "epoch": epoch.number,
        "state": epoch.state.value,
        "for_s": now - epoch.since,
        "world_size": epoch.world_size,
        "planes": epoch.plan.planes if epoch.plan else 1,
        "threads": epoch.plan.threads if epoch.plan else 1,
        "slots": epoch.plan.slot_count * epoch.plan.planes if epoch.plan and epoch.slot_first is not None else 0,
        "absent": [] if running else epoch.absent(),
        "left": sorted(epoch.left),
        "awaits": whom_it_awaits(epoch) if epoch.state is EpochState.FORMING else "",
        "parent": None if epoch.uplink is None else epoch.uplink.name,
        "confidential": any(alike.HOSTS_KEY in join.alike for join in joins),
        "link_gbit": link_gbit,
        **_rates(counted, link_gbit),
        "oldest": None if counted is None else _oldest(epoch, counted[1]),
        "members": _members(epoch, counted),
    }


_Counted = tuple[Counted, Counted, Counted]  # in the last seconds, in the last minute, since the epoch began


def _rates(counted: _Counted | None, link_gbit: float | None) -> Document:
    if counted is None:
        unknown = ("goodput_gbit", "line_rate_share", "minute_s", "chunks", "resends", "chunks_waiting", "total")
        return dict.fromkeys(unknown)
    seconds, minute, total = counted
    return {
        "goodput_gbit": seconds.goodput_gbit,
        "line_rate_share": seconds.goodput_gbit / link_gbit if link_gbit else None,
        "minute_s": minute.seconds,
        "chunks": minute.counts.chunks,
        "resends": minute.resends,
        "chunks_waiting": minute.counts.waiting,
        "total": {"chunks": total.counts.chunks, "bytes": total.sum_bytes},
    }


def _oldest(epoch: Epoch, minute: Counted) -> Document | None:
    chunk = minute.counts.oldest
    if chunk is None:
        return None
    missing, whom = epoch.awaited(chunk.bitmap)
    waited_s = chunk.waited_us / 1e6
    sum_name = epoch.stalled.sum_name if epoch.stalled is not None and epoch.stalled.sequence == chunk.sequence else ""
    return {
        "slot": chunk.slot,
        "sequence": chunk.sequence,
        "sum": sum_name,  # once a host has asked about it
        "waited_s": waited_s,
        "missing": missing,
        "waits_for": whom,
    }


def _members(epoch: Epoch, counted: _Counted | None) -> list[Document]:
    members = epoch.workers()
    if counted is None:
        unknown = dict.fromkeys(("last", "last_share", "waited_s", "waited_share", "resends", "silent_s", "total"))
        return [_member(epoch, member) | unknown for member in members]
    _, minute, total = counted
    chunks = max(1, minute.counts.chunks)
    return [
        _member(epoch, member)
        | {
            "last": worker.last,
            "last_share": worker.last / chunks,
            "waited_s": worker.waited_us / 1e6,
            "waited_share": share,
            "resends": worker.resends,
            "silent_s": worker.silent_us / 1e6,
            "total": {
                "contributions": ever.contributions,
                "resends": ever.resends,
                "last": ever.last,
                "waited_s": ever.waited_us / 1e6,
            },
        }
        for member, worker, share, ever in zip(
            members, minute.counts.workers, minute.waited_shares, total.counts.workers, strict=True
        )
    ]


def _member(epoch: Epoch, member: Member) -> Document:
    ranks = sorted(member.ranks)
    return {
        "ranks": ranks,
        "switch": member.rack or None,
        "address": member.address[0],
        "port": member.address[1],
        "hosts": [
            {"rank": rank, "address": join.host, "name": join.host_name} for rank, join in sorted(member.ranks.items())
        ],
        "has_left": epoch.left.issuperset(ranks),
    }


def of_meeting(meeting: Meeting, now: float) -> Document:
    """Describes who waits to meet, and why."""
    waiting = meeting.waiting
    who = [
        {"rank": one.rank, "address": one.connection.host, "for_s": now - one.since} for one in waiting[:WAITING_MAX]
    ]
    why = meeting.why_not()[:WHY_CHARACTERS_MAX]
    return {"job": meeting.job, "waiting": who, "more": len(waiting) - len(who), "why": why}


def of_meetings(meetings: Iterable[Meeting], now: float) -> Document:
    """Describes the meetings whose hosts wait, those first that began first: hosts that run a job are in its meeting
    all the time."""
    waiting = [meeting for meeting in meetings if meeting.waiting]
    shown = waiting[:MEETINGS_MAX]
    return {"meetings": [of_meeting(one, now) for one in shown], "more_meetings": len(waiting) - len(shown)}


def of_drain(drain: Drain, now: float) -> Document | None:
    return None if drain.since is None else {"for_s": now - drain.since, "reason": drain.reason}


def of_chronicle(chronicle: Chronicle, now: float) -> Document:
    """Describes the jobs that ended last, who was refused, and the recoveries of the last hour, the last first."""

    def described(one: End | Refusal) -> Document:
        fields = dataclasses.asdict(one)
        return {"ago_s": now - fields.pop("at"), **fields}

    return {
        "ended": [described(end) for end in reversed(chronicle.ends)],
        "recoveries": [_recovery(one, now) for one in chronicle.recoveries.last(RECOVERIES_MAX)],
        "recovered": _recovered(chronicle.recoveries),
        "refusals": [described(refusal) for refusal in reversed(chronicle.refusals)],
        "refused_for": {reason: chronicle.refused_for[reason] for reason in REASONS},
    }


def _recovery(recovery: Recovery, now: float) -> Document:
    interruption = recovery.interruption
    return {
        "ago_s": now - recovery.at,
        "job": recovery.job,
        "epoch_before": interruption.epoch,
        "epoch": recovery.epoch,
        "stood_s": recovery.stood_s,
        "kind": interruption.kind,
        "ranks": interruption.ranks,
        "culprit": interruption.culprit,
        "why": interruption.why,
    }


def _recovered(recoveries: Recoveries) -> Document:
    """Describes all recoveries since the start, by the kind of error."""
    return {
        kind: {
            "count": count,
            "stood_s": recoveries.stood_s[kind],
            "classes": [recoveries.classes[kind, each] for each in range(len(STOOD_S) + 1)],
        }
        for kind, count in sorted(recoveries.counted.items())
    }


def of_journals(journals: Iterable[Journal], now: float, job: str | None) -> list[Document]:
    """Describes the last events, the oldest first, as many as an answer has room for. `job`: only those of this one."""
    described: list[Document] = []
    room = EVENTS_CHARACTERS_MAX
    events = sorted((event for journal in journals for event in journal.events), key=lambda event: event.at)
    for event in reversed(events):
        if job is not None and job_names.base(event.job) != job:
            continue
        one = {"ago_s": now - event.at, "kind": event.kind, "job": event.job, "text": event.text, **event.facts}
        room -= len(str(one))
        if room < 0:
            break
        described.append(one)
    return described[::-1]


def of_job(document: Document, job: str) -> Document:
    """Leaves of a document what an owner of this job's key may see: this job, those that were made from it, and what
    isn't of any job."""

    def ours(parts: Iterable[Document]) -> list[Document]:
        return [part for part in parts if job_names.base(part["job"]) == job]

    lists = {part: ours(document[part]) for part in ("jobs", "meetings", "ended", "recoveries", "refusals")}
    of_others = {"packets": None, "counts": None, "refused_for": None, "recovered": None, "more_meetings": 0}
    return {**document, **lists, **of_others}
