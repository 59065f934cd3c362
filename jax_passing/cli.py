"""The command line: `jax-passing switch`, `run`, `plan`. None of them loads jax."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from jax_passing.errors import PassingError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Sums over hosts for JAX, inside the network.")


@app.callback()
def _commands() -> None:
    pass


@app.command()
def switch(
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Port 0: any free one.", show_default="0.0.0.0:7171")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with the settings; flags win.")] = None,
    slot_total: Annotated[int | None, typer.Option(help="Slots of the switch.", show_default="16384")] = None,
    slots_per_job: Annotated[int | None, typer.Option(help="A power of two.", show_default="1024")] = None,
    lanes_per_chunk: Annotated[int | None, typer.Option(help="32-bit lanes in a packet.", show_default="360")] = None,
    lease_s: Annotated[float | None, typer.Option(help="A host silent for so long is lost.", show_default="30")] = None,
    link_gbit: Annotated[
        float | None, typer.Option(help="The switch stands behind one link of this rate.", show_default="a port a host")
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Log joins and ends of jobs.")] = False,
) -> None:
    """Run a switch: adds up what hosts send. SIGTERM ends it."""
    from jax_passing import switch as switch_process

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    settings = switch_process.resolve(
        {
            "listen": listen,
            "slot_total": slot_total,
            "slots_per_job": slots_per_job,
            "lanes_per_chunk": lanes_per_chunk,
            "lease_s": lease_s,
            "link_gbit": link_gbit,
        },
        config,
    )
    switch_process.run(settings)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARG]", help="What each host runs.")],
    hosts: Annotated[int, typer.Option("--hosts", "-n", min=1, max=64, help="Processes, one a host.")] = 2,
    devices_per_host: Annotated[int, typer.Option(min=1, help="CPU devices of each.")] = 1,
    switch: Annotated[str, typer.Option(metavar="HOST:PORT", help="A running switch, or one started here.")] = (
        "embedded"
    ),
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as with python -m.")] = False,
) -> None:
    """Run a script on several hosts of this machine.

    Under Slurm, Open MPI or Kubernetes, start the script with their launcher instead; ranks are found.
    """
    from jax_passing import launcher

    arguments = ["-m", *command] if module else command
    raise typer.Exit(launcher.run(arguments, hosts, devices_per_host, None if switch == "embedded" else switch))


@app.command()
def plan(
    hosts: Annotated[int, typer.Option(min=1, max=64)] = 8,
    devices_per_host: Annotated[int, typer.Option(min=1)] = 1,
    mebibytes: Annotated[float, typer.Option(min=1e-6, help="Size of each device's float32 buffer.")] = 64.0,
    link_gbit: Annotated[float, typer.Option(min=1e-3, help="Rate of each host's link.")] = 10.0,
    shards: Annotated[
        int, typer.Option(min=0, help="Aggregators behind one link each; 0: a switch with a port for each host.")
    ] = 0,
    colocated: Annotated[bool, typer.Option(help="The shards stand behind the first hosts' links.")] = False,
    shard_link_gbit: Annotated[float | None, typer.Option(min=1e-3, show_default="as the hosts'")] = None,
    shared_cores: Annotated[int, typer.Option(min=0, help="All run on one machine with so many cores.")] = 0,
) -> None:
    """Predict what each strategy's sum takes, and which one `auto` takes."""
    from rich.console import Console

    from jax_passing import plan_table
    from jax_passing.errors import ConfigError
    from jax_passing.planner import Cluster

    try:
        cluster = Cluster(hosts, devices_per_host, link_gbit, shards, colocated, shard_link_gbit, shared_cores)
    except ValueError as error:
        raise ConfigError(f"This can't be planned: {error}.") from error
    console = Console(highlight=False)
    console.print(plan_table.make(cluster, mebibytes * 2**20))
    console.print(plan_table.conclusion(cluster, mebibytes * 2**20), soft_wrap=True)


def main() -> None:
    """Errors of ours are for users: the message, no traceback."""
    try:
        app(prog_name="jax-passing")
    except PassingError as error:
        sys.exit(f"jax-passing: {error}")


if __name__ == "__main__":
    main()
