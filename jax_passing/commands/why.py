"""`jax-passing why`: who waited for whom?"""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer


def why(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Flight records of hosts and switches, or folders of them.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell from flight records why a job stood still: who waited for whom, where in the program, and since when.

    Of several jobs it tells of the one that wrote a record last. Exit code 1 if no record is of a host.
    """
    from jax_passing.errors import ConfigError
    from jax_passing.records.files import read
    from jax_passing.records.sentences import sentences
    from jax_passing.records.why import examine

    found = [each for file in files for each in (sorted(file.glob("record-*.json")) if file.is_dir() else [file])]
    if not found:
        raise ConfigError(f"There is no flight record in {', '.join(map(str, files))}.")
    findings = examine([read(file) for file in found])
    if findings is None:
        raise ConfigError("None of these records is of a host: a switch alone doesn't know who waits for whom.")
    told = sentences(findings)
    if as_json:
        document = {
            "job": findings.job,
            "epoch": findings.epoch,
            "world_size": findings.world_size,
            "records": list(findings.hosts),
            "without_record": findings.without_record,
            "failure": findings.first_failure(),
            "waits": [dataclasses.asdict(wait) for wait in findings.waits],
            "sentences": told,
        }
        typer.echo(json.dumps(document, indent=1))
    else:
        for sentence in told:
            typer.echo(sentence)
