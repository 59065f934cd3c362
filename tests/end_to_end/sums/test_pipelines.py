"""Pipelines whose gradients are summed over several hosts."""

import difflib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, PASSING, Process, digest, finish, free_address

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster


@pytest.mark.parametrize(("hosts", "devices"), [pytest.param(2, 4, marks=pytest.mark.smoke), (3, 2)])
def test_every_schedule_has_the_gradients_of_all_hosts(cluster: "Cluster", hosts: int, devices: int) -> None:
    digest(cluster.run("pipelines/pipeline.py", hosts=hosts, devices=devices, env=COMPILED_FAST))  # all have one


@pytest.mark.parametrize(("layout", "processes", "devices"), [("stages", 2, 1), ("data", 2, 4), ("both", 4, 1)])
def test_a_mesh_over_processes(cluster: "Cluster", layout: str, processes: int, devices: int) -> None:
    env = {"COORDINATOR": free_address(), **COMPILED_FAST}
    started = cluster.start("pipelines/pipeline_over_processes.py", layout, hosts=processes, devices=devices, env=env)
    finish(started)
    for process in started:
        assert "zb-h1: " in process.text
        assert "refused: The processes of the mesh differ in the loss scale (process 0: 1024.0; pro" in process.text
        assert "refused: The mesh spans several processes, and the parameters aren't on their" in process.text
        assert "refused: This process has another session, or another rank in it, than when pipeline" in process.text
        assert "refused: The sessions of the mesh's processes don't suit its stages." in process.text
    held = sum(int(process.wait_for(r"^zb-h1: (\d+) shards are right$")[1]) for process in started)
    assert held == 5 * devices * processes // 2  # each of five leaves is on the devices of one of the two stages only


@pytest.mark.parametrize("hosts", [2, 3])
def test_no_host_holds_the_whole_model(cluster: "Cluster", tmp_path: Path, hosts: int) -> None:
    """Eight layers of 9 MiB for each host: at most, its own and a few more are in memory at once."""
    finish(cluster.start("pipelines/stage_by_stage.py", str(tmp_path), str(hosts), hosts=1, devices=1))
    # Arrays that are freed go back to the system at once, or how much is in memory would depend on chance.
    env = {"COORDINATOR": free_address(), "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    started = cluster.start("pipelines/stage_by_stage.py", str(tmp_path), hosts=hosts, devices=1, env=env)
    finish(started)
    for process in started:
        for what in ("init", "restore"):
            took, own, whole = map(int, process.wait_for(rf"^{what}: (\d+) MiB for (\d+) of (\d+)$").groups())
            assert (own, whole) == (72, 72 * hosts)
            assert took < own + 6 * 9  # parts of a program and of a file, too


def test_processes_that_differ_are_refused_on_all_of_them(cluster: "Cluster") -> None:
    env = {"COORDINATOR": free_address(), **COMPILED_FAST}
    started = cluster.start("pipelines/pipelines_that_differ.py", hosts=2, devices=1, env=env)
    finish(started)
    measured, counted = (started[0].wait_for(rf"^{name}: (.*), (loss .*)$") for name in ("measured", "counted"))
    assert measured[1] == "[1, 3]" != counted[1]  # by process 0's times
    assert measured[2] == counted[2]
    for process in started:
        assert measured[0] in process.lines
        for what, message in {
            "measured loss": "UsageError: The processes don't cut the same model.*differ in the loss ",
            "cuts": r".*differ in stage 0 .process 0: parameters .0. .1. from .*; process 1: .* .2. from",
            "loss": r"UsageError: The processes.*differ in stage 0 .*, stage 1 \(",
            "microbatches": r"UsageError: .*differ in microbatches \(process 0: 2; process 1: 3\), schedule ",
        }.items():
            process.wait_for(f"^{what}: {message}", 1)
    started[1].wait_for("^measuring: UsageError: Process 0 can't measure .*ZeroDivisionError", 1)
    started[0].wait_for("^raising: UsageError: Process 1 can't cut this model, so no .*ZeroDivisionError", 1)
    started[1].wait_for("^raising: ZeroDivisionError", 1)
    started[0].wait_for("^refusal: UsageError: Process 1 can't make this pipeline, so .*schedule is '2f2b'", 1)
    started[1].wait_for("^refusal: UsageError: schedule is '2f2b'", 1)
    alone = [line for line in started[1].lines if line.startswith("alone: ")]
    assert len(alone) == 2
    assert all("together: process 0 didn't, within 1 s" in line for line in alone), alone


EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_tutorials_programs_learn_alike() -> None:
    """One device with the whole batch, and a pipeline on each of two hosts."""
    beside = {"PYTHONSAFEPATH": ""}  # models is in the programs' own folder
    alone = Process([sys.executable, str(EXAMPLES / "train_alone.py")], {"JAX_PLATFORMS": "cpu", **beside})
    hosts = ["run", "--hosts", "2", "--devices-per-host", "4"]
    pipeline = Process([*PASSING, *hosts, str(EXAMPLES / "train_pipeline.py")], beside)
    try:
        finish([alone, pipeline])
    finally:
        alone.stop()
        pipeline.stop()
    curves = [re.findall(r"step (\d+): loss ([\d.]+)", process.text) for process in (alone, pipeline)]
    assert len(curves[0]) == len(curves[1]) == 4
    for (number, one), (same_number, other) in zip(*curves, strict=True):
        assert number == same_number
        assert float(one) == pytest.approx(float(other), abs=1e-3)  # forty steps of Adam widen what rounding began
    assert float(curves[1][-1][1]) < 3.2  # bytes that are drawn by their frequencies have 3.4


def test_the_page_shows_what_is_changed_for_a_pipeline() -> None:
    alone, pipeline = ((EXAMPLES / f"train_{name}.py").read_text().splitlines() for name in ("alone", "pipeline"))
    changed = [line for line in difflib.ndiff(alone, pipeline) if line[0] in "-+"]
    assert sum(line[0] == "+" for line in changed) < 20
    page = (EXAMPLES.parent / "docs" / "train" / "pipelines.md").read_text()
    (shown,) = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    assert [line for line in shown.splitlines() if line[:1] in ("-", "+")] == changed
