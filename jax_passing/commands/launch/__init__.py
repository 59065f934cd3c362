"""The processes that `jax-passing run` and `bench` start, here and on other machines."""

from typing import Annotated

import typer

SwitchOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,...",
        help="Sum through these switches, which run already.",
        show_default="one started here",
    ),
]
