"""`jax-passing plan`: what each strategy would take."""

from typing import Annotated

import typer

from jax_passing.errors import ConfigError


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
