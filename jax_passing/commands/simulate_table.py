"""`jax-passing simulate` prints this, as a table or as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table

from jax_passing.commands.plan_table import seconds
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.models import SEQUENCES
from jax_passing.predict.sums import all_costs
from jax_passing.predict.training import Training, train

BASELINE = "server"  # a parameter server, which speed-ups are over


@dataclass(frozen=True)
class Results:
    """Predictions for some clusters, which differ in their hosts.

    Attributes:
      clusters: the clusters.
      size_bytes: size of a sum, where nothing is trained.
      training: what is trained; None: nothing.
    """

    clusters: Sequence[Cluster]
    size_bytes: int
    training: Training | None

    def records(self) -> list[dict[str, Any]]:
        """Returns a record for each cluster and each scheme, with all digits."""
        found: list[dict[str, Any]] = []
        size_bytes = self.training.model.gradient_bytes if self.training else self.size_bytes
        for cluster in self.clusters:
            own = []
            for scheme, costs in all_costs(cluster).items():
                sum_ = costs.of(size_bytes)
                record: dict[str, Any] = {"hosts": cluster.hosts, "scheme": scheme, "time_s": sum_.time_s}
                record |= {"link_bytes": sum_.link_bytes, "bound": sum_.bound}
                if self.training:
                    trained = train(self.training, costs)
                    record |= {
                        "time_s": trained.step_s,
                        "compute_s": trained.compute_s,
                        "sums_s": trained.sums_s,
                        "rows_per_s": trained.rows_per_s,
                        "efficiency": trained.efficiency,
                    }
                own.append(record)
            baseline_s = next(one["time_s"] for one in own if one["scheme"] == BASELINE)
            found += [one | {"speed_up": baseline_s / one["time_s"]} for one in own]
        return found

    def as_json(self) -> dict[str, Any]:
        training = None
        if self.training:
            training = asdict(self.training) | {"model": self.training.model.name}
        return {
            "clusters": [asdict(one) for one in self.clusters],
            "size_bytes": None if self.training else self.size_bytes,
            "training": training,
            "baseline": BASELINE,
            "predictions": self.records(),
        }

    def title(self) -> str:
        cluster = self.clusters[0]
        what = f"{self.size_bytes / 2**20:g} MiB of float32 per device"
        if self.training:
            model, rows = self.training.model.name, self.training.rows
            row = "sequences" if model in SEQUENCES else "images"
            what = f"{model}, {rows} {row} a device, {self.training.flops_per_s / 1e12:g} TFLOP/s"
        where = f"{cluster.devices_per_host} devices a host, {cluster.link_gbit:g} Gbit/s"
        if cluster.rack_hosts:
            where += f", racks of {cluster.rack_hosts}, oversubscription {cluster.oversubscription:g}"
        return f"predicted: {what},\n{where}{', links only' if cluster.links_only else ''}"

    def table(self) -> Table:
        table = Table(title=self.title(), title_justify="left", title_style="", box=box.SIMPLE)
        table.add_column("hosts", justify="right", no_wrap=True)
        table.add_column("scheme", no_wrap=True)
        table.add_column("step" if self.training else "predicted", justify="right", no_wrap=True)
        if self.training:
            for heading in ("a second", "efficiency"):
                table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("MiB\non a link", justify="right")
        table.add_column(f"x\n{BASELINE}", justify="right")
        table.add_column("sums bound by", no_wrap=True)
        hosts = None
        for record in self.records():
            if hosts not in (None, record["hosts"]):
                table.add_section()
            trained = (f"{record['rows_per_s']:,.0f}", f"{record['efficiency']:.1%}") if self.training else ()
            table.add_row(
                str(record["hosts"]) if hosts != record["hosts"] else "",
                record["scheme"],
                seconds(record["time_s"]),
                *trained,
                f"{record['link_bytes'] / 2**20:,.1f}",
                f"{record['speed_up']:.2f}",
                record["bound"].removeprefix("the "),
            )
            hosts = record["hosts"]
        return table
