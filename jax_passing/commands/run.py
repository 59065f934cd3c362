"""`jax-passing run`: several hosts on one machine, or on several over ssh."""

import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Annotated

import typer

from jax_passing.commands.launch import SwitchOption
from jax_passing.errors import ConfigError


def run(
    script: Annotated[
        str,
        typer.Argument(metavar="SCRIPT", help="Each host runs this script of Python. Options of `run` come before it."),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARG", help="The script gets what follows its name, options too."),
    ] = None,
    hosts: Annotated[
        str,
        typer.Option(
            "--hosts",
            "-n",
            metavar="COUNT | NAME,...",
            help="The number of hosts, each a process of this machine; or machines, with a host on each, over ssh.",
        ),
    ] = "2",
    devices_per_host: Annotated[int, typer.Option(min=1, help="The CPU devices of each host.")] = 1,
    switch: SwitchOption = None,
    restarts: Annotated[
        int, typer.Option(min=0, help="How often hosts that die start again, in all; an elastic session continues.")
    ] = 0,
    for_jax: Annotated[
        bool,
        typer.Option(
            "--for-jax",
            help="Have JAX's own collectives go through the switch. The script calls jax.distributed.initialize.",
        ),
    ] = False,
    module: Annotated[
        bool, typer.Option("-m", help="Take SCRIPT for the name of a module, as python -m does.")
    ] = False,
    only_print: Annotated[
        bool,
        typer.Option("--print", help="Print the commands that would start the same hosts on a cluster, and end."),
    ] = False,
) -> None:
    """Run a script on several hosts: processes of this machine, or of several machines.

    Under Slurm, Open MPI or Kubernetes, start the script with their launcher instead: then ranks are found. `--print`
    says how.
    """
    from jax_passing.commands.launch import elsewhere, launcher, starting

    command = ["-m", script] if module else [script]
    arguments = [*command, *(arguments or ())]
    if only_print:
        typer.echo(elsewhere.commands(arguments, hosts, devices_per_host, switch, for_jax))
        return
    if not starting.machines_of(hosts)[1]:  # else it is looked for on other machines, whose files may differ
        _check_exists(script, module)
    raise typer.Exit(launcher.run(arguments, hosts, devices_per_host, switch, restarts, for_jax))


def _check_exists(script: str, module: bool) -> None:
    """Checks before anything is started that the script or module exists, and is no executable. Raises ConfigError.

    Python itself says the rest: whether a package has the module, and what `run -- -X dev SCRIPT` means.
    """
    if module:
        package = script.partition(".")[0]
        if package and PathFinder.find_spec(package, ["", *sys.path]) is None and find_spec(package) is None:
            raise ConfigError(
                f"Nothing was started: there is no module {package!r}, neither in {os.getcwd()} nor among what is "
                f"installed for {sys.executable}."
            )
    elif not script.startswith("-"):
        path = os.path.abspath(script)
        exists = os.path.exists(path)
        if not exists or _is_elf(path):
            wrong = f"{path} is an executable, not a script" if exists else f"there is no file {path}"
            raise ConfigError(
                f"Nothing was started: {wrong}. After its options `run` takes the script, without `python` before it: "
                "jax-passing run --hosts 2 SCRIPT."
            )


def _is_elf(path: str) -> bool:
    """Tells whether a file is an executable of Linux, such as Python itself."""
    if not os.path.isfile(path):  # a pipe would wait for its writer
        return False
    with suppress(OSError), open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"
    return False
