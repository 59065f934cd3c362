"""Predicted training and sums on clusters that aren't here: the figures of docs/reference/scale.md. Nothing is trained.

python benchmarks/training/scale.py --plot docs/images/scale.png
"""

import argparse
from pathlib import Path

from jax_passing.commands.bench.table import require_matplotlib
from jax_passing.commands.plan_table import seconds
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.models import load
from jax_passing.predict.pace import Pace, Stragglers
from jax_passing.predict.sums import all_costs, predict
from jax_passing.predict.training import PredictedTraining, Training, train

HOSTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
CURVES = ("passing", "tree", "in-rack", "flat", "ring", "ring-of-hosts", "halving-doubling", "shards", "server")
GPT2_SMALL = 124_439_808  # parameters


def thousands_of_hosts() -> dict[int, dict[str, PredictedTraining]]:
    """Predicts ResNet50 on 8 devices of 50 TFLOP/s a host, with racks of 32, by hosts and scheme."""
    training = Training(model=load("resnet50"), flops_per_s=50e12)
    found = {}
    for hosts in HOSTS:
        cluster = Cluster(
            hosts, 8, 100.0, in_host_gbit=1000.0, round_trip_us=5.0, rack_hosts=32, oversubscription=4, links_only=True
        )
        found[hosts] = {scheme: train(training, costs) for scheme, costs in all_costs(cluster, CURVES).items()}
    return found


def draw(found: dict[int, dict[str, PredictedTraining]], path: Path) -> None:
    pyplot = require_matplotlib()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4), layout="constrained")
    for scheme in CURVES:
        left.plot(HOSTS, [found[hosts][scheme].efficiency for hosts in HOSTS], marker="o", ms=3, label=scheme)
        if scheme != "server":
            ratios = [found[hosts]["server"].step_s / found[hosts][scheme].step_s for hosts in HOSTS]
            right.plot(HOSTS, ratios, marker="o", ms=3, label=scheme)
    left.set(xscale="log", xlabel="hosts", ylabel="efficiency")
    right.set(xscale="log", yscale="log", xlabel="hosts", ylabel="speed-up over server")
    for panel in (left, right):
        panel.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize="small")
    figure.suptitle(
        "predicted: resnet50, 32 images a device, 50 TFLOP/s,\n"
        "8 devices a host, 100 Gbit/s, racks of 32, oversubscription 4, links only",
        fontsize="medium",
    )
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def print_paces() -> None:
    """Prints a step of ResNet50 on 64 hosts of 8 devices, one of which computes four times as long."""
    costs = all_costs(Cluster(64, 8, 25.0, links_only=True), ("passing", "ring-of-hosts", "server"))
    model = load("resnet50")
    print(
        *(
            "no slow host",
            *(f"{name} {seconds(train(Training(model=model), one).step_s)}" for name, one in costs.items()),
        )
    )
    for pace in (Pace(), Pace(delay=1), Pace(delay=4), Pace(every=8)):
        for in_turns in (True, False):
            training = Training(model=model, pace=pace, stragglers=Stragglers(1, 4.0, in_turns))
            steps = (f"{name} {seconds(train(training, one).step_s)}" for name, one in costs.items())
            print(pace, "another host in each step" if in_turns else "always the same host", *steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="draw training on up to 4,096 hosts into this file")
    arguments = parser.parse_args()
    found = thousands_of_hosts()
    for hosts, own in found.items():
        print(hosts, "hosts:", *(f"{scheme} {one.efficiency:.1%}" for scheme, one in own.items()))
    print_paces()
    for wire_dtype in ("full", "int16", "int8", "int4"):
        time_s = predict(Cluster(4, link_gbit=1.0), "passing", GPT2_SMALL, wire_dtype=wire_dtype).time_s
        print(f"gradients of GPT-2 small, four hosts at 1 Gbit/s, {wire_dtype}: {time_s:.2f} s")
    if arguments.plot:
        draw(found, arguments.plot)


if __name__ == "__main__":
    main()
