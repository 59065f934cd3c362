"""Rows to table, JSON and plot."""

import builtins
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jax_passing.commands.bench import table
from jax_passing.commands.bench.table import Row
from jax_passing.errors import ConfigError


def row(**changes: Any) -> Row:
    values: dict[str, Any] = {
        "system": "jax_passing",
        "hosts": 4,
        "size_bytes": 1 << 20,
        "count": 1 << 18,
        "dtype": "float32",
        "times_s": (0.012, 0.010, 0.011),
        "wrong": 0,
    }
    return Row(**(values | changes))


def text(rows: list[Row]) -> str:
    console = Console(width=300, file=io.StringIO(), record=True)
    console.print(table.table(rows))
    return console.export_text()


def test_bandwidths_follow_nccl_tests() -> None:
    measured = row(times_s=(0.02, 0.01, 0.01))
    assert measured.time_s == 0.01
    assert measured.algbw_bytes_per_s == pytest.approx((1 << 20) / 0.01)
    assert measured.busbw_bytes_per_s == pytest.approx(measured.algbw_bytes_per_s * 2 * 3 / 4)
    two_devices = row(devices_per_host=2)
    assert two_devices.busbw_bytes_per_s == pytest.approx(two_devices.algbw_bytes_per_s * 2 * 7 / 8)
    assert row(hosts=1).busbw_bytes_per_s == 0


def test_shares_of_line_rate_and_limit() -> None:
    measured = row(times_s=(0.01,), line_rate_bits_per_s=1e9, limit_s=0.0088)
    assert measured.line_rate_share == pytest.approx((1 << 20) * 8 / 0.01 / 1e9)
    assert measured.limit_share == pytest.approx(0.88)
    assert row().line_rate_share is None
    assert row().limit_share is None


def test_only_the_columns_that_the_rows_need() -> None:
    plain = text([row()])
    for heading in ("size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong"):
        assert heading in plain
    for heading in ("system", "goodput", "limit", "predicted", "place", "hosts"):
        assert heading not in plain
    full = text(
        [
            row(line_rate_bits_per_s=1e9, limit_s=0.008, predicted_s=0.009),
            row(system="gloo", hosts=8, devices_per_host=2, in_place=True),
        ]
    )
    for heading in ("system", "goodput", "limit", "predicted", "place", "hosts", "/host"):
        assert heading in full


def test_wrong_elements_stand_in_the_table() -> None:
    assert " 0 " in text([row()]).splitlines()[-2]
    assert " 17 " in text([row(wrong=17)])
    assert "N/A" in text([row(wrong=None)])


def test_json_carries_rows_and_context(tmp_path: Path) -> None:
    rows = [row(), row(system="gloo", limit_s=0.01, wrong=None, in_place=True)]
    table.write_json(tmp_path / "out.json", rows, jax="0.10")
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["jax"] == "0.10"
    assert content["rows"][0]["busbw_bytes_per_s"] == pytest.approx(rows[0].busbw_bytes_per_s)


@pytest.mark.slow  # imports matplotlib
def test_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        row(hosts=h, size_bytes=size, system=system, limit_s=0.005)
        for h in (2, 4)
        for size in (1024, 1 << 20)
        for system in ("jax_passing", "gloo")
    ]
    table.plot(rows, tmp_path / "out.png", title="a star")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_matplotlib(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        table.require_matplotlib()
