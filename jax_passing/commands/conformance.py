"""`jax-passing conformance`: does a switch do what docs/internals/protocol.md says?"""

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from jax_passing.config import parse_peer
from jax_passing.errors import ConfigError


def conformance(
    switch: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Test this switch. Nobody else may use it meanwhile.")
    ],
    seed: Annotated[int, typer.Option(min=0, help="Draw the first random exchange from this seed.")] = 0,
    exchanges: Annotated[int, typer.Option(min=0, help="Play this number of random exchanges.")] = 100,
    as_parent: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Be the switch's parent, at the address that its --parent names."),
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The switch's own key, if it was started with one.")
    ] = None,
) -> None:
    """Test whether a switch does what docs/internals/protocol.md says: packet by packet, byte by byte.

    This machine plays all workers of the jobs, and the switch's parent if it is to have one. Exit code 1 if a case
    fails.
    """
    from rich.console import Console

    from jax_passing.conformance import run as suite
    from jax_passing.conformance.live.suite import LiveSwitch
    from jax_passing.conformance.switch_under_test import UntestableError
    from jax_passing.protocol import keys

    address = _parse_address("--switch", switch)
    parent_at = None if as_parent is None else _parse_address("--as-parent", as_parent)
    key = keys.read_key(key_file, keys.SWITCH)
    try:
        with closing(LiveSwitch(address, parent_at, key)) as under_test:
            passed = suite.report(
                under_test, seed, exchanges, Console(highlight=False, width=None if sys.stdout.isatty() else 160)
            )
    except UntestableError as error:
        text = f"The switch at {switch} can't be tested: {error}"
        sys.exit(f"jax-passing: {text}{'' if text.endswith(('.', '?')) else '.'}")  # the switch's words are sentences
    raise typer.Exit(0 if passed else 1)


def _parse_address(option: str, text: str) -> tuple[str, int]:
    try:
        return parse_peer(text)
    except ValueError as error:
        raise ConfigError(f"Bad value {text!r} of {option}: {error}.") from error
