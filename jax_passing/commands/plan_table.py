"""`jax-passing plan` prints this, as a table or as JSON: the predictions of one sum, and why."""

from dataclasses import asdict
from typing import Any

from rich.table import Table

from jax_passing.predict.cluster import Cluster
from jax_passing.predict.parts import predict_collectives
from jax_passing.predict.sums import SCHEME_OF, Prediction, Strategy, all_costs, choose, fits_flat, predict, ranks_max
from jax_passing.protocol.packet import WORKERS_MAX

SCHEMES: dict[str, str] = dict(SCHEME_OF) | {"parameter server": "server", "servers, co-located": "shards"}
"""The rows of the table, by their names there: strategies, and parameter servers."""


def predictions(cluster: Cluster, elements: int) -> dict[str, Prediction]:
    """Predicts all strategies, and parameter servers; flat only where the switches have enough ranks."""
    costs = all_costs(cluster, list(SCHEMES.values()))
    return {
        name: costs[scheme].of(4 * elements) for name, scheme in SCHEMES.items() if name != "flat" or fits_flat(cluster)
    }


def seconds(time_s: float) -> str:
    """Formats a time with three digits: "1.23 ms"."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if time_s * factor >= 1 or unit == "us":
            return f"{time_s * factor:#.3g} {unit}".replace(". ", " ")
    raise AssertionError


def _title(cluster: Cluster, elements: int) -> str:
    if cluster.shards == 0 and cluster.hosts > WORKERS_MAX:
        where = f"a tree of switches with {WORKERS_MAX} ports each"
    elif cluster.shards == 0:
        where = "a switch with a port for each host"
    elif cluster.colocated:
        where = f"shards behind the links of {cluster.shards} hosts"
    else:
        where = f"{cluster.shards} shard{'s' * (cluster.shards > 1)}, a link each"
    return (
        f"{elements * 4 / 2**20:g} MiB of float32 per device, {cluster.hosts} hosts x {cluster.devices_per_host} "
        f"devices, {cluster.link_gbit:g} Gbit/s,\n{where}"
    )


def make(cluster: Cluster, elements: int) -> Table:
    table = Table(title=_title(cluster, elements), title_justify="left", title_style="")
    table.add_column("strategy")
    table.add_column("predicted", justify="right")
    table.add_column("MiB on a link", justify="right")
    table.add_column("bound by")
    for name, one in predictions(cluster, elements).items():
        link = f"{one.link_bytes / 2**20:.1f}" if one.link_bytes else "-"
        table.add_row(name, seconds(one.time_s), link, one.bound)
    return table


def make_collectives(cluster: Cluster, elements: int) -> Table:
    """Makes the table of collectives in which each host has a part of the array."""
    table = Table(
        title=f"{elements * 4 / 2**20:g} MiB that each device gives to psum_scatter, or gets of the others",
        title_justify="left",
        title_style="",
    )
    table.add_column("collective")
    for name in ("predicted", "MiB up", "MiB down", "with all lanes", "native"):
        table.add_column(name, justify="right")
    for one in predict_collectives(cluster, 4 * elements):
        mebibytes = [f"{count / 2**20:.1f}" if count else "-" for count in (one.up_bytes, one.down_bytes)]
        native = "-" if one.native_s is None else seconds(one.native_s)
        table.add_row(one.collective, seconds(one.time_s), *mebibytes, seconds(one.all_lanes_s), native)
    return table


def _choice(cluster: Cluster, elements: int) -> Strategy:
    """Names what `auto` takes if the mesh spans the hosts."""
    return choose(cluster, elements, ("passing", "native"))


def conclusion(cluster: Cluster, elements: int) -> str:
    """Says which strategy `auto` chooses, and why."""
    chosen = _choice(cluster, elements)
    other: Strategy = "native" if chosen == "passing" else "passing"
    best, worse = (predict(cluster, s, elements) for s in (chosen, other))
    if cluster.hosts == 1:
        return f"auto takes {chosen}. One host has nobody to send to."
    ratio = worse.time_s / best.time_s
    lines = [f"auto takes {chosen}: {ratio:.2f} times as fast as {other}, which is bound by {worse.bound}."]
    if cluster.shards == 0 and cluster.hosts == 2:
        lines.append("Two hosts gain no bandwidth: a ring of two sends each byte once, too.")
    elif cluster.shards == 1:
        lines.append("A switch behind one link is a parameter server: give it a port for each host.")
    if not fits_flat(cluster):
        ranks = cluster.hosts * cluster.devices_per_host
        of = "one switch" if cluster.hosts <= WORKERS_MAX else "a tree"
        lines.append(f"flat needs a rank for each device: {ranks} are more than the {ranks_max(cluster)} of {of}.")
    return "\n".join(lines)


def as_json(cluster: Cluster, elements: int) -> dict[str, Any]:
    """Returns what is printed, with all digits."""
    return {
        "cluster": asdict(cluster),
        "size_bytes": 4 * elements,
        "dtype": "float32",
        "predictions": [{"strategy": name} | asdict(one) for name, one in predictions(cluster, elements).items()],
        "collectives": [asdict(one) for one in predict_collectives(cluster, 4 * elements)],
        "auto": _choice(cluster, elements),
        "conclusion": conclusion(cluster, elements),
    }
