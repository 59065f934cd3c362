"""benchmarks/gpu/gpu.py without a GPU: its parts run on CPUs, and its report says so, and what is wrong."""

import argparse
import copy
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.jobs.cluster import COMPILED_FAST

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "gpu"


@pytest.fixture(autouse=True)
def _programs_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the report of a run."""
    folder = tmp_path_factory.mktemp("report")
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--report", str(folder), "--only", "sums,errors,call"]
    # Its modules stand beside it, where a safe path doesn't look.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment |= {"JAX_PLATFORMS": "cpu", **COMPILED_FAST}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.fixture
def report(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text())


def test_what_needs_no_gpu_runs_and_the_rest_is_left_out(report: Any, folder: Path) -> None:
    ran = [(part["name"], len(part["platforms"])) for part in report["parts"] if part["status"] == "ran"]
    assert sorted(ran) == [("call", 1), ("call", 2), ("errors", 2), ("sums", 2), ("sums", 3)]
    for part in report["parts"]:
        if part["status"] != "ran":
            assert part["status"] == "left out", part
            asked = part["name"] in ("sums", "errors", "call")
            assert part["reason"] == ("no GPU" if asked else "not asked for (--only)"), part
        elif part["name"] == "sums":
            assert len({row["dtype"] for row in part["result"]}) == 15
            assert sum(row["wrong"] + row["hosts_differ"] for row in part["result"]) == 0
    text = (folder / "report.md").read_text()
    assert "a machine without a GPU" in text
    assert "| sums | GPU + CPU | no GPU |" in text


def _bits(report: Any) -> None:
    report["parts"].append(copy.deepcopy(_first(report, "sums")))
    report["parts"][-1]["platforms"] = ["cuda", "cpu"]
    report["parts"][-1]["result"][-1]["digest"] = "0"


def _first(report: Any, name: str) -> Any:
    return next(part for part in report["parts"] if part["name"] == name and part["status"] == "ran")


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (lambda report: _first(report, "sums")["result"][3].update(wrong=7), "- wrong: 7 of int16"),
        (lambda report: _first(report, "sums")["result"][3].update(hosts_differ=True), "| NO | these are |"),
        (_bits, "NO: complex128 (small integers)"),
        (lambda report: _first(report, "errors")["result"].update(raised="nothing"), "| nothing |"),
        (lambda report: _first(report, "call").update(status="failed", reason="it fell", output="out"), "it fell"),
    ],
)
def test_what_is_wrong_is_told(report: Any, plant: Any, told: str) -> None:
    import gpu_report

    assert gpu_report.is_right(report)
    assert told not in gpu_report.markdown(report)
    plant(report)
    assert not gpu_report.is_right(report)
    assert told in gpu_report.markdown(report)
    assert "SOMETHING IS WRONG" in gpu_report.markdown(report)


def test_a_part_for_which_no_time_is_left_has_not_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import gpu

    monkeypatch.setattr(gpu, "command_of", lambda *_: [sys.executable, "-c", "import time; time.sleep(600)"])
    cut = gpu.run(gpu.PARTS[0], tmp_path, 0.5)
    assert cut["status"] == "left out"
    assert "out of time: not done in the" in cut["reason"]
    monkeypatch.setattr(gpu, "PART_S", 0.5)
    assert gpu.run(gpu.PARTS[0], tmp_path, 0.5)["status"] == "failed"


def test_parts_that_there_are_not() -> None:
    import gpu

    assert gpu.part_names("sums,train") == ["sums", "train"]
    with pytest.raises(argparse.ArgumentTypeError, match="no part is called sum, x; there are call, sums, errors"):
        gpu.part_names("sum,train,x")


INTERPRETER = """#!/bin/bash
# As far as gpu.sh asks: it is made up.
all="$*" last="${@: -1}"
case "$all" in
  *__version__*) echo 9.9 ;;
  *"-m venv"*) mkdir -p "$last/bin" && cp "$0" "$last/bin/python" ;;
  *"--wheel-dir "*) folder="${all##*--wheel-dir }" && mkdir "${folder% .}" && touch "${folder% .}/jax_passing-1.whl" ;;
  *gpu.py*) mkdir -p "$3" && echo NAME >>"$3/report.md" ;;
  *"print(("*) echo 1 ;;
