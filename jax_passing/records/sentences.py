"""Says in sentences what flight records show. Pure functions."""

from collections.abc import Iterator
from datetime import datetime

from jax_passing.errors import names
from jax_passing.records.diagnosis import Diagnosis, HostView, Wait
from jax_passing.records.files import Record

OTHER_WAITS_MAX = 3


def sentences(found: Diagnosis) -> list[str]:
    """Returns the answer: the failure, if there is one, who waited for whom, and what these ranks did."""
    return [
        f"Job {found.job!r}, epoch {found.epoch}, has {found.world_size} ranks; "
        f"records of {_ranks(list(found.hosts))} are here{_left_out(found)}.",
        *_failure(found),
        *_main_wait(found),
        *_without_record(found),
    ]


def _failure(found: Diagnosis) -> Iterator[str]:
    failure = found.first_failure()
    if failure is not None:
        yield f"It failed at {clock(failure['at'])} with {failure['error']}: {failure['text']}"


def _main_wait(found: Diagnosis) -> Iterator[str]:
    if not found.waits:
        yield "No rank waited in a sum when its record was written."
        for view in found.hosts.values():
            yield doing(view)
        return
    wait = found.waits[0]
    yield described(wait, found)
    for rank in wait.absent:
        yield doing(found.hosts[rank])
    if not wait.absent and not wait.unknown:
        yield _nobody_missing(wait)
    others = {(tuple(other.waiting), tuple(other.awaited)): other for other in reversed(found.waits)}
    del others[tuple(wait.waiting), tuple(wait.awaited)]
    for other in list(others.values())[:OTHER_WAITS_MAX]:
        yield f"At the same time {_uncapitalized(described(other, found))}"
    if any(
        set(other.waiting) & set(wait.absent) and set(wait.waiting) & set(other.absent) for other in others.values()
    ):
        yield "They waited for each other: their programs differ, or come to these sums in another order."


def described(wait: Wait, found: Diagnosis) -> str:
    """Returns a sentence on one wait."""
    awaited = f"for {_ranks(wait.awaited)} " if wait.awaited else ""
    held_s = found.written_at - wait.since
    return (
        f"{_capitalized(_ranks(wait.waiting))} waited {awaited}in {sum_name(wait.sum)}, since {clock(wait.since)}, "
        f"{held_s:.1f} s before the last record was written."
    )


def sum_name(entry: Record) -> str:
    return f"{entry['process_group'][1]} (execution {entry['execution']}, step {entry['step']})"


def doing(view: HostView) -> str:
    """Returns a sentence on what a host did that others waited for."""
    who = _who(view)
    at = view.written_at
    if any(event["kind"] == "left" for event in view.facts["events"][-3:]):
        return f"{who} had left the job: it wanted no more sums."
    if pending := view.pending():
        entry = view.sums[pending[0]]
        since = view.at(entry["time_discovered_started_ns"])
        return f"{who} waited itself, in {sum_name(entry)}, since {clock(since)}."
    if gatherings := view.facts["gatherings"]:
        one = min(gatherings, key=lambda each: each["since"])
        return (
            f"{who} had {one['devices_here']} of its {one['devices']} devices at {one['site_name']}, since "
            f"{clock(one['since'] - view.ahead_s)}: the others didn't come."
        )
    last = view.last_completed()
    if last is None:
        return f"{who} had made no sum yet: it compiled, loaded data, or slept."
    ended = view.at(last["time_discovered_completed_ns"])
    return (
        f"{who} was in no sum: its last one, {sum_name(last)}, was complete at {clock(ended)}, {at - ended:.1f} s "
        "before its record was written. Since then it computed, slept, or waited for something else."
    )


def _nobody_missing(wait: Wait) -> str:
    if wait.done:
        return f"{_capitalized(_ranks(wait.done))} had its result, which didn't reach the others: does UDP reach them?"
    return (
        "All ranks had started it, so packets were lost between them and the switch: does UDP pass, and does the "
        "switch run?"
    )


def _without_record(found: Diagnosis) -> Iterator[str]:
    for rank in found.without_record:
        text = (
            f"There is no record of rank {rank}: it died, is stopped (SIGSTOP), its network is cut, or its file isn't "
            "among these."
        )
        if (seen := found.seen_by_switch(rank)) is not None:
            member, _ = seen
            silent = member["silent_s"]
            hosts = next((host for host in member["hosts"] if host["rank"] == rank), None)
            name = f" ({host_name(hosts['name'], hosts['address'])})" if hosts else ""
            if silent is not None:
                text += f" The switch had its{name} last new chunk {silent:.1f} s before its record."
        if (stall := found.last_stall(rank)) is not None:
            text += f" At {clock(stall['at'])} the switch lacked its part of {stall['site_name']}: {stall['text']}"
        yield text


def host_name(name: str, address: str) -> str:
    return ", ".join(filter(None, (name, address)))


def _who(view: HostView) -> str:
    name = host_name(view.facts["host_name"], view.facts["address"])
    return f"Rank {view.rank} ({name})" if name else f"Rank {view.rank}"


def clock(at: float) -> str:
    """Returns the time of the day, here. `at`: seconds since 1970."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S.%f")[:-3]


def _ranks(ranks: list[int]) -> str:
    return names(ranks) if ranks else "no rank"


def _left_out(found: Diagnosis) -> str:
    return f" ({found.left_out} older ones, or of other jobs, are left out)" if found.left_out else ""


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _uncapitalized(text: str) -> str:
    return text[:1].lower() + text[1:]
