"""The steps that hosts have noted say how much of the training faults cost. Pure, but for the plot."""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from faults_cluster import Epochs, Step
from rich import box
from rich.console import Console
from rich.table import Table

from jax_passing.commands.bench.table import require_matplotlib

ALL = "all kinds"


@dataclass(frozen=True)
class Event:
    """A fault. `mended_s`: when what had died is started, or what stood still goes on. `ended_s`: the next one may
    come. Times are on the machine's monotonic clock."""

    kind: str
    began_s: float
    mended_s: float
    ended_s: float
    is_lost: bool


class Observed(Protocol):
    """A campaign has noted this."""

    events: list[Event]
    calm: list[tuple[float, float]]
    lost: list[str]
    ended: list[str]


@dataclass(frozen=True)
class Row:
    """The faults of one kind came to this.

    Attributes:
      steps, examples: shares of those that as much time without faults has.
      stops_s, rejoins_s: of each fault, the longest time without a step that was complete: before it was mended, and
        after, when the lost host comes back.
    """

    kind: str
    faults: int
    steps: float
    examples: float
    stops_s: tuple[float, ...]
    rejoins_s: tuple[float, ...]
    lost: int


@dataclass(frozen=True)
class Report:
    """A campaign came to this.

    Attributes:
      chains: of each job the steps that counted in the end, by their numbers.
      wrong: steps after which not all hosts had the same bits.
      twice: the most steps that a host took once more.
      rate: steps a second without faults.
      progress: each step as it was first complete.
    """

    hosts: int
    rows: list[Row]
    events: list[Event]
    chains: list[list[Step]]
    wrong: int
    twice: int
    rate: float
    lost: list[str]
    ended: list[str]
    progress: list[Step]

    @classmethod
    def of(cls, observed: Observed, noted: "Sequence[list[list[Step]]]") -> "Report":
        """`noted`: of each host and each job."""
        jobs = [sorted(itertools.chain(*(host[job] for host in noted))) for job in range(len(noted[0]))]
        wrong = 0
        for steps in jobs:  # how many hosts took each step determines all bits, also where it was taken twice
            digests: dict[tuple[int, int], set[str]] = defaultdict(set)
            for step in steps:
                digests[step.number, step.world_size].add(step.digest)
            wrong += sum(len(found) > 1 for found in digests.values())
        twice = max(sum(len(job) - len({step.number for step in job}) for job in host) for host in noted)
        jobs = [_in_time(steps) for steps in jobs]
        progress = list(itertools.chain(*map(_progress, jobs)))
        calm_s = sum(ended_s - began_s for began_s, ended_s in observed.calm)
        rate = sum(_count(progress, *one) for one in observed.calm) / calm_s
        kinds = {ALL: observed.events}
        for event in sorted(observed.events, key=lambda event: event.kind):
            kinds.setdefault(event.kind, []).append(event)
        rows = [_row(kind, events, progress, rate, len(noted)) for kind, events in kinds.items()]
        chains = [_chain(steps) for steps in jobs]
        return cls(
            hosts=len(noted),
            rows=rows,
            events=observed.events,
            chains=chains,
            wrong=wrong,
            twice=twice,
            rate=rate,
            lost=observed.lost,
            ended=observed.ended,
            progress=progress,
        )

    def as_json(self, replayed: "tuple[int, int] | None", options: dict[str, Any]) -> dict[str, Any]:
        found = asdict(self)
        del found["chains"], found["progress"]
        return {"options": options, "replayed": replayed, "steps": len(self.progress), **found}


def _in_time(steps: list[Step]) -> list[Step]:
    epochs = Epochs()
    return [step for step in steps if not epochs.is_late(step)]


def _progress(steps: list[Step]) -> list[Step]:
    """Returns each step as it was first complete."""
    found: list[Step] = []
    for step in steps:
        if not found or step.number > found[-1].number:
            found.append(step)
    return found


def _chain(steps: list[Step]) -> list[Step]:
    """Returns each step as it was taken last."""
    last = {step.number: step for step in steps}
    assert sorted(last) == list(range(len(last))), "a step is missing"
    return [last[number] for number in range(len(last))]


def schedule_of(chain: list[Step]) -> str:
    """Returns how many hosts took each step (docs/train/elastic.md)."""
    return ",".join(f"{size}x{len(list(steps))}" for size, steps in itertools.groupby(s.world_size for s in chain))


