"""Real hosts write flight records, of which `jax-passing why` tells who waited for whom."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import PASSING

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster, Process

LINE = r"recorded\.py:\d+:\d+ in step psum of float32\[\d+\], float32\[\d+\] over d"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "JAX_PASSING_RECORD_FOLDER": str(tmp_path),
        "JAX_PASSING_DEADLINE_S": "6",
        "JAX_PASSING_WARN_S": "1",
        "JAX_PASSING_LEASE_S": "4",
    }


def start(cluster: "Cluster", how: str, hosts: int, environment: dict[str, str]) -> "list[Process]":
    processes = cluster.start("faults/recorded.py", how, hosts=hosts, devices=2, env=environment)
    for process in processes:
        process.wait_for("has summed as process")
    return processes


def passing(*arguments: str, environment: dict[str, str] | None = None) -> str:
    run = subprocess.run(
        [*PASSING, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **(environment or {})}
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def await_records(folder: Path, ranks: int, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while len(list(folder.glob("record-*rank*.json"))) < ranks:
        assert time.monotonic() < until, sorted(folder.iterdir())
        time.sleep(0.05)


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.smoke)])
def test_a_host_that_sleeps(cluster: "Cluster", hosts: int, environment: dict[str, str], tmp_path: Path) -> None:
    # Commands take some seconds on a busy machine.
    *waiting, late = start(cluster, "sleeps", hosts, {**environment, "JAX_PASSING_DEADLINE_S": "20"})
    for process in waiting:
        process.wait_for(rf"waited [\d.]+ s for {LINE} .*Missing: rank {hosts - 1} \(\S+, 127\.0\.0\.1\)")
    late.wait_for(rf"rank [01] \(\S+, 127\.0\.0\.1\) waits for rank {hosts - 1}, this host, in {LINE}")
    waiting[0].signal(signal.SIGUSR1)  # its main thread is in XLA
    waiting[0].wait_for("wrote the flight record .* as somebody sent SIGUSR1")
    passing("status", cluster.switch.address, "--dump", environment=environment)
    late.wait_for("wrote the flight record .* as somebody asked at the switch")
    await_records(tmp_path, hosts)
    out = passing("why", str(tmp_path))
    who = "Rank 0" if hosts == 2 else "Ranks 0, 1"
    assert re.search(rf"^{who} waited for rank {hosts - 1} in {LINE} \(execution 10, step 0\), since \d\d:", out, re.M)
    idle = rf"^Rank {hosts - 1} \(\S+, 127\.0\.0\.1\) was in no sum: its last one, {LINE} \(execution 9, step 0\)"
    assert re.search(idle, out, re.M), out
    for process in waiting:
        process.wait_for("^raised DeadlineExceededError")
        process.wait_for("wrote the flight record .* as the session failed: DeadlineExceededError")
    late.wait_for("wrote the flight record .* as the session failed")
    out = passing("why", str(tmp_path))
    assert re.search(rf"^It failed at .* with DeadlineExceededError: {LINE} ", out, re.M), out
    assert re.search(rf"^{who} waited for rank {hosts - 1} in {LINE} ", out, re.M), out


@pytest.mark.parametrize("how", ["runs", "dies"])
def test_a_host_that_is_stopped_or_dies(
    cluster: "Cluster", how: str, environment: dict[str, str], tmp_path: Path
) -> None:
    *waiting, lost = start(cluster, how, 3, environment)
    if how == "runs":
        lost.signal(signal.SIGSTOP)
    for process in waiting:
        process.wait_for("^raised HostLostError")
        process.wait_for("wrote the flight record")
    out = passing("why", str(tmp_path))
    assert re.search(rf"^Ranks 0, 1 waited for rank 2 in {LINE} ", out, re.M), out
    assert "There is no record of rank 2: it died, is stopped (SIGSTOP)" in out
    reason = "was silent for 4 s" if how == "runs" else "closed its connection"
    assert re.search(rf"^It failed at .* with HostLostError: Rank 2.* {reason}", out, re.M), out


def test_a_host_with_another_program(cluster: "Cluster", environment: dict[str, str], tmp_path: Path) -> None:
    processes = start(cluster, "differs", 3, environment)
    for process in processes:
        process.wait_for("^raised ProgramMismatchError|^raised DeadlineExceededError")
        process.wait_for("wrote the flight record")
    out = passing("why", str(tmp_path))
    assert re.search(rf"^Ranks 0, 1 waited for rank 2 in {LINE} ", out, re.M), out
    assert re.search(r"^Rank 2 .* waited itself, in recorded\.py:\d+:\d+ in other psum ", out, re.M), out
    assert "They waited for each other" in out


def test_a_device_that_doesnt_come(cluster: "Cluster", environment: dict[str, str], tmp_path: Path) -> None:
    processes = start(cluster, "keeps_a_device", 2, environment)
    for process in processes:
        process.wait_for("wrote the flight record .* as the session failed: DeadlineExceededError")
    out = passing("why", str(tmp_path))
    assert re.search(rf"^Rank 0 waited for rank 1 in {LINE} ", out, re.M), out
    assert re.search(rf"^Rank 1 \(\S+, 127\.0\.0\.1\) had 1 of its 2 devices at {LINE}, since", out, re.M), out


def test_an_exception_of_the_users(cluster: "Cluster", environment: dict[str, str], tmp_path: Path) -> None:
    *waiting, wrong = start(cluster, "raises", 2, environment)
    waiting[0].wait_for("^raised HostLostError")
    wrong.wait()
    await_records(tmp_path, 2)
    out = passing("why", str(tmp_path))
    assert "it stopped with KeyError: 'a mistake'" in out
    assert re.search(rf"^Rank 0 waited for rank 1 in {LINE} ", out, re.M), out


@pytest.mark.smoke
def test_nan_by_name(cluster: "Cluster", environment: dict[str, str], tmp_path: Path) -> None:
    processes = start(cluster, "brings_nan", 3, environment)
    for process in processes:
        text = process.wait_for("^raised NonFiniteError: (.*)")[1]
        assert re.match(
            rf"Rank 2 \(\S+\) brought NaN into leaf \['w'\], float32\[2000\], element 7, of the sum {LINE}", text
        )
    await_records(tmp_path, 3)
    assert "with NonFiniteError: Rank 2 " in passing("why", str(tmp_path))


def python_with_torch(folder: Path) -> str:
    """Returns the interpreter that PASSING_TORCH_PYTHON names, or one of a new virtual environment."""
    if named := os.environ.get("PASSING_TORCH_PYTHON"):
        return named
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=100)
    install = [folder / "bin" / "pip", "install", "--quiet", "torch==2.13.0+cpu", "tabulate"]
    run = subprocess.run(install, capture_output=True, text=True, timeout=900)
    if run.returncode != 0:
        pytest.skip(f"pip has no torch for CPUs: {run.stderr.strip().splitlines()[-1]}")
    return str(folder / "bin" / "python")


@pytest.mark.timeout(1200)
def test_pytorchs_analyser_reads_the_records(
    cluster: "Cluster", environment: dict[str, str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    torch = python_with_torch(tmp_path_factory.mktemp("torch"))
    *waiting, _ = start(cluster, "sleeps", 2, environment)
    waiting[0].wait_for("^raised DeadlineExceededError")
    await_records(tmp_path, 2)
    script = Path(__file__).parents[1] / "programs" / "faults" / "read_by_torch.py"
    run = subprocess.run([torch, str(script), str(tmp_path)], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["complete"] >= 10
    assert found["missing"] == [1]
