"""`jax-passing doctor`: is this machine fit for a job?"""

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from jax_passing.doctor.findings import Finding

_COLOURS = {"good": "green", "warning": "yellow", "bad": "bold red", "left out": "bright_black"}


def doctor(
    switch: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Check the way to these switches too, by a small job of its own.",
            show_default="JAX_PASSING_SWITCH",
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Use the key of this job.", show_default="JAX_PASSING_JOB")] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take the job's key from this file.", show_default="JAX_PASSING_KEY_FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check this machine: software, kernel, the way to the switch, GPUs. Exit code 1 if anything is bad."""
    from rich.console import Console

    from jax_passing.doctor.examination import examine

    findings = list(examine({"switch": switch, "job": job, "key_file": key_file}))
    counts = Counter(str(finding.state) for finding in findings)
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings], "counts": counts}, indent=1))
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        console.print(_table(findings))
        console.print(", ".join(f"{counts[state]} {state}" for state in _COLOURS if counts[state]))
    raise typer.Exit(1 if counts["bad"] else 0)


def _table(findings: list["Finding"]) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    table.add_column("check", overflow="fold", max_width=28)
    table.add_column("state", no_wrap=True)
    table.add_column("finding", overflow="fold")
    for finding in findings:
        state = str(finding.state)
        reason = Text(finding.reason)
        if finding.remedy:
            reason.append(f"\n{finding.remedy}", style="italic")
        table.add_row(Text(finding.check), Text(state, style=_COLOURS[state]), reason)
    return table
