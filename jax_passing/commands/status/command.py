"""`jax-passing status`: how are a switch and its jobs doing, and who is late?"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from jax_passing.errors import PassingError
    from jax_passing.protocol.overview import Document

WATCH_S = 2.0


def status(
    switch: Annotated[
        str | None,
        typer.Argument(
            metavar="HOST:PORT,...",
            help="Ask these switches. A job that is spread over several of them is shown as one.",
            show_default="JAX_PASSING_SWITCH",
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A switch with a key shows all jobs to holders of its key, and a job to holders of that job's.",
            show_default="JAX_PASSING_KEY_FILE",
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option(help="With the key of a job, its name.", show_default="JAX_PASSING_JOB")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON. With --watch, a line each time.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Ask every two seconds, until Ctrl-C.")] = False,
    dump: Annotated[
        bool,
        typer.Option(
            "--dump",
            help="Write the switches' flight records here, and have their hosts write theirs, each on its own machine.",
        ),
    ] = False,
) -> None:
    """Show how switches and their jobs are doing, and who is late. Exit code 1 if a switch doesn't tell."""
    from jax_passing import config
    from jax_passing.commands.status.asking import Asker, ask_all
    from jax_passing.errors import ConfigError
    from jax_passing.protocol.overview import overview

    settings = config.settings_given({"switch": switch, "job": job, "key_file": key_file})
    addresses = settings.get("switch")
    if not addresses:
        raise ConfigError("No switch is given: jax-passing status HOST:PORT, or JAX_PASSING_SWITCH.")
    asker = Asker.of(settings.get("key_file"), settings.get("job"))
    if dump:
        _dump(ask_all(asker, addresses, records=True), settings.get("record_folder"))

    def look() -> dict[str, Any]:
        return overview(ask_all(asker, addresses))

    try:
        seen = _show(look, as_json=as_json, watch=watch)
    except KeyboardInterrupt:
        raise typer.Exit from None
    raise typer.Exit(1 if seen["unknown"] else 0)


def _dump(answers: "Mapping[str, Document | PassingError]", folder: Path | None) -> None:
    from jax_passing.commands.status.dumping import write_all

    unknown = [str(answer) for answer in answers.values() if isinstance(answer, Exception)]
    for text in unknown:
        typer.echo(text, err=True)
    for file in write_all(answers, folder):
        typer.echo(f"wrote {file}")
    told = [answer for answer in answers.values() if not isinstance(answer, Exception)]
    if any(answer.get("hosts_asked", True) for answer in told):
        typer.echo("Hosts were asked to write theirs: their logs say where.")
    elif told:
        typer.echo("No host was asked to write its own: none is in a job that runs, or all were asked not long ago.")
    raise typer.Exit(1 if unknown else 0)


def _show(look: Any, *, as_json: bool, watch: bool) -> dict[str, Any]:
    from rich.console import Console
    from rich.live import Live

    from jax_passing.commands.status.screen import screen

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    seen: dict[str, Any] = look()
    if not watch:
        if as_json:
            typer.echo(json.dumps(seen, indent=1))
        else:
            console.print(screen(seen))
        return seen
    if as_json:
        while True:
            typer.echo(json.dumps(seen))
            sys.stdout.flush()
            time.sleep(WATCH_S)
            seen = look()
    while not console.is_terminal:  # there `Live` shows nothing before it ends
        console.print(screen(seen))
        sys.stdout.flush()
        time.sleep(WATCH_S)
        seen = look()
    with Live(screen(seen), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(screen(look()), refresh=True)
