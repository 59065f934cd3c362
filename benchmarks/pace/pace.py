"""Trainings that wait less, beside synchronous ones, on a star of rate-limited links, with and without stragglers.

    sudo python benchmarks/pace/pace.py --hosts 4 --steps 80     # half an hour
    sudo python benchmarks/pace/pace.py --quick
    sudo python benchmarks/pace/pace.py --ratio 4 --no-stragglers --methods "alone;diloco;diloco, 2 parts, delay 3"

Every method trains a classifier of digits on the same batches. A step takes --step-ms, which a host mostly sleeps, as
if hosts had processors of their own; a straggler takes 2 or 10 times as long, in turns or always. Links are so fast
that a sum of all gradients takes --ratio steps, or as fast as --gbit says. Prints for each method the time of a step
beside the predicted one, the time until --accuracy is reached, and the accuracy at the end.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "star"))

from pace_methods import METHODS, label_of, predicted_step_s
from rich import box
from rich.console import Console
from rich.table import Table
from star_network import StarError, StarNetwork

from jax_passing.predict.cluster import Cluster
from jax_passing.predict.constants import TCP_WIRE_BYTES_PER_BYTE
from jax_passing.predict.pace import Stragglers
from jax_passing.predict.sums import predict

FOLDER = Path(__file__).parent
SWITCH_PORT, SERVER_PORT = 47100, 47200
# Parameters of pace_host.MODELS.
ELEMENTS = {"digits": 29_066, "large": 1_126_410}
STRAGGLERS = [(0, 1.0, True), (1, 2.0, True), (1, 10.0, True), (1, 2.0, False), (1, 10.0, False)]  # of Stragglers

NOTE = """
predicted: on a virtual clock (jax_passing/predict/pace.py), from the step without sums as measured, the sum as
predicted, and the processor time of a host's step, of which the method's own work and the sum's packets take some: what
a step takes beside its sleep grows with it. to accuracy: until rank 0 classifies so many of the digits right that
weren't trained on; -: not within these steps. asynchronous: each host by itself, through a server behind one link; its
updates are as stale as it happens. alone: no sums at all. hidden: of the time that sums of diloco take, a delay hides
(no delay - delay) / (no delay - alone).
A link's bucket lets its first 128 KB pass unshaped, and the sums of digits are no larger: they hardly take time."""


