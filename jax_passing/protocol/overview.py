"""Reads the status documents of switches (docs/operate/watching.md). A job on several switches is one job, and a rank
is late if the others wait for it far longer than for each other. Pure functions."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jax_passing.errors import PassingError

Document = dict[str, Any]

LATE_SHARE_MIN = 0.05  # of the time, in which some chunk lacked nothing but a rank's part
LATE_TIMES_OTHERS = 3.0


def overview(answers: Mapping[str, Document | PassingError]) -> Document:
    """Merges what some switches told, by their addresses."""
    told = {name: answer for name, answer in answers.items() if not isinstance(answer, PassingError)}
    shards: dict[str, list[Document]] = {}
    for name, answer in told.items():
        for job in answer["jobs"]:
            shards.setdefault(job["job"], []).append({**job, "at": name})
    return {
        "switches": [{"address": name, **answer["switch"]} for name, answer in told.items()],
        "unknown": [
            {"address": name, "why": str(answer)}
            for name, answer in answers.items()
            if isinstance(answer, PassingError)
        ],
        "jobs": [_job(of_job) for _, of_job in sorted(shards.items())],
        **{part: _listed(told, part) for part in ("meetings", "ended", "recoveries", "refusals")},
        "more_meetings": sum(answer.get("more_meetings", 0) for answer in told.values()),
        "recovered": {name: answer.get("recovered") for name, answer in told.items()},
        "packets": {name: answer["packets"] for name, answer in told.items()},
        "counts": {name: answer["counts"] for name, answer in told.items()},
    }


def _listed(told: Mapping[str, Document], part: str) -> list[Document]:
    found = [{**one, "at": name} for name, answer in told.items() for one in answer.get(part, ())]
    return sorted(found, key=lambda one: one.get("ago_s", 0.0))


def _job(shards: Sequence[Document]) -> Document:
    """Makes one job of its shards."""
    first = shards[0]
    goodput_gbit = _total(shards, "goodput_gbit")
    link_gbit = min((shard["link_gbit"] for shard in shards if shard["link_gbit"]), default=None)
    oldest = [{**shard["oldest"], "at": shard["at"]} for shard in shards if shard["oldest"]]
    members = _members(shards)
    return {
        "job": first["job"],
        "switches": [shard["at"] for shard in shards],
        "shards": first["shards"],
        "epochs": [shard["epoch"] for shard in shards],
        "state": min((shard["state"] for shard in shards), key=["forming", "preparing", "running"].index),
        "for_s": min(shard["for_s"] for shard in shards),
        "world_size": first["world_size"],
        "slots": sum(shard["slots"] for shard in shards),
        "absent": sorted({rank for shard in shards for rank in shard["absent"]}),
        "left": sorted({rank for shard in shards for rank in shard["left"]}),
        "awaits": next((shard["awaits"] for shard in shards if shard["awaits"]), ""),
        "parents": sorted({shard["parent"] for shard in shards if shard["parent"]}),
        # A switch of an earlier version doesn't tell.
        "confidential": any(shard.get("confidential") for shard in shards),
        "link_gbit": link_gbit,
        "goodput_gbit": goodput_gbit,
        "line_rate_share": goodput_gbit / link_gbit if goodput_gbit is not None and link_gbit else None,
        "minute_s": max((shard["minute_s"] for shard in shards if shard["minute_s"] is not None), default=None),
        **{name: _total(shards, name) for name in ("chunks", "resends", "chunks_waiting")},
        "oldest": max(oldest, key=lambda one: one["waited_s"], default=None),
        "members": members,
        "late": _late(members),
    }


def _total(shards: Sequence[Document], name: str) -> Any:
    values = [shard[name] for shard in shards]
    return None if None in values else sum(values)


def _members(shards: Sequence[Document]) -> list[Document]:
    """Makes one member of those that have the same ranks."""
    found: dict[tuple[int, ...], list[Document]] = {}
    for shard in shards:
        for member in shard["members"]:
            found.setdefault(tuple(member["ranks"]), []).append({**member, "chunks": shard["chunks"]})
    return [_member(same) for _, same in sorted(found.items())]


def _member(same: Sequence[Document]) -> Document:
    known = [one for one in same if one["last"] is not None and one["chunks"] is not None]
    last = sum(one["last"] for one in known)
    return {
        **{name: value for name, value in same[0].items() if name != "total"},
        "chunks": sum(one["chunks"] for one in known) if known else None,
        "last": last if known else None,
        "last_share": last / max(1, sum(one["chunks"] for one in known)) if known else None,
        # Switches wait for it at the same time.
        "waited_s": max((one["waited_s"] for one in known), default=None),
        "waited_share": max((one["waited_share"] for one in known), default=None),
        "resends": sum(one["resends"] for one in known) if known else None,
        "silent_s": min((one["silent_s"] for one in known), default=None),
    }


def _late(members: Sequence[Document]) -> list[Document]:
    """Returns the members that are late, the latest first."""
    known = [member for member in members if member["waited_share"] is not None]
    if len(known) < 2:
        return []
    usual = statistics.median_low(member["waited_share"] for member in known)
    limit = max(LATE_SHARE_MIN, LATE_TIMES_OTHERS * usual)
    found = [member for member in known if member["waited_share"] >= limit]
    others_s = statistics.median(member["waited_s"] for member in known if member["waited_share"] < limit)
    return [{**member, "others_waited_s": others_s} for member in sorted(found, key=lambda one: -one["waited_share"])]
