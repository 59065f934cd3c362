"""`jax-passing run`: several hosts on one machine, or on several over ssh."""

from typing import Annotated

import typer


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT [ARG]", help="Each host runs this script, with these arguments.")
    ],
    hosts: Annotated[
        str,
        typer.Option(
            "--hosts",
            "-n",
            metavar="COUNT | NAME,...",
            help="Start so many hosts, each a process of this machine; or one on each of these machines, over ssh.",
        ),
    ] = "2",
    devices_per_host: Annotated[int, typer.Option(min=1, help="Give each host so many CPU devices.")] = 1,
    switch: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Sum through these switches, which run already.",
            show_default="one started here",
        ),
    ] = None,
    restarts: Annotated[
        int, typer.Option(min=0, help="Start hosts that die again, so many times in all; an elastic session goes on.")
    ] = 0,
    module: Annotated[
        bool, typer.Option("-m", help="Take SCRIPT for the name of a module, as python -m does.")
    ] = False,
) -> None:
    """Run a script on several hosts: processes of this machine, or of several machines.

    Under Slurm, Open MPI or Kubernetes, start the script with their launcher instead: then ranks are found.
    """
    from jax_passing.commands import launcher

    arguments = ["-m", *command] if module else command
    raise typer.Exit(launcher.run(arguments, hosts, devices_per_host, switch, restarts))