def environment(star: StarNetwork, rank: int, hosts: int, address: str) -> dict[str, str]:
    job = {"JAX_PASSING_JOB": "pace", "JAX_PASSING_SWITCH": address, "JAX_PASSING_WORLD_SIZE": str(hosts)}
    own = {"JAX_PASSING_RANK": str(rank), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONHASHSEED": "0"}
    return {**os.environ, **job, **own}


def run(plan: dict[str, Any], hosts: int, gbit: float) -> list[list[dict[str, Any]]]:
    """Returns what each host measured, in the order of the plan."""
    with StarNetwork(hosts + 1, gbit) as star:
        address = star.serve(SWITCH_PORT)
        server = f"{star.address(hosts)}:{SERVER_PORT}"  # behind a link as a host's
        command = [sys.executable, str(FOLDER / "parameter_server.py"), server]
        serving = star.start(hosts, command, stdout=subprocess.PIPE)
        assert serving.stdout is not None
        serving.stdout.readline()
        command = [sys.executable, str(FOLDER / "pace_host.py"), json.dumps(plan), "--server", server]
        logs = [star.folder / f"rank{rank}.log" for rank in range(hosts)]
        started = []
        for rank, path in enumerate(logs):
            with path.open("wb") as log:
                own = environment(star, rank, hosts, address)
                started.append(star.start(rank, command, env=own, stdout=log, stderr=subprocess.STDOUT))
        codes = [process.wait(plan["limit_s"]) for process in started]
        texts = [path.read_text(errors="replace") for path in logs]
    for rank, code in enumerate(codes):
        if code:
            raise StarError(f"rank {rank} ended with {code}:\n" + "\n".join(texts[rank].splitlines()[-20:]))
    return [[json.loads(line) for line in text.splitlines() if line.startswith("{")] for text in texts]


def rows_of(found: list[list[dict[str, Any]]], plan: dict[str, Any], gbit: float) -> list[dict[str, Any]]:
    hosts, elements = len(found), ELEMENTS[plan["model"]]
    sum_s = predict(Cluster(hosts, 1, gbit), "passing", elements).time_s
    push_s = elements * 4 * TCP_WIRE_BYTES_PER_BYTE * 8 / (gbit * 1e9)
    beside_s = alone_s = 0.0  # what a step without sums takes beside its sleep; of how much processor time
    rows: list[dict[str, Any]] = []
    for runs in zip(*found, strict=True):
        name, stragglers = runs[0]["method"], Stragglers(*runs[0]["stragglers"])
        accuracy = runs[0]["accuracy"]
        reached = [clock_s for clock_s, right in accuracy if right >= plan["accuracy"]]
        step_s = max(run["clock_s"] for run in runs) / plan["steps"]
        processor_s = sum(run["processor_s"] for run in runs) / hosts / plan["steps"]
        if name == "alone" and not stragglers.hosts:
            beside_s, alone_s = max(0.0, step_s - plan["compute_s"]), processor_s
        own_s = beside_s * processor_s / alone_s if alone_s else 0.0
        stale = {int(behind): pushes for behind, pushes in runs[0]["staleness"].items()}
        rows.append(
            {
                "method": name,
                "stragglers": label_of(stragglers),
                "step_s": step_s,
                "processor_s": processor_s,
                "predicted_s": predicted_step_s(
                    METHODS[name], hosts, plan["steps"], plan["compute_s"], own_s, sum_s, stragglers, push_s
                ),
                "to_accuracy_s": reached[0] if reached else None,
                "accuracy": accuracy[-1][1],
                "staleness_mean": sum(b * n for b, n in stale.items()) / sum(stale.values()) if stale else None,
                "staleness_max": max(stale) if stale else None,
            }
        )
    return rows


def hidden(rows: list[dict[str, Any]], label: str) -> float | None:
    """Returns the share of the outer sums' time that a delay hides; None if methods are missing, or no sum shows."""
    times = {row["method"]: row["step_s"] for row in rows if row["stragglers"] == label}
    late = [name for name in times if METHODS[name].pace.delay and METHODS[name].pace.every > 1]
    if not late or "diloco" not in times or "alone" not in times or times["diloco"] <= times["alone"]:
        return None
    return (times["diloco"] - times[late[0]]) / (times["diloco"] - times["alone"])


def show(rows: list[dict[str, Any]], title: str, console: Console) -> None:
    columns = (
        "method",
        "stragglers",
        "step\n(ms)",
        "predicted\n(ms)",
        "processor\n(ms)",
        "to accuracy\n(s)",
        "accuracy",
        "updates stale\nby",
    )
    shown = Table(*columns, title=title, box=box.SIMPLE)
    for row in rows:
        reached, stale = row["to_accuracy_s"], row["staleness_mean"]
        shown.add_row(
            row["method"],
            row["stragglers"],
            f"{row['step_s'] * 1e3:.1f}",
            f"{row['predicted_s'] * 1e3:.1f}",
            f"{row['processor_s'] * 1e3:.1f}",
            "-" if reached is None else f"{reached:.2f}",
            f"{row['accuracy']:.1%}",
            "" if stale is None else f"{stale:.1f}, at most {row['staleness_max']}",
        )
    console.print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hosts", type=int, default=4)
    add("--model", choices=ELEMENTS, default="large")
    add("--methods", type=lambda text: text.split(";"), default=list(METHODS), help=f"of {';'.join(METHODS)}")
    add("--steps", type=int, default=240)
    add("--step-ms", type=float, default=100.0, help="how long a host computes, at least")
    add("--ratio", type=float, default=1.0, help="how many steps' time a sum takes at line rate")
    add("--gbit", type=float, default=0.0, help="rate of every link in each direction, instead of --ratio")
    add("--accuracy", type=float, default=0.95, help="that is to be reached")
    add("--no-stragglers", action="store_true")
    add("--quick", action="store_true", help="few steps, fewer kinds of stragglers: shows that all runs")
    add("--json", metavar="PATH", help="writes every figure")
    arguments = parser.parse_args()
    if unknown := set(arguments.methods) - set(METHODS):
        parser.error(f"no {', '.join(sorted(unknown))}; there are {'; '.join(METHODS)}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    compute_s = arguments.step_ms / 1e3
    rate = ELEMENTS[arguments.model] * 4 * TCP_WIRE_BYTES_PER_BYTE * 8 / (compute_s * arguments.ratio) / 1e9
    gbit = arguments.gbit or rate
    plan = {
        "model": arguments.model,
        "methods": arguments.methods,
        "stragglers": STRAGGLERS[:1] if arguments.no_stragglers else STRAGGLERS[:: 2 if arguments.quick else 1],
        "steps": 24 if arguments.quick else arguments.steps,
        "compute_s": compute_s,
        "evaluate_every": 8,
        "accuracy": arguments.accuracy,
        "limit_s": 3600,
    }
    try:
        rows = rows_of(run(plan, arguments.hosts, gbit), plan, gbit)
    except StarError as error:
        sys.exit(f"pace.py: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    title = f"{arguments.model} on {arguments.hosts} hosts, links of {gbit:.3g} Gbit/s, {arguments.step_ms:g} ms a step"
    show(rows, title, console)
    for label in dict.fromkeys(row["stragglers"] for row in rows):
        share = hidden(rows, label)
        console.print(f"hidden, stragglers {label}: {'no sum shows' if share is None else f'{share:.0%}'}")
    console.print(NOTE, soft_wrap=True, highlight=False)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"options": vars(arguments), "gbit": gbit, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
