"""A verdict on two measurements knows their spread."""

import dataclasses
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from jax_passing.commands.bench import comparison
from jax_passing.commands.bench.comparison import compare, median_interval, read
from jax_passing.commands.bench.table import Row, write_json
from jax_passing.errors import ConfigError

TIMES_S = tuple(0.010 + 0.0001 * step for step in range(10))


def row(times_s=TIMES_S, size_bytes=1024):
    return Row(system="ours", hosts=2, size_bytes=size_bytes, dtype="float32", count=256, times_s=times_s, wrong=0)


def scaled(factor):
    return row(tuple(factor * time_s for time_s in TIMES_S))


@pytest.mark.parametrize("draw", ["normal", "exponential", "uniform"])
@pytest.mark.parametrize("count", [7, 10, 50])
def test_an_interval_has_the_median_as_often_as_it_says(draw, count):
    true = {"normal": 0.0, "exponential": math.log(2), "uniform": 0.5}[draw]
    rng = np.random.default_rng(0)
    intervals = [median_interval(getattr(rng, draw)(size=count), 0.975) for _ in range(2000)]
    hits = sum(least <= true <= largest for least, largest in intervals)
    assert hits >= 2000 * 0.975 - 3 * math.sqrt(2000 * 0.975 * 0.025)


def test_few_times_tell_nothing():
    assert median_interval(TIMES_S[:6], 0.975) == (0.0, math.inf)
    assert median_interval(TIMES_S[:7], 0.975) == (TIMES_S[0], TIMES_S[6])
    assert median_interval(TIMES_S, 0.975) == (TIMES_S[1], TIMES_S[8])
    least, largest = median_interval(range(2000), 0.975)
    assert 999 - 2.4 * math.sqrt(500) < least < largest < 1000 + 2.4 * math.sqrt(500)  # 2.24 standard deviations


@pytest.mark.parametrize(
    ("new", "verdict"),
    [(scaled(0.9), "faster"), (scaled(1.02), "the same"), (scaled(1.1), "slower"), (row(TIMES_S[:6]), "too few")],
)
def test_verdicts(new, verdict):
    (one,) = compare([row()], [new])
    assert one.verdict.startswith(verdict)
    assert one.interval[0] <= one.ratio <= one.interval[1]
    output = io.StringIO()
    Console(file=output, width=200).print(comparison.table([one]))
    assert verdict in output.getvalue()


def test_only_equal_cases_are_compared(tmp_path: Path):
    write_json(tmp_path / "old.json", [row(), row(size_bytes=4096)])
    old = read(tmp_path / "old.json")
    assert [one.new.size_bytes for one in compare(old, [row(size_bytes=8192), row(size_bytes=4096)])] == [4096]


WHOLE = json.dumps({"rows": [dataclasses.asdict(row((1.0,)))]})


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"rows": [{"times_s": [1.0]}]}', json.dumps({"rows": 1}), "[" * 100_000),
        *(WHOLE.replace("[1.0]", times) for times in ("[]", "[0]", "[-1.0]", "[NaN]", '["1"]', "[1e999]")),
        WHOLE.replace('"hosts": 2', '"hosts": [2]'),
    ],
    ids=lambda text: text[:60],
)
def test_other_files_are_refused(tmp_path: Path, text):
    (tmp_path / "old.json").write_text(text)
    with pytest.raises(ConfigError, match="Can't compare with .*old.json"):
        read(tmp_path / "old.json")
