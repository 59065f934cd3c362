"""`jax-passing switch`: the switch, as a process."""

import enum
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

_NO_SETTINGS = ("config", "verbose", "quiet", "log_format")


class LogFormat(enum.StrEnum):
    PLAIN = "plain"
    JSON = "json"


def switch(
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Listen at this address. Port 0 takes any that is free.",
            show_default="0.0.0.0:7171",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Read settings from this TOML file. Flags win over variables (JAX_PASSING_SWITCH_LISTEN and so on), "
            "which win over the file.",
            show_default="JAX_PASSING_SWITCH_CONFIG",
        ),
    ] = None,
    slot_total: Annotated[int | None, typer.Option(help="The slots of the switch.", show_default="16384")] = None,
    slots_per_job: Annotated[
        int | None,
        typer.Option(help="The slots of each job, a power of two.", show_default="1024; bmv2: 16"),
    ] = None,
    lanes_per_chunk: Annotated[
        int | None, typer.Option(help="The 32-bit lanes of a packet.", show_default="360")
    ] = None,
    lease_s: Annotated[
        float | None, typer.Option(help="A host that is silent for so long is lost.", show_default="30")
    ] = None,
    slots_per_address: Annotated[
        int | None,
        typer.Option(help="The most slots of all jobs with hosts at one address.", show_default="half of all"),
    ] = None,
    connections_per_address: Annotated[
        int | None, typer.Option(help="The most connections from one address.", show_default="256")
    ] = None,
    link_gbit: Annotated[
        float | None,
        typer.Option(help="The switch stands behind one link of this rate.", show_default="a port for each host"),
    ] = None,
    multicast: Annotated[
        bool | None, typer.Option(help="Send results by multicast if all hosts of a job hear it.", show_default="yes")
    ] = None,
    data_plane: Annotated[
        str | None,
        typer.Option(help="Packets are added up by this: software, ebpf, bmv2 or p4runtime.", show_default="software"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="The data plane runs on this, unless it is software. For ebpf, name the network devices behind which "
            "the hosts are (br0, or eth1,eth2). For bmv2 and p4runtime, name the TOML file that describes the switch.",
        ),
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="In a tree, pass sums on to this switch, one level up.", show_default="none"
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Add up packets with so many threads, 1, 2, 4, 8 or 16, each at a UDP port of its own: that of "
            "--listen, and those that follow.",
            show_default="a quarter of the cores",
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Hosts must have their job's key, which `jax-passing key` derives from the one in this file.",
            show_default="anybody may join",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Tell metrics (/metrics) and whether jobs are admitted (/health) by HTTP. A port alone is for this "
            "machine.",
            show_default="none",
        ),
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Show how the switch and its jobs are doing on a web page. A port alone is for this machine.",
            show_default="none",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log each rank that joins or leaves, too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log only what is wrong, not how jobs begin and end.")] = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="Write log entries as lines of text, or each as an object of JSON.")
    ] = LogFormat.PLAIN,
) -> None:
    """Run a switch, which adds up what hosts send. SIGTERM ends it."""
    arguments = {name: value for name, value in locals().items() if name not in _NO_SETTINGS}
    from jax_passing.switch.server.output import JsonFormatter, LogHandler, PlainFormatter
    from jax_passing.switch.server.serve import run
    from jax_passing.switch.server.settings import resolve

    handler = LogHandler(sys.stderr)
    plain = PlainFormatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else plain)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if not quiet:
        logging.getLogger("jax_passing").setLevel(logging.DEBUG if verbose else logging.INFO)
    run(resolve(arguments, config))
