"""Overviews of switches (`overview.py`) are told in sentences: the same ones on a terminal and on a page."""

from typing import Any, NamedTuple

from jax_passing.errors import counted, names, printable, rate
from jax_passing.protocol.overview import Document

WHY_SHOWN = 200  # characters
STANDS_STILL_S = 1.0  # a job does, if a chunk of it has waited for so long

WELL, NOTE, BAD = "", "note", "bad"  # how a reader should take a sentence


class Sentence(NamedTuple):
    """Says something of a switch or a job, in this tone."""

    text: str
    tone: str = WELL


def duration(seconds: float) -> str:
    """Writes "0.2 s", "35 s", "12 min", "3 h 20 min" or "2 d 3 h"."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    hours, days = minutes // 60, minutes // 1440
    if minutes < 60:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{days} d {hours % 24} h"


def readable(part: Any) -> Any:
    """Returns the same with texts that a terminal takes for nothing else: hosts of strangers wrote some of them."""
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, dict):
        return {key: readable(value) for key, value in part.items()}
    return [readable(value) for value in part] if isinstance(part, list | tuple) else part


def of_switch(switch: Document) -> list[Sentence]:
    """Says what the switch is, and why it admits no jobs, if so. One of an earlier version doesn't tell."""
    used, total = switch["slots_used"], switch["slots"]
    about = [
        f"jax-passing {switch['version']}",
        switch["data_plane"] + (f" with {threads} threads" if (threads := switch.get("planes", 1)) > 1 else ""),
        f"up {duration(switch['up_s'])}",
        "with a key" if switch["has_key"] else "no key",
        f"{used} of {total} slots used",
        counted(switch["connections"], "connection"),
    ]
    if switch["parent"]:
        about.append(f"below {switch['parent']}")
    found = [Sentence(", ".join(about))]
    if (draining := switch.get("draining")) is not None:
        why = f" ({draining['reason']})" if draining["reason"] else ""
        found.append(Sentence(f"Draining for {duration(draining['for_s'])}{why}: it admits no new job.", NOTE))
    if switch.get("trouble"):
        found.append(Sentence(f"The data plane has failed: {switch['trouble']}.", BAD))
    return found


def of_job(job: Document) -> list[Sentence]:
    """Says what the job is and how it is doing."""
    several = len(job["switches"])
    on = job["switches"][0] if several == 1 else f"{several} switches"
    some = f" (of {job['shards']})" if several != job["shards"] else ""
    epochs = names_of_epochs(job["epochs"])
    what = f"{job['state']} for {duration(job['for_s'])}, {epochs}, {counted(job['world_size'], 'rank')}, at {on}{some}"
    what += ", sums are confidential" if job["confidential"] else ""
    found = [Sentence(what)]
    if job["state"] == "running":
        found.append(Sentence(_rate(job)))
    found += [Sentence(_late(late, job["minute_s"]), NOTE) for late in job["late"]]
    oldest = job["oldest"]
    if oldest is not None and oldest["waited_s"] >= STANDS_STILL_S:
        at = f" at {oldest['at']}" if several > 1 else ""
        where = f"slot {oldest['slot']}, sequence {oldest['sequence']}{at}"
        if oldest.get("sum"):
            where = f"{oldest['sum']} ({where})"
        waits = f"waits for {oldest['waits_for']}, {duration(oldest['waited_s'])}"
        found.append(Sentence(f"Stands still: {where} {waits}.", BAD))
    if job["left"]:
        found.append(Sentence(f"Left: {names(job['left'])}."))
    if job["awaits"]:
        found.append(Sentence(job["awaits"], NOTE))
    return found


def names_of_epochs(epochs: list[int]) -> str:
    return ("epoch " if len(epochs) == 1 else "epochs ") + ", ".join(map(str, epochs))


def _rate(job: Document) -> str:
    if job["goodput_gbit"] is None:
        return "Goodput: unknown, as this data plane can't tell what it counts of a job."
    share = job["line_rate_share"]
    of_line = f" ({share:.0%} of the line rate)" if share is not None else ""
    return (
        f"Goodput: {rate(job['goodput_gbit'])}{of_line}. In the last {duration(job['minute_s'])}: "
        f"{counted(job['chunks'], 'chunk')}, {counted(job['resends'], 'resend')}. On their way: "
        f"{counted(job['chunks_waiting'], 'chunk')}."
    )


def _late(late: Document, minute_s: float) -> str:
    who = f"{names(late['ranks']).capitalize()} ({_where(late)})"
    verb = "is" if len(late["ranks"]) == 1 else "are"
    waited, others = duration(late["waited_s"]), duration(late["others_waited_s"])
    return (
        f"{who} {verb} late: in the last {duration(minute_s)} the others waited {waited} for it, and {others} for each "
        "of the rest."
    )


def _where(member: Document) -> str:
    if member["switch"]:
        return f"the switch at {member['switch']}"
    (host,) = member["hosts"]
    return f"{host['name']}, {host['address']}" if host["name"] else str(host["address"])


def of_meeting(meeting: Document) -> str:
    who = ", ".join(f"rank {one['rank']} at {one['address']}, {duration(one['for_s'])}" for one in meeting["waiting"])
    more = f", and {meeting['more']} more" if meeting.get("more") else ""
    return f"hosts wait to meet: {who}{more}. {meeting['why']}"


def more_meetings(overview: Document) -> list[str]:
    """Says in how many jobs hosts wait to meet of which the overview doesn't tell, if in any."""
    more = overview["more_meetings"]
    return [f"And in {counted(more, 'more job')} hosts wait to meet."] if more else []


def _end(end: Document) -> str:
    ran = duration(end["ran_s"])
    return f"{duration(end['ago_s'])} ago: job {end['job']}, epoch {end['epoch']}, after {ran}: {_cut(end['why'])}"


def ended(overview: Document) -> list[str]:
    """Tells which epochs have ended, but those of which the recoveries tell."""
    told = {(one["at"], one["job"], one["epoch_before"]) for one in overview["recoveries"]}
    return [_end(end) for end in overview["ended"] if (end["at"], end["job"], end["epoch"]) not in told]


def of_refusal(refusal: Document) -> str:
    return f"{duration(refusal['ago_s'])} ago: {refusal['who']}: {_cut(refusal['why'])}"


def of_recovery(recovery: Document) -> str:
    epoch, stood_s = recovery["epoch"], recovery["stood_s"]
    before = f", epoch {recovery['epoch_before']}" if recovery["epoch_before"] is not None else ""
    stood = f"{stood_s:.2f} s" if stood_s < 10 else duration(stood_s)
    became = f"stood for {stood} and runs in epoch {epoch}" if epoch is not None else "hasn't run again"
    culprit = f"{recovery['culprit']}: " if recovery["culprit"] else ""
    why = recovery["why"].partition(". ")[0]  # what to do comes after it, which its hosts have done
    return f"{duration(recovery['ago_s'])} ago: job {recovery['job']}{before}, {became}: {culprit}{_cut(why)}"


def _cut(why: str) -> str:
    return why if len(why) <= WHY_SHOWN else f"{why[:WHY_SHOWN]}..."
