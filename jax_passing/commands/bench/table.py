"""Measurements of sums as a table with the columns of nccl-tests, as JSON, and as a plot. Pure except for files."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from rich import box
from rich.table import Table

from jax_passing.errors import ConfigError

P99_ITERATIONS = 100
Times = Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(min_length=1)]  # seconds


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row has the times of one system's sums of one size, and what theory says of them.

    Attributes:
      system: its name ("jax_passing", "gloo", …).
      hosts: hosts that summed.
      devices_per_host: devices of each host that summed.
      size_bytes: of the tensor that every device holds.
      dtype: name of its elements' type.
      count: its elements.
      times_s: seconds of each iteration.
      wrong: wrong elements in all checked results; None if they weren't checked.
      in_place: whether the result overwrote the input (a donated argument).
      line_rate_bits_per_s: of a host's link, if known.
      limit_s: the time below which this system can't come on these links.
      predicted_s: the planner's prediction.
      cpu_s: processor time that one sum takes of a host, all its threads together.
    """

    system: str
    hosts: int
    devices_per_host: int = 1
    size_bytes: int
    dtype: str
    count: int
    times_s: Times
    wrong: int | None
    in_place: bool = False
    line_rate_bits_per_s: float | None = None
    limit_s: float | None = None
    predicted_s: float | None = None
    cpu_s: float | None = None

    @property
    def time_s(self) -> float:
        """Returns the median."""
        return statistics.median(self.times_s)

    @property
    def p99_s(self) -> float | None:
        """Returns the 99th percentile; None if there are too few times for one."""
        return statistics.quantiles(self.times_s, n=100)[-1] if len(self.times_s) >= P99_ITERATIONS else None

    @property
    def cpu_ns_per_kb(self) -> float | None:
        """KB: 1,024 bytes, of the tensor that every device holds."""
        return None if self.cpu_s is None else 1e9 * self.cpu_s / (self.size_bytes / 1024)

    @property
    def algbw_bytes_per_s(self) -> float:
        return self.size_bytes / self.time_s

    @property
    def busbw_bytes_per_s(self) -> float:
        devices = self.hosts * self.devices_per_host
        return self.algbw_bytes_per_s * 2 * (devices - 1) / devices

    @property
    def line_rate_share(self) -> float | None:
        """Goodput over line rate: tensor bits a second of a host, over what its link carries."""
        return None if self.line_rate_bits_per_s is None else 8 * self.algbw_bytes_per_s / self.line_rate_bits_per_s

    @property
    def limit_share(self) -> float | None:
        return None if self.limit_s is None else self.limit_s / self.time_s


