"""`jax-passing simulate`: sums and training on clusters that aren't here."""

import json
import sys
from typing import Annotated

import typer

from jax_passing.commands.quantities import parse_bytes
from jax_passing.errors import ConfigError


def _hosts(text: str) -> list[int]:
    try:
        return sorted({int(one) for one in text.split(",")})
    except ValueError as error:
        raise ConfigError(f"--hosts has numbers with commas, for example 8,64,512; not {text!r}.") from error


def simulate(
    hosts: Annotated[
        str, typer.Option(metavar="H,...", help="The number of hosts, up to 4096; several with commas.")
    ] = "8,64,512",
    devices_per_host: Annotated[int, typer.Option(help="The number of devices of each host.")] = 1,
    size_bytes: Annotated[
        int,
        typer.Option(
            "--bytes", parser=parse_bytes, metavar="BYTES", help="Each device gives a float32 buffer of this size."
        ),
    ] = "64M",  # type: ignore[assignment]
    link_gbit: Annotated[float, typer.Option(help="Each host's link has this rate.")] = 10.0,
    rack_hosts: Annotated[
        int | None, typer.Option(help="The number of hosts of a rack.", show_default="all hosts are at the centre")
    ] = None,
    oversubscription: Annotated[
        float, typer.Option(help="A rack's link has the rate of its hosts' links together, divided by this.")
    ] = 1.0,
    links_only: Annotated[
        bool, typer.Option("--links-only", help="Processors take no time, as if hardware did all that they do.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="Train gpt2-small, gpt2-xl, alexnet, vgg16 or resnet50; batches have 32 rows.", show_default="one sum"
        ),
    ] = None,
    tflops: Annotated[float, typer.Option(help="A device's speed, in 10^12 operations a second.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON.")] = False,
) -> None:
    """Predict sums, or training, on up to 4096 hosts."""
    from rich.console import Console

    from jax_passing.commands import simulate_table
    from jax_passing.predict.cluster import Cluster
    from jax_passing.predict.models import load
    from jax_passing.predict.training import Training

    clusters = [
        Cluster(
            one,
            devices_per_host,
            link_gbit,
            rack_hosts=rack_hosts,
            oversubscription=oversubscription,
            links_only=links_only,
        )
        for one in _hosts(hosts)
    ]
    training = None if model is None else Training(model=load(model), flops_per_s=tflops * 1e12)
    found = simulate_table.Results(clusters, size_bytes, training)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(found.table())