def _count(progress: list[Step], began_s: float, ended_s: float) -> int:
    return bisect.bisect(progress, (ended_s,)) - bisect.bisect(progress, (began_s,))


def _longest(progress: list[Step], began_s: float, ended_s: float, until_s: float) -> float:
    """Returns the longest time without a step that begins between the first two, and is over by `until_s`."""
    first = bisect.bisect(progress, (began_s,))
    times = [began_s, *(step.time_s for step in progress[first:] if step.time_s < until_s), until_s]
    return max((b - a for a, b in itertools.pairwise(times) if a < ended_s), default=0.0)


def _row(kind: str, events: list[Event], progress: list[Step], rate: float, hosts: int) -> Row:
    expected = rate * sum(event.ended_s - event.began_s for event in events) or 1.0
    within = [
        step for e in events for step in progress[bisect.bisect(progress, (e.began_s,)) :] if step.time_s < e.ended_s
    ]
    return Row(
        kind,
        len(events),
        len(within) / expected,
        sum(step.world_size for step in within) / hosts / expected,
        tuple(_longest(progress, e.began_s, e.mended_s, e.ended_s) for e in events),
        tuple(_longest(progress, e.mended_s, e.ended_s, e.ended_s) for e in events),
        sum(event.is_lost for event in events),
    )


def _percentile(values: Sequence[float], share: float) -> str:
    ordered = sorted(values)
    return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.2f}" if ordered else ""


def show(report: Report, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    headings = ("fault", "faults", "steps kept, %", "examples, %", "stop p50, s", "p99", "max", "back p50, s", "max")
    for heading in (*headings, "jobs lost"):
        table.add_column(heading, justify="left" if heading == "fault" else "right", no_wrap=heading == "fault")
    for row in report.rows:
        stops = [_percentile(row.stops_s, share) for share in (0.5, 0.99, 1.0)]
        back = [_percentile(row.rejoins_s, share) for share in (0.5, 1.0)]
        shares = f"{100 * row.steps:.1f}", f"{100 * row.examples:.1f}"
        table.add_row(row.kind, str(row.faults), *shares, *stops, *back, str(row.lost))
    console.print(table)
    console.print(
        f"{len(report.progress)} steps, {report.rate:.2f} a second without faults. A host took at most {report.twice} "
        f"of them twice, and {report.wrong} had other bits on some hosts. {len(report.lost)} jobs lost, "
        f"{len(report.ended)} processes ended by themselves."
    )


def draw_plot(report: Report, path: Path) -> None:
    pyplot = require_matplotlib()
    figure, (over_time, by_kind) = pyplot.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 2), layout="constrained")
    begin_s, end_s = report.progress[0].time_s, report.progress[-1].time_s
    bins = [begin_s + second for second in range(0, int(end_s - begin_s))]
    kept = [100 * _count(report.progress, one, one + 1.0) / report.rate for one in bins]
    over_time.plot([(one - begin_s) / 60 for one in bins], kept, linewidth=0.6, color="tab:blue")
    kinds = [row.kind for row in report.rows if row.kind != ALL]
    colours = dict(zip(kinds, itertools.cycle(pyplot.get_cmap("tab20").colors), strict=False))
    for event in report.events:
        over_time.axvline((event.began_s - begin_s) / 60, color=colours[event.kind], linewidth=1.0)
    over_time.set(xlabel="minutes", ylabel="steps a second, % of those without faults", ylim=(0, 150))
    rows = list(reversed(report.rows))
    bars = [100 * row.steps for row in rows]
    by_kind.barh([row.kind for row in rows], bars, color=[colours.get(row.kind, "black") for row in rows])
    by_kind.bar_label(by_kind.containers[0], fmt="%.1f", padding=2, fontsize=8)
    by_kind.set(xlabel="steps kept, %", xlim=(0, max(115.0, 1.1 * max(bars))))
    total = report.rows[0]
    kept_of_all = f"{100 * total.steps:.1f} % of steps and {100 * total.examples:.1f} % of examples kept"
    figure.suptitle(f"{report.hosts} hosts, {total.faults} faults: {kept_of_all}")
    figure.savefig(path, dpi=120)
