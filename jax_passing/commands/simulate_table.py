"""`jax-passing simulate` prints and draws this: tables, JSON, and curves over the number of hosts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from jax_passing.commands.bench.table import require_matplotlib
from jax_passing.commands.plan_table import seconds
from jax_passing.predict.models import SEQUENCES
from jax_passing.predict.sums import SimulatedSum
from jax_passing.predict.training import SimulatedTraining, Training


@dataclass(frozen=True)
class Results:
    """Predictions, by cluster.

    Attributes:
      simulated: each cluster's sums, or trainings with them; the baseline's are among them.
      size_bytes: size of a sum, where nothing is trained.
      baseline: the scheme that speed-ups are over.
      shown: the schemes to show.
      training: what is trained; None: nothing.
    """

    simulated: Sequence[Sequence[SimulatedSum] | Sequence[SimulatedTraining]]
    size_bytes: int
    baseline: str
    shown: Sequence[str]
    training: Training | None

    def records(self) -> list[dict[str, Any]]:
        """Returns a record for each cluster and each scheme, with all digits."""
        found = []
        for own in self.simulated:
            times_s = {_sum(one).scheme: self._time_s(one) for one in own}
            for one in own:
                sum_ = _sum(one)
                if sum_.scheme not in self.shown:
                    continue
                size_bytes = self.training.model.gradient_bytes if self.training else self.size_bytes
                record = {
                    "hosts": sum_.cluster.hosts,
                    "scheme": sum_.scheme,
                    "time_s": times_s[sum_.scheme],
                    "link_bytes": sum_.link_bytes * size_bytes,
                    "bound": sum_.bound_of(size_bytes),
                    "speed_up": times_s[self.baseline] / times_s[sum_.scheme] if self.baseline in times_s else None,
                }
                if isinstance(one, SimulatedTraining):
                    record |= {
                        "compute_s": one.compute_s,
                        "sums_s": one.sums_s,
                        "rows_per_s": one.rows_per_s,
                        "efficiency": one.efficiency,
                    }
                found.append(record)
        return found

    def as_json(self) -> dict[str, Any]:
        training = None
        if self.training:
            model = self.training.model
            training = asdict(self.training) | {"model": model.name, "pace": str(self.training.pace)}
        clusters = [asdict(_sum(own[0]).cluster) for own in self.simulated if own]
        return {
            "clusters": clusters,
            "size_bytes": None if self.training else self.size_bytes,
            "training": training,
            "baseline": self.baseline,
            "predictions": self.records(),
        }

    def title(self) -> str:
        cluster = _sum(next(own[0] for own in self.simulated if own)).cluster
        what = f"{self.size_bytes / 2**20:g} MiB of float32 per device"
        if self.training:
            model, rows = self.training.model.name, self.training.rows
            row = "sequences" if model in SEQUENCES else "images"
            what = f"{model}, {rows} {row} a device, {self.training.flops_per_s / 1e12:g} TFLOP/s, {self.training.pace}"
        where = f"{cluster.devices_per_host} devices a host, {cluster.link_gbit:g} Gbit/s"
        if cluster.rack_hosts:
            where += f", racks of {cluster.rack_hosts}, oversubscription {cluster.oversubscription:g}"
        extras = [
            *([f"loss {cluster.loss:g}"] if cluster.loss else []),
            *([f"{cluster.slots} chunks in flight"] if cluster.slots else []),
            *([f"wire {cluster.wire}"] if cluster.wire != "full" else []),
            *(["links only"] if cluster.links_only else []),
        ]
        return f"predicted: {what},\n{', '.join([where, *extras])}"

    def table(self) -> Table:
        table = Table(title=self.title(), title_justify="left", title_style="", box=box.SIMPLE)
        table.add_column("hosts", justify="right", no_wrap=True)
        table.add_column("scheme", no_wrap=True)
        table.add_column("step" if self.training else "predicted", justify="right", no_wrap=True)
        if self.training:
            for heading in ("a second", "efficiency"):
                table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("MiB\non a link", justify="right")
        table.add_column(f"x\n{self.baseline}", justify="right")
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
                "-" if record["speed_up"] is None else f"{record['speed_up']:.2f}",
                record["bound"].removeprefix("the "),
            )
            hosts = record["hosts"]
        return table

    def plot(self, path: Path) -> None:
        """Draws two panels over the number of hosts: times (or the efficiency of training), and speed-ups."""
        pyplot = require_matplotlib()
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4), layout="constrained")
        records = self.records()
        value = "efficiency" if self.training else "time_s"
        for scheme in self.shown:
            own = [record for record in records if record["scheme"] == scheme]
            hosts = [record["hosts"] for record in own]
            left.plot(hosts, [record[value] for record in own], marker="o", ms=3, label=scheme)
            if scheme != self.baseline and all(record["speed_up"] for record in own):
                right.plot(hosts, [record["speed_up"] for record in own], marker="o", ms=3, label=scheme)
        left.set(xscale="log", xlabel="hosts", ylabel="efficiency" if self.training else "time of a sum (s)")
        left.set_yscale("linear" if self.training else "log")
        right.set(xscale="log", yscale="log", xlabel="hosts", ylabel=f"speed-up over {self.baseline}")
        for panel in (left, right):
            panel.grid(alpha=0.3)
        figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize="small")
        figure.suptitle(self.title(), fontsize="medium")
        figure.savefig(path, dpi=80)
        pyplot.close(figure)

    def _time_s(self, one: SimulatedSum | SimulatedTraining) -> float:
        return one.step_s if isinstance(one, SimulatedTraining) else one.time_s(self.size_bytes)


def _sum(one: SimulatedSum | SimulatedTraining) -> SimulatedSum:
    return one.sum if isinstance(one, SimulatedTraining) else one
