"""The status of switches as one screen."""

from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jax_passing.errors import names
from jax_passing.protocol import sentences
from jax_passing.protocol.overview import Document
from jax_passing.protocol.sentences import BAD, NOTE, WELL, Sentence, duration

MEMBERS_SHOWN = 16
LINES_SHOWN = 3  # of refusals, of recoveries, and of jobs that have ended
_STYLES = {WELL: "", NOTE: "bold yellow", BAD: "bold red"}


def screen(overview: Document) -> RenderableType:
    """Shows what `protocol.overview` made of switches' answers."""
    overview = sentences.readable(overview)
    parts: list[RenderableType] = []
    for switch in overview["switches"]:
        parts += _titled("switch ", switch["address"], sentences.of_switch(switch))
    parts += [Text(one["why"], style=_STYLES[BAD]) for one in overview["unknown"]]
    for job in overview["jobs"]:
        parts += ["", *_titled("job ", job["job"], sentences.of_job(job)), _members(job)]
    if not overview["jobs"] and overview["switches"]:
        parts += ["", Text("No jobs.")]
    for meeting in overview["meetings"]:
        parts += ["", *_titled("job ", meeting["job"], [Sentence(sentences.of_meeting(meeting))])]
    for text in sentences.more_meetings(overview):
        parts += ["", Text(text)]
    parts += _listed("Ended", sentences.ended(overview)[:LINES_SHOWN])
    recovered = [sentences.of_recovery(one) for one in overview["recoveries"][:LINES_SHOWN]]
    parts += _listed("Recoveries of the last hour", recovered)
    parts += _listed("Refused", [sentences.of_refusal(refusal) for refusal in overview["refusals"][:LINES_SHOWN]])
    return Group(*parts)


def _titled(what: str, name: str, told: list[Sentence]) -> list[Text]:
    first, *more = told
    return [
        Text.assemble(what, (name, "bold"), ": ", first.text),
        *(Text(f"  {text}", style=_STYLES[tone]) for text, tone in more),
    ]


def _listed(title: str, lines: list[str]) -> list[RenderableType]:
    return ["", Text(title, style="bold"), *(Text(f"  {line}") for line in lines)] if lines else []


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
