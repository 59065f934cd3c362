"""`jax-passing run`: several hosts on one machine."""

from typing import Annotated

import typer


def run(
    command: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARG]", help="What each host runs.")],
    hosts: Annotated[int, typer.Option("--hosts", "-n", min=1, max=64, help="Processes, one a host.")] = 2,
    devices_per_host: Annotated[int, typer.Option(min=1, help="CPU devices of each.")] = 1,
    switch: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="Running switches.", show_default="one started here")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as with python -m.")] = False,
) -> None:
    """Run a script on several hosts of this machine.

    Under Slurm, Open MPI or Kubernetes, start the script with their launcher instead; ranks are found.
    """
    from jax_passing.commands import launcher

    arguments = ["-m", *command] if module else command
    raise typer.Exit(launcher.run(arguments, hosts, devices_per_host, switch))
