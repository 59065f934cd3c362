"""Each kind of benchmark still runs, and the sums that it checks are right: nothing here is about figures."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.jobs.cluster import COMPILED_FAST
from support.net.namespaces import missing

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
# A benchmark's modules stand beside it, where a safe path doesn't look.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
STAR = pytest.mark.skipif(missing("tc", "unshare") is not None, reason=f"no star: {missing('tc', 'unshare')}")


def run(benchmark: str, *arguments: str, env: dict[str, str] | None = None) -> int:
    """Returns the process's number."""
    command = [sys.executable, str(BENCHMARKS / benchmark), *arguments]
    started = subprocess.Popen(
        command, env=ENVIRONMENT | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output, _ = started.communicate(timeout=250)
    assert started.returncode == 0, output
    return started.pid


@STAR
def test_a_star_sums_right_and_leaves_nothing(tmp_path: Path) -> None:
    report = tmp_path / "star.json"
    size = ["--hosts", "2", "--contenders", "passing", "--mebibytes", "0.25", "--rounds", "2", "--iterations", "1"]
    pid = run("star/star.py", *size, "--json", str(report))
    (row,) = json.loads(report.read_text())["rows"]
    assert (row["hosts"], row["size_bytes"], row["wrong"], len(row["times_s"])) == (2, 2**18, 0, 2)
    for folder in ("/run/netns", tempfile.gettempdir()):
        assert list(Path(folder).glob(f"star{pid}-*")) == []


@STAR
def test_a_tenant_sums_beside_one_that_takes_all_it_can_get(tmp_path: Path) -> None:
    report = tmp_path / "tenants.json"
    settings = ["--kinds", "slots", "--seconds", "0.8", "--rounds", "1", "--gbit", "0.3", "--mebibytes", "2"]
    run("tenants/tenants.py", *settings, "--json", str(report))
    found = json.loads(report.read_text())
    assert found["slots"]["share"] > 0.6, found
    assert found["counters"]["joins_refused"] > 0


def test_trainings_are_compared(tmp_path: Path) -> None:
    report = tmp_path / "accuracy.json"
    methods = ["--examples", "gpt2", "--methods", "bfloat16,int8-error-feedback", "--seeds", "1"]
    run("training/accuracy.py", *methods, "--gpt2-steps", "20", "--gpt2-target", "5", "--json", str(report))
    wide, narrow = json.loads(report.read_text())["trainings"]
    assert (wide["method"], narrow["method"]) == ("bfloat16", "int8, error feedback")
    assert narrow["score"] == pytest.approx(wide["score"], rel=0.02)
    assert narrow["target_steps"] == wide["target_steps"] == 20
    assert narrow["sent_bytes"] < 0.6 * wide["sent_bytes"]


def test_what_needs_no_gpu_runs_without_one_and_the_rest_is_left_out(tmp_path: Path) -> None:
    only = ["--only", "sums,errors,call"]
    run("gpu/gpu.py", "--report", str(tmp_path), *only, env={"JAX_PLATFORMS": "cpu", **COMPILED_FAST})
    parts = json.loads((tmp_path / "report.json").read_text())["parts"]
    assert {part["status"] for part in parts} == {"ran", "left out"}
    assert {part["name"] for part in parts if part["status"] == "ran"} == {"call", "errors", "sums"}
    rows = [row for part in parts if part["status"] == "ran" and part["name"] == "sums" for row in part["result"]]
    assert len({row["dtype"] for row in rows}) == 15
    assert sum(row["wrong"] + row["hosts_differ"] for row in rows) == 0
    assert "a machine without a GPU" in (tmp_path / "report.md").read_text()


@STAR
def test_trainings_wait_for_stragglers_as_long_as_they_must(tmp_path: Path) -> None:
    report = tmp_path / "pace.json"
    methods = ["synchronous", "stale 4", "asynchronous"]
    size = ["--hosts", "2", "--model", "digits", "--step-ms", "20", "--quick"]
    run("pace/pace.py", *size, "--methods", ";".join(methods), "--json", str(report))
    rows = json.loads(report.read_text())["rows"]
    assert [row["method"] for row in rows] == [method for method in methods for _ in range(3)]
    for row in rows:
        assert row["accuracy"] > 0.3, row  # of ten digits: it learns
        assert row["step_s"] > 0.02
        assert (row["staleness_mean"] is not None) == (row["method"] == "asynchronous")
    times_s = {(row["method"], row["stragglers"]): row["step_s"] for row in rows}
    # One of two hosts is slow at each step: synchronous ones always wait, others only for themselves.
    in_turns = "in turns, 10 times"
    assert times_s["synchronous", in_turns] > times_s["stale 4", in_turns]


@STAR
@pytest.mark.slow
def test_a_training_survives_faults_with_the_same_bits(tmp_path: Path) -> None:
    report = tmp_path / "faults.json"
    settings = ["--minutes", "0.1", "--kinds", "kill", "--hosts", "2", "--world-size-min", "1", "--calm-s", "2"]
    run("faults/faults.py", *settings, "--every", "5,6", "--json", str(report))
    found = json.loads(report.read_text())
    assert (found["wrong"], found["lost"], len(found["events"])) == (0, [], 1)
    steps, other_bits = found["replayed"]
    assert steps > 0
    assert other_bits == 0