esac
"""


def test_interpreters_with_the_same_jaxlib_have_a_report_each(tmp_path: Path) -> None:
    """And environments, as they may be of different versions of Python."""
    (tmp_path / "benchmarks" / "gpu").mkdir(parents=True)
    shutil.copy(BENCHMARKS / "gpu.sh", tmp_path / "benchmarks" / "gpu")
    for name in ("one", "other"):
        (tmp_path / name).write_text(INTERPRETER.replace("NAME", name))
        (tmp_path / name).chmod(0o755)
    command = ["bash", "benchmarks/gpu/gpu.sh", "./one", "./other"]
    environment = {"PATH": os.environ["PATH"], "CXX": "true"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    reports = {path.parent.name: path.read_text() for path in (tmp_path / "build/gpu/report").rglob("report.md")}
    assert reports == {"9.9": "one\n", "9.9-2": "other\n"}
    assert sorted(path.parts[-4] for path in (tmp_path / "build/gpu").glob("*/venv/bin/python")) == ["9.9", "9.9-2"]
    assert re.findall(r"^=== .*/(\w+), jaxlib 9.9: .*/(9.*)$", ended.stdout, re.M) == [
        ("one", "9.9"),
        ("other", "9.9-2"),
    ]


def test_wrong_elements_are_counted() -> None:
    import ml_dtypes
    import numpy as np
    from gpu_correctness import count_wrong, drawn

    for name in ("float32", "float16", "bfloat16"):
        dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
        for kind in ("normal", "with NaN and infinities"):
            parts = [drawn(kind, dtype, 3000, rank) for rank in range(3)]
            with np.errstate(invalid="ignore"):
                exact = np.add.reduce([part.astype(np.float64) for part in parts])
            right = exact.astype(dtype)
            assert count_wrong(right, parts, name, kind) == 0
            finite = np.flatnonzero(np.isfinite(exact))[::100]
            wrong = right.copy()
            wrong[finite] += 1
            assert count_wrong(wrong, parts, name, kind) == len(finite)
            if kind == "normal":  # without one of the hosts
                assert count_wrong((exact - parts[1].astype(np.float64)).astype(dtype), parts, name, kind) > 2900
            special = np.flatnonzero(~np.isfinite(exact))
            wrong = right.copy()
            wrong[special] = 1.0
            assert count_wrong(wrong, parts, name, kind) == len(special)


def test_copies_beside_kernels_are_seen(tmp_path: Path) -> None:
    import gpu_trace

    def named(kind: str, name: str, **ids: int) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "args": {"name": name}, **ids}

    def span(tid: int, name: str, ts: float, dur: float, pid: int = 1) -> dict[str, Any]:
        return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur}

    events = [
        named("process_name", "/device:GPU:0", pid=1),
        named("process_name", "/host:CPU", pid=2),
        named("thread_name", "Stream #13(Compute)", pid=1, tid=1),
        named("thread_name", "Stream #14(MemcpyD2H)", pid=1, tid=2),
        named("thread_name", "XLA Ops", pid=1, tid=3),
        span(1, "gemm", 0, 4000),
        span(1, "fusion", 3000, 3000),  # until 6000
        span(2, "MemcpyD2H", 5000, 2000),
        span(2, "MemcpyH2D", 9000, 1000),
        span(3, "dot", 0, 20_000),
        span(1, "python", 0, 20_000, pid=2),
        span(1, "passing_psum.3", 100, 12.5, pid=2),
        span(1, "passing_psum.3", 200, 7.5, pid=2),
        span(1, "passing_psum.4", 300, 5000, pid=2),  # done
        span(3, "passing_psum.3", 0, 900),
    ]
    with gzip.open(tmp_path / "host.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": events}, file)
    found = gpu_trace.summary(tmp_path, {"passing_psum.3"})
    assert found["starts"] == {"count": 2, "us": 10.0, "slowest_us": 12.5}
    assert gpu_trace.summary(tmp_path)["starts"] is None
    assert found["streams"] == {
        "Stream #13(Compute)": {"kernels_ms": 6.0, "copies_ms": 0.0},
        "Stream #14(MemcpyD2H)": {"kernels_ms": 0.0, "copies_ms": 3.0},
    }
    assert (found["copies_ms"], found["copies_beside_kernels_ms"]) == (3.0, 1.0)


def test_a_trace_without_a_gpu_is_left_out(tmp_path: Path) -> None:
    import gpu_trace

    assert "wrote no trace" in gpu_trace.summary(tmp_path)["left_out"]
    with gzip.open(tmp_path / "host.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": []}, file)
    assert "no stream" in gpu_trace.summary(tmp_path)["left_out"]
