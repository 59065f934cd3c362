"""Trains the examples with fewer bytes and looser paces: accuracy, and the time to it on links of some rates.

    python benchmarks/training/accuracy.py                 # hosts on this machine, over loopback; rates are predicted
    sudo python benchmarks/training/accuracy.py --star 0.1 # over a star of links of 0.1 Gbit/s; times are measured

Every method trains with every seed: handwritten digits (accuracy on images not trained on), and a small GPT-2 on the
sources of Python's standard library (loss on text not trained on). All methods but bfloat16 compute in float32.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "star"))

from rich import box
from rich.console import Console
from rich.table import Table
from star_network import StarError, StarNetwork

EXAMPLES = Path(__file__).parents[2] / "examples"
PORT = 47200
TRAINING_S = 900.0
METHODS = {
    "float32": "",
    "bfloat16": "--dtype bfloat16",
    "int16": "--wire-dtype int16",
    "int8, error feedback": "--wire-dtype int8",
    "int4, error feedback": "--wire-dtype int4",
    "int8, none": "--wire-dtype int8 --no-error-feedback",
    "PowerSGD, rank 4": "--powersgd 4",
    "stale by 1": "--pace stale:1",
    "local SGD, every 10": "--pace local-sgd:10",
    "DiLoCo, every 20": "--pace diloco:20",
    "DiLoCo, every 20, int4": "--pace diloco:20 --wire-dtype int4",
    "DiLoCo, every 20, delay 5": "--pace diloco:20:5",
}
BASELINE = "bfloat16"
HIDES = ("stale by 1",)  # whole steps hide the sums of these
# Ethernet's, IP's and UDP's headers come on top of the 1,364 bytes that are counted in a packet.
WIRE_BYTES_PER_BYTE = 1 + 42 / 1364

NOTE = """
share: of bfloat16's mean (for a loss: bfloat16's over the method's). It is no better known than the seeds agree; one of
the 360 images is 0.28 %. steps, time: until a look at the model first finds the target, medians of the seeds; - if a
seed never finds it. A look comes every 10 steps (digits) or 20 (gpt2). sent: KB of a host a step, with our headers.
At a rate: predicted, steps to the target x (a step over loopback + what is sent at that rate), without round trips; for
stale, the larger of both. A step over loopback includes rounding and the software's part of a sum.
"""


@dataclass(frozen=True)
class Trained:
    """One training.

    Attributes:
      score: accuracy in %, or loss.
      target_steps, target_s: when the target was reached; None if it never was.
      step_s: of training, on average.
      sent_bytes: by a host in a step.
    """

    example: str
    method: str
    seed: int
    score: float
    target_steps: int | None
    target_s: float | None
    step_s: float
    sent_bytes: float


@dataclass(frozen=True)
class Example:
    """An example, and how to read its report.

    Attributes:
      flags: of its command line.
      steps: of a training.
      score, step: patterns for the score, and for the steps a second or the seconds a step.
      unit: of the score, in tables.
      rises: whether a larger score is better.
    """

    flags: Sequence[str]
    steps: int
    score: str
    step: str
    unit: str
    rises: bool

    def share(self, score: float, baseline: float) -> float:
        return score / baseline if self.rises else baseline / score

    def read(self, name: str, method: str, seed: int, report: str) -> Trained:
        reached = re.search(r"first after step (\d+), ([\d.]+) s of training", report)
        speed = float(_found(self.step, report))
        return Trained(
            name,
            method,
            seed,
            float(_found(self.score, report)),
            int(reached[1]) if reached else None,
            float(reached[2]) if reached else None,
            1 / speed if self.rises else speed,
            float(_found(r"moved +([\d.]+) MB sent", report)) * 1e6 / self.steps,
        )


def _found(pattern: str, report: str) -> str:
    match = re.search(pattern, report)
    if match is None:
        raise StarError(f"A training failed. It printed:\n{report}")
    return match[1]


def examples(arguments: argparse.Namespace) -> dict[str, Example]:
    steps, target = arguments.gpt2_steps, arguments.gpt2_target
    gpt2 = ["--size", arguments.gpt2_size, "--steps", str(steps), "--target", str(target), "--peak-tflops", "1"]
    return {
        "digits": Example([], 500, r"accuracy +([\d.]+)%", r"speed +(\d+) steps/s", "%", True),
        "gpt2": Example(
            ["--dtype", "float32", *gpt2], steps, r"held out +([\d.]+)", r", ([\d.]+) s a step", "loss", False
        ),
    }


def train_over_loopback(hosts: int, command: Sequence[str]) -> str:
    run = [sys.executable, "-m", "jax_passing", "run", "--hosts", str(hosts), *command]
    done = subprocess.run(run, env=_environment(), capture_output=True, text=True, timeout=TRAINING_S)
    return done.stdout + done.stderr


def train_over_star(hosts: int, gbit: float, command: Sequence[str]) -> str:
    with StarNetwork(hosts, gbit) as star:
        job = {"JAX_PASSING_SWITCH": star.serve(PORT), "JAX_PASSING_JOB": "accuracy"}
        ranks = [
            star.start(
                rank,
                [sys.executable, *command],
                env=_environment() | job | {"JAX_PASSING_WORLD_SIZE": str(hosts), "JAX_PASSING_RANK": str(rank)},
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=rank == 0,
            )
            for rank in range(hosts)
        ]
        report, _ = ranks[0].communicate(timeout=TRAINING_S)
        return str(report)


def _environment() -> dict[str, str]:
    # The examples' own folder has what they import, where a safe path doesn't look.
    return {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONSAFEPATH": "", "NO_COLOR": "1"}


def predicted_s(trained: Trained, gbit: float) -> float | None:
    """Returns the time to the target over links of this rate, from a training over loopback."""
    if trained.target_steps is None:
        return None
    sum_s = trained.sent_bytes * WIRE_BYTES_PER_BYTE * 8 / (gbit * 1e9)
    hides = trained.method in HIDES
    return trained.target_steps * (max(trained.step_s, sum_s) if hides else trained.step_s + sum_s)


def _median(numbers: Sequence[float | None], digits: int) -> str:
    known = [number for number in numbers if number is not None]
    return f"{statistics.median(known):.{digits}f}" if known and len(known) == len(numbers) else "-"


def table(name: str, example: Example, trainings: Sequence[Trained], arguments: argparse.Namespace) -> Table:
    by_method = {m: [t for t in trainings if t.method == m] for m in METHODS if any(t.method == m for t in trainings)}
    means = {method: statistics.mean(t.score for t in each) for method, each in by_method.items()}
    seeds = sorted({t.seed for t in trainings})
    digits = 2 if example.rises else 4
    where = f"links of {arguments.star:g} Gbit/s" if arguments.star else "over loopback"
    columns = ["method", *(f"seed {seed}\n({example.unit})" for seed in seeds), f"mean\n({example.unit})", "share"]
    columns += ["steps to\ntarget", "sent\n(KB)", "step\n(ms)", "time to\ntarget (s)"]
    columns += [] if arguments.star else [f"at {gbit:g}\nGbit/s (s)" for gbit in arguments.gbit]
    shown = Table(*columns, title=f"{name}: {arguments.hosts} hosts, {where}", box=box.SIMPLE)
    for method, each in by_method.items():
        share = f"{example.share(means[method], means[BASELINE]):.2%}" if BASELINE in means else ""
        cells = [*(f"{t.score:.{digits}f}" for t in each), f"{means[method]:.{digits}f}", share]
        cells += [_median([t.target_steps for t in each], 0)]
        cells += [f"{statistics.median(t.sent_bytes for t in each) / 1e3:.1f}"]
        cells += [f"{statistics.median(t.step_s for t in each) * 1e3:.1f}", _median([t.target_s for t in each], 2)]
        if not arguments.star:
            cells += [_median([predicted_s(t, gbit) for t in each], 1) for gbit in arguments.gbit]
        shown.add_row(method, *cells)
    return shown


def run(arguments: argparse.Namespace, console: Console) -> list[Trained]:
    trainings = []
    for name, example in examples(arguments).items():
        if name not in arguments.examples:
            continue
        own = []
        for seed in arguments.seeds:
            for method in arguments.methods:
                command = [str(EXAMPLES / f"train_{name}.py"), *example.flags, *METHODS[method].split()]
                command += ["--seed", str(seed)]
                with console.status(f"{name}, seed {seed}: {method}"):
                    report = (
                        train_over_star(arguments.hosts, arguments.star, command)
                        if arguments.star
                        else train_over_loopback(arguments.hosts, command)
                    )
                own.append(example.read(name, method, seed, report))
        console.print(table(name, example, own, arguments))
        trainings += own
    console.print(NOTE, highlight=False)
    return trainings


def _methods(text: str) -> list[str]:
    known = {method.replace(",", "").replace(" ", "-"): method for method in METHODS}
    unknown = [name for name in text.split(",") if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--examples", type=lambda text: text.split(","), default=["digits", "gpt2"], help="digits,gpt2")
    add("--methods", type=_methods, default=list(METHODS), help="of the table, with - for spaces: float32,int8-none")
    # The learning rate of stale and the momentum of DiLoCo in the examples were chosen by looking at seeds 0 and 1.
    add("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[2, 3, 4])
    add("--hosts", type=int, default=2)
    add("--gbit", type=lambda text: [float(part) for part in text.split(",")], default=[0.02, 0.1, 1.0], help="rates")
    add("--star", type=float, metavar="GBIT", help="trains over a star of links of this rate (root)")
    add("--gpt2-size", default="tiny", help="of examples/train_gpt2.py")
    add("--gpt2-steps", type=int, default=400)
    add("--gpt2-target", type=float, default=2.5, help="the loss to reach")
    add("--json", metavar="PATH", help="writes every training")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        trainings = run(arguments, console)
    except (StarError, subprocess.TimeoutExpired) as error:
        sys.exit(f"accuracy.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if arguments.json:
        content: dict[str, Any] = {"options": vars(arguments), "trainings": [asdict(each) for each in trainings]}
        Path(arguments.json).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
