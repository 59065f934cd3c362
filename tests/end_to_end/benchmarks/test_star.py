"""benchmarks/star/star.py: a small star sums right, and nothing of it remains, however it ends."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

STAR = Path(__file__).parents[3] / "benchmarks" / "star" / "star.py"
LOSSES = STAR.with_name("goodput_under_loss.py")
# Its modules stand beside it, where a safe path doesn't look.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}


def _problem() -> str | None:
    """What star.py itself says."""
    program = "import star_network; print(star_network.ready() or '')"
    asked = subprocess.run(
        [sys.executable, "-c", program], cwd=STAR.parent, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return asked.stdout.strip() or None


pytestmark = pytest.mark.skipif(_problem() is not None, reason=f"no star: {_problem()}")


def _remains(pid: int) -> list[str]:
    """Namespaces, files and processes of the star that process `pid` built."""
    name = f"star{pid}-"
    namespaces = list(Path("/run/netns").glob(f"{name}*")) if Path("/run/netns").exists() else []
    found = [str(path) for path in [*namespaces, *Path(tempfile.gettempdir()).glob(f"{name}*")]]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        found += [command] if name in command else []
    return found


def _start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(STAR), "--hosts", "2", "--contenders", "passing", *arguments]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _await_summing(pid: int) -> None:
    """Until both ranks are there."""
    until = time.monotonic() + 100
    while sum("star_worker.py" in command for command in _remains(pid)) < 2:
        assert time.monotonic() < until, _remains(pid)
        time.sleep(0.05)


def test_small_star_sums_right_and_leaves_nothing(tmp_path: Path) -> None:
    report = tmp_path / "star.json"
    star = _start("--mebibytes", "0.25", "--rounds", "2", "--iterations", "1", "--json", str(report))
    output, _ = star.communicate(timeout=120)
    assert star.returncode == 0, output
    (row,) = json.loads(report.read_text())["rows"]
    assert (row["hosts"], row["size_bytes"], row["wrong"], len(row["times_s"])) == (2, 2**18, 0, 2)
    assert _remains(star.pid) == []


def test_sums_are_right_whatever_a_star_loses() -> None:
    rates = ["--rates", "0,0.01,0.2", "--mebibytes", "0.25", "--packets", "4000"]
    losses = subprocess.Popen(
        [sys.executable, str(LOSSES), *rates],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output, _ = losses.communicate(timeout=120)
    assert losses.returncode == 0, output
    # The rate, how many sums, packets, and lost ones, the goodput, its share, the slowest sum, and wrong elements.
    rows = [line.split() for line in output.splitlines() if " % " in line]
    assert [(row[0], row[-1]) for row in rows] == [("0", "0"), ("1", "0"), ("20", "0")], output
    assert rows[0][4] == "0", output
    assert int(rows[2][4]) > 0.1 * int(rows[2][3]), output
    assert _remains(losses.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_star_leaves_nothing(number: signal.Signals) -> None:
    star = _start("--rounds", "1000")
    _await_summing(star.pid)
    star.send_signal(number)
    output, _ = star.communicate(timeout=100)
    assert star.returncode == 128 + number, output
    assert _remains(star.pid) == []


def test_next_star_removes_a_killed_one() -> None:
    star = _start("--rounds", "1000")
    _await_summing(star.pid)
    star.kill()
    star.communicate(timeout=100)
    assert any("/run/netns" in path for path in _remains(star.pid))
    following = _start("--mebibytes", "0.01", "--rounds", "1", "--iterations", "1")
    output, _ = following.communicate(timeout=120)
    assert following.returncode == 0, output
    assert _remains(star.pid) == []
