"""`jax-passing switch`: the switch, as a process."""

import logging
from pathlib import Path
from typing import Annotated

import typer


def switch(
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Port 0: any free one.", show_default="0.0.0.0:7171")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with the settings. Flags win over variables (JAX_PASSING_SWITCH_LISTEN and so on), which "
            "win over the file.",
            show_default="JAX_PASSING_SWITCH_CONFIG",
        ),
    ] = None,
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
    from jax_passing.switch.serve import run
    from jax_passing.switch.settings import resolve

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    settings = resolve(
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
    run(settings)
