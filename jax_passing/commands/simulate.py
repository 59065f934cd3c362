"""`jax-passing simulate`: sums and training on clusters that aren't here."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from jax_passing.commands.quantities import parse_bytes
from jax_passing.errors import ConfigError


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(one.strip() for one in text.split(",")))


def _hosts(text: str) -> list[int]:
    try:
        return sorted(map(int, _names(text)))
    except ValueError as error:
        raise ConfigError(f"--hosts has numbers with commas, for example 8,64,512; not {text!r}.") from error


def simulate(
    hosts: Annotated[
        str, typer.Option(metavar="H,...", help="So many hosts sum, up to 4096; several numbers with commas.")
    ] = "8,64,512",
    devices_per_host: Annotated[int, typer.Option(help="Each host has so many devices.")] = 1,
    size_bytes: Annotated[
        int,
        typer.Option(
            "--bytes", parser=parse_bytes, metavar="BYTES", help="Each device gives a float32 buffer of this size."
        ),
    ] = "64M",  # type: ignore[assignment]
    schemes: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Only these ways to sum are simulated.", show_default="all"),
    ] = None,
    baseline: Annotated[str, typer.Option(help="Speed-ups are over this scheme.")] = "server",
    link_gbit: Annotated[float, typer.Option(help="Each host's link has this rate.")] = 10.0,
    in_host_gbit: Annotated[
        float | None,
        typer.Option(
            help="A host's devices reach each other at this rate.", show_default="the host's processor adds up"
        ),
    ] = None,
    rack_hosts: Annotated[
        int | None, typer.Option(help="Racks have so many hosts.", show_default="all hosts are at the centre")
    ] = None,
    oversubscription: Annotated[
        float, typer.Option(help="A rack's link has the rate of its hosts' links together, divided by this.")
    ] = 1.0,
    loss: Annotated[float, typer.Option(help="Packets get lost with this probability.")] = 0.0,
    slots: Annotated[
        int | None,
        typer.Option(help="A rank has so many chunks in flight at most.", show_default="as many as it takes"),
    ] = None,
    wire_dtype: Annotated[
        str, typer.Option(help="Elements travel to a switch or a server as full, int16, int8 or int4.")
    ] = "full",
    round_trip_us: Annotated[
        float, typer.Option(help="From a host to the switch and to a host it takes so long.")
    ] = 60.0,
    links_only: Annotated[
        bool, typer.Option("--links-only", help="Processors take no time, as if hardware did all that they do.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Train gpt2-small, gpt2-xl, alexnet, vgg16 or resnet50.", show_default="one sum"),
    ] = None,
    rows: Annotated[int, typer.Option(help="Each device has so many images, or sequences of 1024 tokens.")] = 32,
    tflops: Annotated[float, typer.Option(help="A device reaches so many 10^12 operations a second.")] = 10.0,
    overlap: Annotated[
        bool, typer.Option("--overlap/--no-overlap", help="Sums travel while the backward pass goes on.")
    ] = True,
    pace: Annotated[
        str, typer.Option(help="Hosts wait for each other: synchronous, stale:S or local:H.")
    ] = "synchronous",
    stragglers: Annotated[int, typer.Option(help="So many hosts are slow in each step.")] = 0,
    slowdown: Annotated[float, typer.Option(help="A slow host computes so many times as long.")] = 2.0,
    in_turns: Annotated[
        bool, typer.Option("--in-turns", help="Other hosts are slow in each step, not always the same.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw curves over the hosts into this file, PNG or SVG.")] = None,
) -> None:
    """Simulate sums, or training, on up to 4096 hosts. Needs SimGrid."""
    from rich.console import Console

    from jax_passing.commands import simulate_table
    from jax_passing.commands.bench.table import require_matplotlib
    from jax_passing.scaling.cluster import SimulatedCluster
    from jax_passing.scaling.models import load
    from jax_passing.scaling.pace import Stragglers, parse_pace
    from jax_passing.scaling.schemes import SCHEMES
    from jax_passing.scaling.sums import simulate_sums
    from jax_passing.scaling.training import Training, train

    if plot is not None:
        require_matplotlib()  # before a long simulation
    clusters = [
        SimulatedCluster(
            hosts=one,
            devices_per_host=devices_per_host,
            link_gbit=link_gbit,
            rack_hosts=rack_hosts,
            oversubscription=oversubscription,
            loss=loss,
            slots=slots,
            wire=wire_dtype,
            links_only=links_only,
            in_host_gbit=in_host_gbit,
            round_trip_us=round_trip_us,
        )
        for one in _hosts(hosts)
    ]
    training = None
    if model is not None:
        training = Training(
            model=load(model),
            rows=rows,
            flops_per_s=tflops * 1e12,
            overlap=overlap,
            pace=parse_pace(pace),
            stragglers=Stragglers(stragglers, slowdown, in_turns),
        )
    wanted = list(SCHEMES) if schemes is None else _names(schemes)
    simulated = simulate_sums(clusters, [*wanted, *([baseline] if baseline not in wanted else [])])
    if schemes is not None and (
        absent := [one for one in wanted if one not in {a.scheme for b in simulated for a in b}]
    ):
        raise ConfigError(
            f"None of these clusters can have {', '.join(absent)}. Set --rack-hosts for tree and in-rack; take 2, 4, "
            "8, ... hosts for halving-doubling, and a wider --wire-dtype for more ranks."
        )
    results = simulate_table.Results(
        [train(training, sums) for sums in simulated] if training else simulated, size_bytes, baseline, wanted, training
    )
    if as_json:
        typer.echo(json.dumps(results.as_json(), indent=1))
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        console.print(results.table())
    if plot is not None:
        results.plot(plot)
