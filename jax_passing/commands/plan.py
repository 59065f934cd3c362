"""`jax-passing plan` predicts the time of a sum under each strategy."""

import json
from typing import Annotated

import typer

from jax_passing.commands.quantities import parse_bytes
from jax_passing.config import RANKS_MAX
from jax_passing.errors import ConfigError
from jax_passing.protocol.packet import WORKERS_MAX


def plan(
    hosts: Annotated[
        int,
        typer.Option(min=1, max=RANKS_MAX, help=f"The number of hosts; above {WORKERS_MAX}, in a tree of switches."),
    ] = 8,
    devices_per_host: Annotated[int, typer.Option(min=1, help="The devices of each host.")] = 1,
    size_bytes: Annotated[
        int,
        typer.Option(
            "--bytes",
            parser=parse_bytes,
            metavar="BYTES",
            help="Each device gives a float32 buffer of this size. K, M and G are powers of 1024, also as KB or KiB.",
        ),
    ] = "64M",  # type: ignore[assignment]
    link_gbit: Annotated[float, typer.Option(min=1e-3, help="Each host's link has this rate.")] = 10.0,
    shards: Annotated[
        int,
        typer.Option(
            min=0,
            help="The number of switches that share the sum, each behind one link. With 0, one switch has "
            "a port for each host.",
        ),
    ] = 0,
    colocated: Annotated[
        bool, typer.Option("--colocated", help="The shards stand behind the links of the first hosts.")
    ] = False,
    shard_link_gbit: Annotated[
        float | None, typer.Option(min=1e-3, help="Each shard's link has this rate.", show_default="as the hosts'")
    ] = None,
    shared_cores: Annotated[
        int,
        typer.Option(
            min=0, help="Hosts and switches share one machine with this number of cores. With 0, they share nothing."
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the predictions as JSON.")] = False,
) -> None:
    """Predict the time of a sum under each strategy, and the choice of `auto`."""
    from rich.console import Console

    from jax_passing.commands import plan_table
    from jax_passing.predict.cluster import Cluster

    cluster = Cluster(
        hosts,
        devices_per_host,
        link_gbit,
        shards=shards,
        colocated=colocated,
        shard_link_gbit=shard_link_gbit,
        shared_cores=shared_cores,
    )
    if shards and hosts > WORKERS_MAX:
        raise ConfigError(
            f"Nothing can be predicted for this: a shard is one switch, which takes at most {WORKERS_MAX} hosts. Leave "
            f"--shards out to plan a tree of switches for {hosts}."
        )
    elements = max(1, size_bytes // 4)
    if as_json:
        typer.echo(json.dumps(plan_table.as_json(cluster, elements), indent=1))
        return
    console = Console(highlight=False)
    console.print(plan_table.make(cluster, elements))
    console.print(plan_table.conclusion(cluster, elements), soft_wrap=True)
    console.print()
    console.print(plan_table.make_collectives(cluster, elements))
