"""The command line. Of these commands only `bench` loads jax, and only in a process that is a host."""

import logging
import os
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from jax_passing.config import PREFIX
from jax_passing.errors import ConfigError, PassingError

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
    slots_per_job: Annotated[int | None, typer.Option(help="A power of two.", show_default="1024; bmv2: 32")] = None,
    lanes_per_chunk: Annotated[int | None, typer.Option(help="32-bit lanes in a packet.", show_default="360")] = None,
    lease_s: Annotated[float | None, typer.Option(help="A host silent for so long is lost.", show_default="30")] = None,
    link_gbit: Annotated[
        float | None, typer.Option(help="The switch stands behind one link of this rate.", show_default="a port a host")
    ] = None,
    multicast: Annotated[
        bool | None, typer.Option(help="Send results by multicast if all hosts of a job hear it.", show_default="yes")
    ] = None,
    data_plane: Annotated[
        str | None,
        typer.Option(help="software, ebpf, bmv2 or p4runtime: what adds up packets.", show_default="software"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="What the data plane runs on, unless it is software. ebpf: the network devices behind which the hosts "
            "are (br0, or eth1,eth2). bmv2, p4runtime: the TOML file that describes the switch.",
        ),
    ] = None,
    parent: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The switch one level up, of a tree.", show_default="none")
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Log joins and ends of jobs.")] = False,
) -> None:
    """Run a switch: adds up what hosts send. SIGTERM ends it."""
    from jax_passing.switch import serve

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    settings = serve.resolve(
        {
            "listen": listen,
            "slot_total": slot_total,
            "slots_per_job": slots_per_job,
            "lanes_per_chunk": lanes_per_chunk,
            "lease_s": lease_s,
            "link_gbit": link_gbit,
            "multicast": multicast,
            "data_plane": data_plane,
            "device": device,
            "parent": parent,
        },
        config,
    )
    serve.run(settings)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
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


@app.command()
def plan(
    hosts: Annotated[int, typer.Option(min=1, max=64)] = 8,
    devices_per_host: Annotated[int, typer.Option(min=1)] = 1,
    mebibytes: Annotated[float, typer.Option(min=1e-6, max=1e9, help="Size of each device's float32 buffer.")] = 64.0,
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

    from jax_passing.collective.planner import Cluster
    from jax_passing.commands import plan_table

    try:
        cluster = Cluster(hosts, devices_per_host, link_gbit, shards, colocated, shard_link_gbit, shared_cores)
    except ValueError as error:
        raise ConfigError(f"This can't be planned: {error}.") from error
    console = Console(highlight=False)
    elements = max(1, int(mebibytes * 2**20 / 4))
    console.print(plan_table.make(cluster, elements))
    console.print(plan_table.conclusion(cluster, elements), soft_wrap=True)


def _bytes(text: str) -> int:
    """Bytes from "4096", "64K", "64M", "1G" (powers of 1024, as in nccl-tests)."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if match is None or int(match[1]) == 0:
        raise typer.BadParameter(f"{text!r}: expected bytes, for example 4096, 64K, 64M or 1G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


@app.command()
def bench(
    hosts: Annotated[
        int | None, typer.Option("--hosts", "-n", min=1, max=64, help="Start so many hosts on this machine.")
    ] = None,
    devices_per_host: Annotated[int | None, typer.Option(min=1, help="CPU devices of each.", show_default="1")] = None,
    switch: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="Running switches.", show_default="one started here")
    ] = None,
    min_bytes: Annotated[int, typer.Option("--min-bytes", "-b", parser=_bytes, metavar="BYTES")] = "1K",  # type: ignore[assignment]
    max_bytes: Annotated[int, typer.Option("--max-bytes", "-e", parser=_bytes, metavar="BYTES")] = "64M",  # type: ignore[assignment]
    factor: Annotated[int, typer.Option("--factor", "-f", min=2, help="From one size to the next.")] = 4,
    dtype: Annotated[str, typer.Option("--dtype", "-d", help="Of the elements.")] = "float32",
    iterations: Annotated[int, typer.Option(min=1, help="Timed sums of each size.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Sums of each size before them.")] = 3,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file too.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a PNG; needs matplotlib.")] = None,
) -> None:
    """Measure psum over a sweep of sizes; print a table as nccl-tests does.

    With --hosts (or without --switch): hosts on this machine. Else this process is one host of a job, whose name, rank
    and world size are found as jax_passing.init finds them: start it on all hosts with their launcher.
    """
    from jax_passing.commands import bench_table

    if plot is not None:
        bench_table.require_matplotlib()
        if plot.suffix != ".png":
            raise ConfigError(f"Can't draw {plot}: the plot is a PNG, so its name must end in .png.")
    for path in (json, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"Can't write {path}: {path.absolute().parent} is no folder.")
        if path is not None and path.is_dir():
            raise ConfigError(f"Can't write {path}: it is a folder. Name a file in it.")
    if hosts is None and (switch is not None or os.environ.get(PREFIX + "SWITCH")):
        if devices_per_host is not None:
            os.environ["JAX_NUM_CPU_DEVICES"] = str(devices_per_host)  # before jax is loaded
        from jax_passing.commands import bench as sweep

        options = sweep.Options(min_bytes, max_bytes, factor, dtype, iterations, warmup)
        raise typer.Exit(sweep.run(options, switch, json, plot))
    from jax_passing.commands import launcher

    flags = {"min-bytes": min_bytes, "max-bytes": max_bytes, "factor": factor, "dtype": dtype}
    flags |= {"iterations": iterations, "warmup": warmup, "json": json, "plot": plot}
    given = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    command = ["-P", "-m", "jax_passing", "bench", *given]
    raise typer.Exit(launcher.run(command, hosts or 2, devices_per_host or 1, switch))


@app.command()
def conformance(
    switch: Annotated[str, typer.Option(metavar="HOST:PORT", help="Idle but for this test.")],
    seed: Annotated[int, typer.Option(min=0, help="Of the first random exchange.")] = 0,
    exchanges: Annotated[int, typer.Option(min=0, help="Random exchanges.")] = 100,
    as_parent: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Be the switch's parent; it was started with --parent.")
    ] = None,
) -> None:
    """Test whether a switch does what docs/protocol.md says: packet by packet, byte by byte.

    This machine plays all workers of the jobs, and the switch's parent if it is to have one. Exit code 1 if a case
    fails.
    """
    from rich.console import Console

    from jax_passing.config import parse_peer
    from jax_passing.conformance import run as suite
    from jax_passing.conformance.devices import DeviceError
    from jax_passing.conformance.live import LiveSwitch

    try:
        address, parent_at = parse_peer(switch), parse_peer(as_parent) if as_parent else None
    except ValueError as error:
        raise ConfigError(f"Bad address in --switch or --as-parent: {error}.") from error
    try:
        with closing(LiveSwitch(address, parent_at)) as device:
            passed = suite.report(
                device, seed, exchanges, Console(highlight=False, width=None if sys.stdout.isatty() else 160)
            )
    except DeviceError as error:
        text = f"The switch at {switch} can't be tested: {error}"
        sys.exit(f"jax-passing: {text}{'' if text.endswith(('.', '?')) else '.'}")  # the switch's words are sentences
    raise typer.Exit(0 if passed else 1)


def main() -> None:
    """Errors of ours are for users: the message, no traceback."""
    try:
        app(prog_name="jax-passing")
    except PassingError as error:
        sys.exit(f"jax-passing: {error}")
