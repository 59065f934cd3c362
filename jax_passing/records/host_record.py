"""A host's flight record has the fields of PyTorch's, so that PyTorch's analyser understands it, and more of ours.

Each site is a process group there: hosts may issue independent sums in another order, and the sums of one site are
numbered alike on all of them. The words are PyTorch's: a sum is an entry.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jax_passing.records.files import OURS, Record
from jax_passing.records.journal import Event

if TYPE_CHECKING:
    from jax_passing._native import OpenGathering, RecordedSum

FORMAT = "2.10"  # of PyTorch's record
STEP_BITS = 20  # of a number, below those of the execution

_LOCATION = re.compile(r"(?P<filename>[^:]+):(?P<line>\d+):\d+ in (?P<name>\S+) ")


def of_host(
    sums: "Sequence[RecordedSum]",
    gatherings: "Iterable[OpenGathering]",
    events: Iterable[Event],
    now_us: int,
    unix_ns: int,
    **facts: Any,
) -> Record:
    """Makes the record. `now_us`, `unix_ns`: the same moment, by the clock of sums and events, and since 1970. `facts`:
    of the host and its session, for us."""

    def at_ns(us: int) -> int | None:
        return unix_ns - 1000 * (now_us - us) if us else None

    groups: dict[int, Record] = {}
    status: dict[str, Record] = {}
    entries = []
    for one in sums:
        group, number = f"{one.site:016x}", (one.execution << STEP_BITS) + one.step
        if one.site not in groups:
            ranks = str(list(range(one.world_size)))
            groups[one.site] = {"name": group, "desc": one.site_name, "ranks": ranks}
        of_group = status.setdefault(group, _no_status())
        of_group["last_enqueued_collective"] = of_group["last_started_collective"] = number
        if one.state == "completed":
            of_group["last_completed_collective"] = number
        entries.append(
            {
                "record_id": one.number,
                "pg_id": 0,
                "process_group": [group, one.site_name],
                "collective_seq_id": number,
                "p2p_seq_id": 0,
                "op_id": number,
                "profiling_name": "nccl:all_reduce",  # else PyTorch's analyser refuses it
                "is_p2p": False,
                "input_sizes": [[one.elements]],
                "input_dtypes": [one.dtype],
                "output_sizes": [[one.elements]],
                "output_dtypes": [one.dtype],
                "state": one.state,
                "time_created_ns": at_ns(one.scheduled_us),
                "time_discovered_started_ns": at_ns(one.started_us),
                "time_discovered_completed_ns": at_ns(one.ended_us),
                "retired": one.state != "started",
                "timeout_ms": round(1000 * facts.get("deadline_s", 0)),
                "frames": _frames(one.site_name),
                "execution": one.execution,
                "step": one.step,
                "bytes": one.bytes,
                "op": one.op,
            }
        )
    unix_s = unix_ns / 1e9
    return {
        "version": FORMAT,
        "pg_config": {group["name"]: group for group in groups.values()},
        "pg_status": status,
        "entries": entries,
        OURS: {
            "kind": "host",
            "written_at": unix_s,
            **facts,
            "gatherings": [
                {
                    "site_name": one.site_name,
                    "devices_here": one.calls,
                    "devices": one.call_count,
                    "since": unix_s - (now_us - one.opened_us) / 1e6,
                }
                for one in gatherings
            ],
            "events": of_events(events, now_us / 1e6, unix_s),
        },
    }


def of_events(events: Iterable[Event], now: float, unix_s: float) -> list[Record]:
    """`now`, `unix_s`: the same moment, by the events' clock, and since 1970."""
    return [
        {"at": unix_s - (now - event.at), "kind": event.kind, "job": event.job, "text": event.text, **event.facts}
        for event in events
    ]


def _no_status() -> Record:
    return dict.fromkeys(("last_enqueued_collective", "last_started_collective", "last_completed_collective"), -1)


def _frames(site_name: str) -> list[Record]:
    found = _LOCATION.match(site_name)
    return [{**found.groupdict(), "line": int(found["line"])}] if found else []
