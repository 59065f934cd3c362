"""`jax-passing trace`: what hosts and switches did, on one time line."""

import json
from pathlib import Path
from typing import Annotated

import typer

from jax_passing.commands.why import Files, Job, diagnosed, records_of_this_version


def trace(
    files: Files,
    job: Job = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the trace here.")] = Path("trace.json"),
) -> None:
    """Make a trace of flight records, which https://ui.perfetto.dev shows: all hosts' sums on one time line."""
    from jax_passing.errors import ConfigError
    from jax_passing.records.trace_events import trace_events

    diagnosis = diagnosed(files, job)
    with records_of_this_version():
        document = trace_events(diagnosis)
    try:
        output.write_text(json.dumps(document))
    except OSError as error:
        raise ConfigError(f"Can't write {output}: {error}.") from error
    typer.echo(f"wrote {output}: job {diagnosis.job!r}, {len(diagnosis.hosts)} of {diagnosis.world_size} ranks")
