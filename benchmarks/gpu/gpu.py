"""Examines jax_passing on a GPU: correctness first, then figures, then a profile, in report.md and report.json.

    bash benchmarks/gpu/gpu.sh        # builds what is needed, and starts this

Each part runs in processes of its own, so one that fails or hangs doesn't touch the others; the report says why it
failed, and is written anew after each. Several hosts share one card. Without a GPU all hosts compute on the CPU: parts
that need none run all the same, and the report says what was left out.
"""

import argparse
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gpu_report

HERE = Path(__file__).parent
PACKAGES = ("jax-passing", "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "numpy", "flax", "optax")
GPU, CPU = "cuda", "cpu"
PART_S = 180.0  # that a part may take
TOLD_S = 10.0  # before that it prints what its threads do
HANGS = 2  # parts that hang on a GPU before no other with as many hosts on one is started


@dataclass(frozen=True)
class Part:
    """A part of the benchmark is one program, on hosts of these platforms.

    Attributes:
      name: of a part of gpu_host.py, or of PROGRAMS, or "train" for examples/train_gpt2.py.
      platforms: of each host.
    """

    name: str
    platforms: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}-{'-'.join(self.platforms)}"


# Programs of the tests, which compare with numpy themselves: arguments, and what they print if all is right.
PROGRAMS = {
    "held": (["sums/held.py"], "digest"),
    "loops": (["order/conditional.py", "loop", "agree"], "all steps are right"),
    "branches": (["order/conditional.py", "branch", "agree"], "all steps are right"),
    "order": (["order/matching.py", "1"], "rounds 1"),
}

# In this order, as time may run out: if even one host alone can't sum, that is known at once.
PARTS = (
    Part("call", (GPU,)),
    *(Part("sums", hosts) for hosts in ((GPU, GPU), (GPU, CPU), (CPU, CPU))),
    *(Part("errors", (one, one)) for one in (GPU, CPU)),
    *(Part(name, (one, one)) for name in PROGRAMS for one in (GPU, CPU)),
    Part("threads", (GPU, GPU)),
    Part("memory", (GPU,)),
    Part("copies", (GPU,)),  # on CPUs a sum of one host leaves its buffer as it is
    Part("pipeline", (GPU,)),
    *(Part("call", hosts) for hosts in ((GPU, GPU), (CPU,), (CPU, CPU))),
    *(Part("overlap", hosts) for hosts in ((GPU,), (GPU, GPU), (CPU, CPU))),
    *(Part("growth", (one, one)) for one in (GPU, CPU)),
    *(Part("train", (one, one)) for one in (GPU, CPU)),
    Part("profile", (GPU,)),
    *(Part("sums", hosts) for hosts in ((GPU, GPU, GPU), (GPU, CPU, GPU), (CPU, CPU, CPU))),
    Part("train", (GPU,)),
)
# A GPU's time isn't spent for a CPU's figures, nor for what the tests show.
CPU_ONLY_WHERE_NO_GPU = ("call", "overlap", "train", *PROGRAMS)