def us(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e6:.1f}" if seconds < 0.1 else f"{seconds * 1e6:.0f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _varies(values: Callable[[Row], Any]) -> Callable[[Sequence[Row]], bool]:
    return lambda rows: len({values(row) for row in rows}) > 1


def _known(value: Callable[[Row], Any]) -> Callable[[Sequence[Row]], bool]:
    return lambda rows: any(value(row) is not None for row in rows)


def _always(_: Sequence[Row]) -> bool:
    return True


# Heading, text of a row, and whether these rows need the column.
_COLUMNS: tuple[tuple[str, Callable[[Row], str], Callable[[Sequence[Row]], bool]], ...] = (
    ("system", lambda row: row.system, _varies(lambda row: row.system)),
    ("hosts", lambda row: str(row.hosts), _varies(lambda row: row.hosts)),
    ("devices\n/host", lambda row: str(row.devices_per_host), _varies(lambda row: row.devices_per_host)),
    ("size\n(B)", lambda row: str(row.size_bytes), _always),
    ("count\n(elements)", lambda row: str(row.count), _always),
    ("type", lambda row: row.dtype, _always),
    ("redop", lambda row: "sum", _always),
    ("in\nplace", lambda row: "yes" if row.in_place else "no", _varies(lambda row: row.in_place)),
    ("time\n(us)", lambda row: us(row.time_s), _always),
    ("min\n(us)", lambda row: us(min(row.times_s)), _always),
    ("p99\n(us)", lambda row: us(row.p99_s), _known(lambda row: row.p99_s)),
    ("max\n(us)", lambda row: us(max(row.times_s)), _always),
    ("algbw\n(GB/s)", lambda row: f"{row.algbw_bytes_per_s / 1e9:.3f}", _always),
    ("busbw\n(GB/s)", lambda row: f"{row.busbw_bytes_per_s / 1e9:.3f}", _always),
    ("goodput /\nline rate (%)", lambda row: _percent(row.line_rate_share), _known(lambda row: row.line_rate_share)),
    ("limit\n(us)", lambda row: us(row.limit_s), _known(lambda row: row.limit_s)),
    ("share of\nlimit (%)", lambda row: _percent(row.limit_share), _known(lambda row: row.limit_s)),
    (
        "CPU\n(ns/KB)",
        lambda row: "" if row.cpu_ns_per_kb is None else f"{row.cpu_ns_per_kb:.0f}",
        _known(lambda row: row.cpu_s),
    ),
    ("predicted\n(us)", lambda row: us(row.predicted_s), _known(lambda row: row.predicted_s)),
    ("#wrong", lambda row: "N/A" if row.wrong is None else str(row.wrong), _always),
)

NOTE = (
    f"time: median over the iterations, min and max beside it, and with {P99_ITERATIONS} or more the 99th "
    "percentile. CPU: processor time of a host's threads for each KB of the size. algbw = size / time. busbw = "
    "algbw x 2(n-1)/n with n devices, nccl-tests' definition: a ring's bytes over each link in that time. A sum in "
    "the network moves the size itself, once each way, so its busbw may exceed the link's rate. #wrong: elements "
    "that differ from the exactly known sum, in all iterations."
)


def table(rows: Sequence[Row], title: str | None = None) -> Table:
    """Makes a table of the rows, with the columns that they need. Print `NOTE` under it."""
    result = Table(title=title, box=box.SIMPLE)
    columns = [column for column in _COLUMNS if column[2](rows)]
    for heading, _, _ in columns:
        result.add_column(heading, justify="left" if heading in ("system", "type", "redop") else "right")
    for row in rows:
        result.add_row(*(text(row) for _, text, _ in columns))
    return result


def write_json(path: str | Path, rows: Sequence[Row], **context: Any) -> None:
    """Writes the rows, the figures that follow from them, and `context` (versions, options …) to a file."""
    derived = ("time_s", "algbw_bytes_per_s", "busbw_bytes_per_s", "line_rate_share", "limit_share")
    records = [asdict(row) | {name: getattr(row, name) for name in derived} for row in rows]
    Path(path).write_text(json.dumps({**context, "rows": records}, indent=1) + "\n")


def require_matplotlib() -> Any:
    """matplotlib, drawing to files. Raises ConfigError that says how to install it: ask before a long measurement."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ConfigError(
            "A plot needs matplotlib, which isn't installed. Install it with `pip install matplotlib`, or leave "
            "--plot out."
        ) from error
    matplotlib.use("Agg")  # no display: hosts seldom have one
    from matplotlib import pyplot

    return pyplot


def plot(rows: Sequence[Row], path: str | Path, title: str | None = None) -> None:
    """Draws a PNG: time over size if sizes vary, time over hosts if they do, else bandwidth over size.

    The panel over hosts shows the largest size that each number of hosts has. Limits are dotted.
    """
    pyplot = require_matplotlib()
    hosts_vary = len({row.hosts for row in rows}) > 1
    over_size = len({row.size_bytes for row in rows}) > 1 or not hosts_vary
    panels = over_size + 1
    figure, axes = pyplot.subplots(1, panels, figsize=(6 * panels, 4.5), layout="constrained", squeeze=False)
    last = axes[0, -1]
    if over_size:
        _lines(axes[0, 0], rows, by_hosts=True, x=lambda row: row.size_bytes, y=lambda row: row.time_s)
        axes[0, 0].set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="time (s)")
    if hosts_vary:
        sizes = set.intersection(*({r.size_bytes for r in rows if r.hosts == h} for h in {r.hosts for r in rows}))
        largest = [row for row in rows if row.size_bytes == max(sizes, default=row.size_bytes)]
        _lines(last, largest, by_hosts=False, x=lambda row: row.hosts, y=lambda row: row.time_s)
        last.set(xlabel="hosts", ylabel="time (s)", ylim=(0, None))
        if sizes:
            last.set_title(f"{max(sizes)} bytes")
    else:
        _lines(last, rows, by_hosts=True, x=lambda row: row.size_bytes, y=lambda row: row.algbw_bytes_per_s / 1e9)
        last.set(xscale="log", xlabel="size (bytes)", ylabel="algbw (GB/s)", ylim=(0, None))
    for panel in axes[0]:
        panel.grid(alpha=0.3)
    axes[0, 0].legend(fontsize="small")
    if title:
        figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _lines(
    axes: Any, rows: Sequence[Row], by_hosts: bool, x: Callable[[Row], float], y: Callable[[Row], float]
) -> None:
    """A line for each system (and device count, place and, with `by_hosts`, host count)."""
    series: dict[str, list[Row]] = {}
    several_hosts = by_hosts and len({row.hosts for row in rows}) > 1
    several_devices = len({row.devices_per_host for row in rows}) > 1
    for row in rows:
        name = row.system + (", in place" if row.in_place else "")
        name += f", H={row.hosts}" if several_hosts else ""
        name += f", L={row.devices_per_host}" if several_devices else ""
        series.setdefault(name, []).append(row)
    for name, points in series.items():
        points = sorted(points, key=x)
        (line,) = axes.plot([x(row) for row in points], [y(row) for row in points], marker="o", ms=3, label=name)
        limits = [row for row in points if row.limit_s is not None]
        bounds = [y(_at_limit(row)) for row in limits]
        axes.plot([x(row) for row in limits], bounds, ls=":", color=line.get_color())


def _at_limit(row: Row) -> Row:
    assert row.limit_s is not None
    return replace(row, times_s=(row.limit_s,))
