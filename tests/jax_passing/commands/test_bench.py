"""`jax-passing bench`: the sizes, the checker, and the command with an embedded switch."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from typer.testing import CliRunner

import jax_passing
from jax_passing.commands import cli
from jax_passing.commands.bench.sweep import Bench, Options, contribution, count_wrong, expected_sum

BENCH = [sys.executable, "-P", "-m", "jax_passing", "bench"]


def options(**changes: int | str) -> Options:
    values = {"min_bytes": 1024, "max_bytes": 65536, "factor": 4, "dtype": "float32", "iterations": 2, "warmup": 1}
    return Options(**(values | changes))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BENCH, *arguments], capture_output=True, text=True, timeout=200)


def test_sizes_run_from_the_least_to_the_largest() -> None:
    assert list(options().counts()) == [256, 1024, 4096, 16384]
    assert list(options(max_bytes=5000).counts()) == [256, 1024]
    assert list(options(min_bytes=1, max_bytes=1, dtype="bfloat16").counts()) == [1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "uint8", "uint32", "complex64"])
def test_expected_sums_are_exact(dtype: str) -> None:
    devices, count = 128, 1000
    total = expected_sum(devices, count, "int64")
    assert np.abs(total).max() <= 256  # bfloat16 has every integer up to 256
    # Added up one after the other in the dtype itself: every partial sum is exact as well, or wraps.
    added = contribution(0, count, dtype)
    for device in range(1, devices):
        added = added + contribution(device, count, dtype)
    np.testing.assert_array_equal(added, expected_sum(devices, count, dtype))
    # A chunk at another's place shows.
    assert np.count_nonzero(total[360:720] != total[:360]) > 100


def test_every_wrong_element_is_counted() -> None:
    mesh = jax.sharding.Mesh(jax.local_devices()[:2], ("d",))
    expected = expected_sum(4, 100, "float32")
    out = np.stack([expected, expected])

    def wrong() -> int:
        return count_wrong(jax.device_put(out, NamedSharding(mesh, P("d"))), expected)

    assert wrong() == 0
    out[1, 7] += 1
    out[0, 99] = np.nan
    assert wrong() == 2
    out[1] = np.roll(expected, 1)
    assert wrong() > 50


@pytest.mark.parametrize("in_place", [False, True])
def test_a_sum_of_other_values_is_wrong(session, monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    bench = Bench(session, options())
    assert bench.measure(300, in_place).wrong == 0
    right = jax_passing.psum
    monkeypatch.setattr(jax_passing, "psum", lambda x, axis: right(x, axis).at[:, 5].add(1) if x.size > 1 else x)
    row = Bench(session, options()).measure(300, in_place)
    assert row.wrong == 3 * jax.local_device_count()  # one an iteration, warm-up included, on each device
    assert len(row.times_s) == 2


def test_the_command_with_an_embedded_switch(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    ended = run(
        *("--hosts", "2", "--devices-per-host", "2", "-b", "1KB", "-e", "64K", "--factor", "64"),
        *("-n", "3", "-w", "1", "--dtype", "int64", "--json", str(path)),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for text in ("algbw", "busbw", "#wrong", "2(n-1)/n", "int64"):
        assert text in ended.stdout
    content = json.loads(path.read_text())
    assert [(row["size_bytes"], row["in_place"]) for row in content["rows"]] == [
        (size, in_place) for size in (1024, 65536) for in_place in (False, True)
    ]
    for row in content["rows"]:
        assert row["wrong"] == 0
        assert (row["hosts"], row["devices_per_host"]) == (2, 2)
        assert len(row["times_s"]) == 3
        assert row["algbw_bytes_per_s"] > 0
        assert row["cpu_s"] > 0
    assert content["options"]["dtype"] == "int64"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--min-bytes", "1X"), "expected bytes"),
        (("--min-bytes", "0"), "expected bytes"),
        (("--dtype", "float8"), "expected one of"),
        (("-b", "2M", "-e", "1M"), "above --max-bytes"),
        (("--json", "/no/such/folder/out.json"), "no folder"),
        (("--switch", "nowhere"), "HOST:PORT"),
        (("--compare", "/no/such.json"), "Can't compare with /no/such.json ("),
    ],
)
def test_mistakes_on_the_command_line(arguments: tuple[str, ...], message: str) -> None:
    """They are refused before anything is started."""
    ended = CliRunner().invoke(cli.app, ["bench", *arguments], env={"COLUMNS": "200"})
    assert ended.exit_code != 0
    assert message in ended.output + str(ended.exception)
