"""An earlier measurement beside a new one: which sums got faster or slower, by more than their times spread."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec
from rich import box
from rich.table import Table

from jax_passing.commands.bench.table import Row, us
from jax_passing.errors import ConfigError

CONFIDENCE = 0.95  # that both medians lie in their intervals
NOTE = (
    f"ratio: new median over old. Its interval holds the true ratio with a probability of {CONFIDENCE:.0%} or more, if "
    "iterations don't depend on each other. But a machine may be slower for minutes: measure old and new in turns."
)


class _Measurement(msgspec.Struct):
    rows: list[Row]


@dataclass(frozen=True)
class Comparison:
    """Compares the times of one case.

    Attributes:
      new: the new row.
      old_s: the old median.
      interval: the least and the largest ratio of new to old medians that the times allow; infinite if there are too
        few.
    """

    new: Row
    old_s: float
    interval: tuple[float, float]

    @property
    def ratio(self) -> float:
        return self.new.time_s / self.old_s

    @property
    def verdict(self) -> str:
        least, largest = self.interval
        if math.isinf(largest):
            return "too few iterations"
        return "faster" if largest < 1 else "slower" if least > 1 else "the same"


def median_interval(times: Sequence[float], confidence: float) -> tuple[float, float]:
    """Returns two of these values between which their distribution's median lies with this probability or more; 0 and
    infinity if there are too few.

    Whatever the distribution, its median lies below the i-th least of n values with the probability that a fair coin
    shows heads fewer than i times in n throws (H. A. David, H. N. Nagaraja, *Order Statistics*, 3rd edition, 7.1).
    """
    ordered, count = sorted(times), len(times)
    outside, index = Fraction(0), -1  # twice the probability that the median is below the value of this index
    while index < count // 2:
        more = outside + Fraction(2 * math.comb(count, index + 1), 2**count)
        if more > 1 - confidence:
            break
        outside, index = more, index + 1
    return (ordered[index], ordered[-1 - index]) if index >= 0 else (0.0, math.inf)


def compare(old: Sequence[Row], new: Sequence[Row]) -> list[Comparison]:
    """Compares the new rows of which there is an old one, in the new order."""
    before = {_case(row): row for row in old}
    each = (1 + CONFIDENCE) / 2  # two intervals may miss
    found = []
    for row in new:
        if (earlier := before.get(_case(row))) is not None:
            (old_least, old_largest), (least, largest) = (median_interval(one.times_s, each) for one in (earlier, row))
            ratios = (least / old_largest, largest / old_least if old_least else math.inf)
            found.append(Comparison(row, earlier.time_s, ratios))
    return found


def _case(row: Row) -> tuple[object, ...]:
    return row.system, row.hosts, row.devices_per_host, row.size_bytes, row.dtype, row.in_place


def read(path: Path) -> list[Row]:
    """Reads the rows of a file that `--json` wrote. Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Measurement).rows
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"Can't compare with {path} ({error}). Name a file of --json.") from error


def table(comparisons: Sequence[Comparison]) -> Table:
    result = Table(title="compared with the earlier measurement", box=box.SIMPLE)
    for heading in ("size\n(B)", "type", "in\nplace", "old\n(us)", "new\n(us)", "ratio", "from", "to"):
        result.add_column(heading, justify="left" if heading == "type" else "right")
    result.add_column("verdict")
    for one in comparisons:
        row, (least, largest) = one.new, one.interval
        place = "yes" if row.in_place else "no"
        ratios = (f"{ratio:.2f}" for ratio in (one.ratio, least, largest))
        result.add_row(str(row.size_bytes), row.dtype, place, us(one.old_s), us(row.time_s), *ratios, one.verdict)
    return result
