"""`jax-passing why`: who waited for whom?"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from jax_passing.records.diagnosis import Diagnosis

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Flight records of hosts and switches, or folders of them.")
]
Job = Annotated[
    str | None, typer.Option(metavar="NAME", help="The job. Default: that of the record that was written last.")
]


@contextmanager
def records_of_this_version() -> Iterator[None]:
    """Raises ConfigError where a record lacks what those of this version have."""
    from jax_passing.errors import ConfigError

    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        problem = f"{type(error).__name__}: {error}"
        raise ConfigError(f"A record isn't complete, or of another version ({problem}). Leave it out.") from error


def diagnosed(files: Sequence[Path], job: str | None) -> "Diagnosis":
    """Reads the records, and returns what they show of this job, or of the last one. Raises ConfigError."""
    from jax_passing.errors import ConfigError
    from jax_passing.records.diagnosis import diagnose
    from jax_passing.records.files import read

    found = [each for file in files for each in (sorted(file.glob("record-*.json")) if file.is_dir() else [file])]
    if not found:
        raise ConfigError(f"There is no flight record in {', '.join(repr(str(file)) for file in files)}.")
    with records_of_this_version():
        diagnosis = diagnose([read(file) for file in found], job)
    if diagnosis is None:
        whose = "a host" if job is None else f"a host of job {job!r}"
        raise ConfigError(f"None of these records is of {whose}: a switch alone doesn't know who waits for whom.")
    return diagnosis


def why(
    files: Files,
    job: Job = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all waits as JSON.")] = False,
) -> None:
    """Tell from flight records why a job stood still: who waited for whom, where in the program, and since when."""
    from jax_passing.records.sentences import sentences

    diagnosis = diagnosed(files, job)
    with records_of_this_version():
        told = ["".join(c if c.isprintable() else "?" for c in sentence) for sentence in sentences(diagnosis)]
    if as_json:
        document = {
            "job": diagnosis.job,
            "epoch": diagnosis.epoch,
            "world_size": diagnosis.world_size,
            "records": list(diagnosis.hosts),
            "without_record": diagnosis.without_record,
            "failure": diagnosis.first_failure(),
            "waits": [dataclasses.asdict(wait) for wait in diagnosis.waits],
            "sentences": told,
        }
        typer.echo(json.dumps(document, indent=1))
    else:
        for sentence in told:
            typer.echo(sentence)