def output_of(command: list[str], timeout_s: float = 60.0) -> str:
    """Returns what the command prints, or an empty text if there is no such program."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def why_no_gpu() -> str:
    """Returns JAX's words about a GPU that it can't use, or an empty text if it can use one."""
    command, environment = [sys.executable, "-c", "import jax; jax.devices()"], {**os.environ, "JAX_PLATFORMS": GPU}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    if done.returncode == 0:
        return ""
    # The reason may be in a traceback that JAX logs before it raises another error.
    reasons = dict.fromkeys(re.findall(r"^\w+Error: (.+)$", done.stderr, re.MULTILINE))
    return "; ".join(reasons) or "JAX names no reason: has it its plugin for CUDA?"


def machine() -> dict[str, Any]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    fields = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max"
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": output_of(["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=12"]),
        "python": platform.python_version(),
        "versions": versions,
        "processor": found[1] if found else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": output_of(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]),
        "backend": output_of([sys.executable, "-c", "import jax; print(jax.default_backend())"]) or "none: JAX fails",
        "why_no_gpu": why_no_gpu(),
    }


def command_of(part: Part, result: Path, limit_s: float) -> list[str]:
    program = [str(HERE / "gpu_host.py"), part.name, "--platforms", ",".join(part.platforms), "--result", str(result)]
    program += ["--tell-after-s", str(max(limit_s - TOLD_S, 1))]
    if part.name in PROGRAMS:
        name, *rest = PROGRAMS[part.name][0]
        program = [str(HERE.parents[1] / "tests" / "end_to_end" / "programs" / name), *rest]
    if part.name == "train":
        on_gpu = GPU in part.platforms
        program = [str(HERE.parents[1] / "examples" / "train_gpt2.py"), "--size", "small" if on_gpu else "tiny"]
        program += ["--steps", "40"]
    if len(part.platforms) == 1:
        return [sys.executable, *program]
    return [sys.executable, "-P", "-m", "jax_passing", "run", "--hosts", str(len(part.platforms)), *program]


def run(part: Part, folder: Path, limit_s: float) -> dict[str, Any]:
    """Runs a part to its end, or to its limit."""
    result, log = folder / f"{part}.json", folder / f"{part}.log"
    result.unlink(missing_ok=True)
    # Hosts that share a card take what they need of its memory. jax_passing's own settings are made here.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_PASSING_")}
    environment.pop("PYTHONSAFEPATH", None)  # a program's modules stand beside it
    environment |= {"PYTHONUNBUFFERED": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment["JAX_PLATFORMS"] = CPU if set(part.platforms) == {CPU} else f"{GPU},{CPU}"
    if GPU in part.platforms:  # what one process has found of the fastest kernels, the next ones needn't find again
        (tuned := (folder / "autotune").resolve()).mkdir(exist_ok=True)
        flags = os.environ.get("XLA_FLAGS", "")
        environment["XLA_FLAGS"] = f"{flags} --xla_gpu_per_fusion_autotune_cache_dir={tuned}"
    began = time.monotonic()
    with log.open("w") as output:
        command = command_of(part, result, limit_s)
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            code: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:  # the launcher ends its hosts
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
    text = log.read_text(errors="replace")
    outcome: dict[str, Any] = {"seconds": time.monotonic() - began}
    if code is None and limit_s < PART_S:
        reason = f"out of time: not done in the {limit_s:.0f} s that were left"
        return {**outcome, "status": "left out", "reason": reason}
    if code != 0:
        reason = f"exit status {code}" if code is not None else f"not done after {limit_s:.0f} s"
        return {**outcome, "status": "failed", "reason": reason, "output": text[-6000:], "hung": code is None}
    if part.name in PROGRAMS and PROGRAMS[part.name][1] not in text:
        return {**outcome, "status": "failed", "reason": "it isn't right", "output": text[-6000:]}
    if part.name == "train" or part.name in PROGRAMS:
        return {**outcome, "status": "ran", "result": text.splitlines()}
    return {**outcome, "status": "ran", "result": json.loads(result.read_text())}


def left_out(part: Part, has_gpu: bool, only: list[str] | None, hung: list[int]) -> str | None:
    """Why it isn't run, if it isn't. `hung`: how many GPU hosts the parts had that came to no end."""
    if only is not None and part.name not in only:
        return "not asked for (--only)"
    if GPU in part.platforms and sum(count <= part.platforms.count(GPU) for count in hung) >= HANGS:
        return f"{HANGS} parts with no more hosts on a GPU came to no end"
    if GPU in part.platforms and not has_gpu:
        return "no GPU"
    if GPU not in part.platforms and has_gpu and part.name in CPU_ONLY_WHERE_NO_GPU:
        return "only where there is no GPU"
    return None


def part_names(text: str) -> list[str]:
    names, known = text.split(","), list(dict.fromkeys(part.name for part in PARTS))
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no part is called {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--report", type=Path, default=Path("build/gpu/report"), help="folder for report.md, report.json and logs")
    add("--minutes", type=float, default=8.0, help="after which no part is started any more")
    add("--only", type=part_names, help=f"of {','.join(dict.fromkeys(part.name for part in PARTS))}")
    arguments = parser.parse_args()
    folder = arguments.report
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    report: dict[str, Any] = {"machine": machine(), "parts": []}
    has_gpu = report["machine"]["backend"] == "gpu"
    if why := report["machine"]["why_no_gpu"]:
        print(f"no GPU: {why}", flush=True)
    hung: list[int] = []
    for part in PARTS:
        entry = {"name": part.name, "platforms": part.platforms}
        reason = left_out(part, has_gpu, arguments.only, hung)
        left_s = arguments.minutes * 60 - (time.monotonic() - began)
        if reason is None and left_s < 10:
            reason = f"out of time ({arguments.minutes:g} minutes)"
        if reason is not None:
            entry |= {"status": "left out", "reason": reason}
        else:
            entry |= run(part, folder, min(left_s, PART_S))
            if entry.get("hung") and GPU in part.platforms:
                hung.append(part.platforms.count(GPU))
            print(f"{part}: {entry['status']} in {entry['seconds']:.0f} s", flush=True)
        report["parts"].append(entry)
        (folder / "report.json").write_text(json.dumps(report, indent=1))
        (folder / "report.md").write_text(gpu_report.markdown(report))
    print(f"{folder / 'report.md'}: {gpu_report.verdict(report)}")
    sys.exit(0 if gpu_report.is_right(report) else 1)


if __name__ == "__main__":
    main()
