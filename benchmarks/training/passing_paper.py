"""Predicted speed-ups of training over a parameter server, as PASSING's abstract states one. Nothing is trained.

    python benchmarks/training/passing_paper.py --plot docs/images/passing_over_server.png

PASSING (Yu, Gu, Zhou, Wang: Acta Electronica Sinica 2025(8), 2636-2648) claims up to 65.25 % better training than with
a parameter server. Its abstract states neither models nor hosts, devices and links. So this draws the speed-up over the
hosts for several models and devices per host, and finds how fast devices are at which it is 65.25 %. Links alone
take time; processors take none, as if GPUs, network cards and switches did all that they do.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from jax_passing.commands.bench.table import require_matplotlib
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.models import NAMES, SEQUENCES, load
from jax_passing.predict.sums import Costs, all_costs
from jax_passing.predict.training import Training, train

CLAIMED = 1.6525
HOSTS, DEVICES = (2, 4, 6, 8, 16, 32, 64), (1, 4, 8)  # with one device server-flat is server
TABLE_HOSTS = (2, 4, 8)
SERVERS = ("server", "server-flat", "shards")
CURVES = (("server", 1, "-"), ("server-flat", 4, "--"), ("server-flat", 8, "--"), ("shards", 1, ":"))
SLOWEST_FLOPS_PER_S, FASTEST_FLOPS_PER_S = 1e10, 1e17

Sums = dict[tuple[int, int], dict[str, Costs]]  # by hosts and devices


def predicted(arguments: argparse.Namespace) -> Sums:
    found = {}
    for hosts in HOSTS:
        for devices in DEVICES:
            cluster = Cluster(hosts, devices, arguments.gbit, in_host_gbit=arguments.in_host_gbit, links_only=True)
            found[hosts, devices] = all_costs(cluster, ("passing", *SERVERS))
    return found


def training_of(name: str, arguments: argparse.Namespace) -> Training:
    rows = arguments.sequences if name in SEQUENCES else arguments.images
    return Training(model=load(name), rows=rows, flops_per_s=arguments.tflops * 1e12, overlap=arguments.overlap)


def speed_up(training: Training, sums: dict[str, Costs], server: str) -> float:
    return train(training, sums[server]).step_s / train(training, sums["passing"]).step_s


def claimed_at(training: Training, sums: dict[str, Costs], server: str) -> float | None:
    """The speed of devices, in operations a second, at which the speed-up is the claimed one; None if it never is."""
    slow, fast = SLOWEST_FLOPS_PER_S, FASTEST_FLOPS_PER_S
    if speed_up(replace(training, flops_per_s=fast), sums, server) < CLAIMED:
        return None
    while fast / slow > 1.0001:
        middle = (slow * fast) ** 0.5
        if speed_up(replace(training, flops_per_s=middle), sums, server) < CLAIMED:
            slow = middle
        else:
            fast = middle
    return fast


def table_of(sums: Sums, arguments: argparse.Namespace) -> Table:
    cases = [(hosts, devices) for hosts in TABLE_HOSTS for devices in (1, 4)]
    columns = [f"H={hosts}\nG={devices}" for hosts, devices in cases]
    title = f"predicted: TFLOP/s of a device at which the speed-up is {CLAIMED - 1:.2%}, {assumed(arguments)}"
    table = Table("model", "over", *columns, title=title, box=box.SIMPLE)
    for name in NAMES:
        for server in SERVERS:
            found = [claimed_at(training_of(name, arguments), sums[case], server) for case in cases]
            table.add_row(name, server, *("never" if one is None else f"{one / 1e12:.3g}" for one in found))
    return table


def assumed(arguments: argparse.Namespace) -> str:
    return (
        f"links of {arguments.gbit:g} Gbit/s, {arguments.in_host_gbit:g} inside a host, batches of {arguments.images} "
        f"images or {arguments.sequences} sequences a device, {'with' if arguments.overlap else 'without'} overlap"
    )


def draw(sums: Sums, arguments: argparse.Namespace) -> None:
    pyplot = require_matplotlib()
    pyplot.rcParams["svg.hashsalt"] = "passing"  # the same file in every run
    figure, panels = pyplot.subplots(1, len(NAMES), figsize=(15, 3.6), layout="constrained", sharey=True)
    for name, panel in zip(NAMES, panels, strict=True):
        training = training_of(name, arguments)
        for server, devices, style in CURVES:
            ratios = [speed_up(training, sums[hosts, devices], server) for hosts in HOSTS]
            label = f"over {server}, {f'G={devices}' if server == 'server-flat' else 'any G'}"
            panel.plot(HOSTS, ratios, style, marker="o", ms=3, label=label)
        panel.axhline(CLAIMED, color="black", ls=":", lw=1)
        panel.set(title=name, xscale="log", yscale="log", xlabel="hosts")
        panel.set_xticks(HOSTS, [str(one) for one in HOSTS])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("predicted speed-up of training")
    ticks: list[Any] = [1, CLAIMED, 4, 8, 16, 32, 64, 128]
    panels[0].set_yticks(ticks, [f"{one:g}" for one in ticks])
    panels[0].legend(fontsize="x-small")
    figure.suptitle(f"Predicted: {arguments.tflops:g} TFLOP/s a device, {assumed(arguments)}", fontsize="medium")
    figure.savefig(arguments.plot, dpi=80, metadata={"Date": None} if arguments.plot.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tflops", type=float, default=10.0, help="that a device reaches, in the plot")
    add("--gbit", type=float, default=10.0, help="rate of every link in each direction")
    add("--in-host-gbit", type=float, default=100.0, help="at which a host's devices send to each other")
    add("--images", type=int, default=32, help="in a device's batch")
    add("--sequences", type=int, default=8, help="of 1024 tokens, in a device's batch of GPT-2")
    add("--overlap", action="store_true", help="let sums travel while the backward pass runs")
    add("--plot", type=Path, help="draw curves into this file")
    arguments = parser.parse_args()
    sums = predicted(arguments)
    Console(width=None if sys.stdout.isatty() else 120).print(table_of(sums, arguments))
    if arguments.plot:
        draw(sums, arguments)


if __name__ == "__main__":
    main()
