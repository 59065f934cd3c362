"""The status of switches as one screen."""

from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jax_passing.errors import names, printable
from jax_passing.protocol.overview import Document

MEMBERS_SHOWN = 16
LINES_SHOWN = 3  # of refusals, and of jobs that have ended
WHY_SHOWN = 200  # characters
STALLED_S = 1.0  # a chunk that has waited for so long is told of


def duration(seconds: float) -> str:
    """Writes "0.2 s", "35 s", "12 min", "3 h 20 min" or "2 d 3 h"."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    hours, days = minutes // 60, minutes // 1440
    if minutes < 60:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{days} d {hours % 24} h"


def screen(overview: Document) -> RenderableType:
    """Shows what `protocol.overview` made of switches' answers."""
    overview = _printable(overview)
    parts: list[RenderableType] = [_switch(switch) for switch in overview["switches"]]
    parts += [Text.assemble((one["why"], "bold red")) for one in overview["unknown"]]
    for job in overview["jobs"]:
        parts += ["", *_job(job)]
    if not overview["jobs"] and overview["switches"]:
        parts += ["", Text("No jobs.")]
    for meeting in overview["meetings"]:
        parts += ["", _meeting(meeting)]
    parts += _listed("Ended", [_ended(end) for end in overview["ended"][:LINES_SHOWN]])
    parts += _listed("Refused", [_refused(refusal) for refusal in overview["refusals"][:LINES_SHOWN]])
    return Group(*parts)


def _printable(part: Any) -> Any:
    """Returns the same with texts that a terminal takes for nothing else: hosts of strangers wrote some of them."""
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, dict):
        return {key: _printable(value) for key, value in part.items()}
    return [_printable(value) for value in part] if isinstance(part, list | tuple) else part


def _listed(title: str, lines: list[Text]) -> list[RenderableType]:
    return ["", Text(title, style="bold"), *lines] if lines else []


def _switch(switch: Document) -> Text:
    used, total = switch["slots_used"], switch["slots"]
    about = [
        f"jax-passing {switch['version']}",
        switch["data_plane"],
        f"up {duration(switch['up_s'])}",
        "with a key" if switch["has_key"] else "no key",
        f"{used} of {total} slots used",
        f"{switch['connections']} connections",
    ]
    if switch["parent"]:
        about.append(f"below {switch['parent']}")
    return Text.assemble("switch ", (switch["address"], "bold"), ": ", ", ".join(about), *_no_jobs(switch))


def _no_jobs(switch: Document) -> list[tuple[str, str]]:
    """Says why the switch admits no jobs, with the style of each sentence. One of an earlier version doesn't tell."""
    found = []
    if (draining := switch.get("draining")) is not None:
        why = f" ({draining['reason']})" if draining["reason"] else ""
        found.append((f"\n  Draining for {duration(draining['for_s'])}{why}: it admits no new job.", "bold yellow"))
    if switch.get("trouble"):
        found.append((f"\n  The data plane has failed: {switch['trouble']}.", "bold red"))
    return found


def _job(job: Document) -> list[RenderableType]:
    several = len(job["switches"])
    on = job["switches"][0] if several == 1 else f"{several} switches"
    some = f" (of {job['shards']})" if several != job["shards"] else ""
    epochs = names_of_epochs(job["epochs"])
    what = f"{job['state']} for {duration(job['for_s'])}, {epochs}, {job['world_size']} ranks, at {on}{some}"
    title = Text.assemble("job ", (job["job"], "bold"), ": ", what)
    return [title, *(Text(f"  {line}", style=style) for line, style in _sentences(job)), _members(job)]


def names_of_epochs(epochs: list[int]) -> str:
    return ("epoch " if len(epochs) == 1 else "epochs ") + ", ".join(map(str, epochs))


def _sentences(job: Document) -> list[tuple[str, str]]:
    """Says how the job is doing, with the style of each sentence."""
    found = [(_rate(job), "")] if job["state"] == "running" else []
    for late in job["late"]:
        found.append((_late(late, job["minute_s"]), "bold yellow"))
    oldest = job["oldest"]
    if oldest is not None and oldest["waited_s"] >= STALLED_S:
        at = f" at {oldest['at']}" if len(job["switches"]) > 1 else ""
        where = f"slot {oldest['slot']}, sequence {oldest['sequence']}{at}"
        if oldest.get("sum"):
            where = f"{oldest['sum']} ({where})"
        waits = f"waits for {oldest['waits_for']}, {duration(oldest['waited_s'])}"
        found.append((f"Stands still: {where} {waits}.", "bold red"))
    if job["left"]:
        found.append((f"Left: {names(job['left'])}.", ""))
    if job["awaits"]:
        found.append((job["awaits"], "yellow"))
    return found


def _rate(job: Document) -> str:
    if job["goodput_gbit"] is None:
        return "Goodput: unknown, as this data plane can't tell what it counts of a job."
    share = job["line_rate_share"]
    of_line = f" ({share:.0%} of the line rate)" if share is not None else ""
    return (
        f"Goodput: {job['goodput_gbit']:.3g} Gbit/s{of_line}. In the last {duration(job['minute_s'])}: "
        f"{job['chunks']} chunks, {job['resends']} resends. On their way: {job['chunks_waiting']} chunks."
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


def _members(job: Document) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True)
    table.add_column("rank")
    table.add_column("host", overflow="fold")
    table.add_column("address")
    for column in ("came last", "others waited", "resends", "silent for"):
        table.add_column(column, justify="right")
    members = sorted(job["members"], key=lambda member: (-(member["waited_s"] or 0.0), member["ranks"]))
    late = [member["ranks"] for member in job["late"]]
    for member in sorted(members[:MEMBERS_SHOWN], key=lambda member: member["ranks"]):
        style = "yellow" if member["ranks"] in late else ""
        host = f"switch {member['switch']}" if member["switch"] else member["hosts"][0]["name"] or "?"
        table.add_row(
            names(member["ranks"]).partition(" ")[2],
            Text(host),
            member["address"],
            _known(member["last_share"], "{:.0%}"),
            _known(member["waited_s"], "{}", duration),
            _known(member["resends"], "{}"),
            "left" if member["has_left"] else _known(member["silent_s"], "{}", duration),
            style=style,
        )
    if len(members) > MEMBERS_SHOWN:
        table.caption = f"and {len(members) - MEMBERS_SHOWN} more, for whom the others waited less (--json has all)"
    return table


def _known(value: Any, form: str, convert: Any = lambda value: value) -> str:
    return "unknown" if value is None else form.format(convert(value))


def _meeting(meeting: Document) -> Text:
    who = ", ".join(f"rank {one['rank']} at {one['address']}, {duration(one['for_s'])}" for one in meeting["waiting"])
    return Text.assemble("job ", (meeting["job"], "bold"), f": hosts wait to meet: {who}. {meeting['why']}")


def _ended(end: Document) -> Text:
    ran = duration(end["ran_s"])
    return Text(
        f"  {duration(end['ago_s'])} ago: job {end['job']}, epoch {end['epoch']}, after {ran}: {_cut(end['why'])}"
    )


def _refused(refusal: Document) -> Text:
    return Text(f"  {duration(refusal['ago_s'])} ago: {refusal['who']}: {_cut(refusal['why'])}")


def _cut(why: str) -> str:
    return why if len(why) <= WHY_SHOWN else f"{why[:WHY_SHOWN]}..."
