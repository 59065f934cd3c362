"""Predicted steps of data-parallel training for the paper's models, and for up to 1024 hosts. Nothing is trained.

    python benchmarks/training/paper_models.py
    python benchmarks/training/paper_models.py --tflops 100 --gbit 100 --hosts 6,64,1024

The models' shapes give the floating-point operations of each of their stages, --tflops the time that these take, and
jax_passing.simulate the step, with overlap and without. The paper is Xu et al. (Computer Science 2024(12), 120-128).
Its abstract states the speed-ups that stand beside the predicted ones, but neither devices nor links nor batches. So
these are assumptions of ours, which the options change; the paper's figures are for orientation.
"""

import argparse
import sys

import jax
from benchmark_models import Trained, alexnet, gpt2, gpt2_of, image_model, resnet50, vgg16
from rich import box
from rich.console import Console
from rich.table import Table

import jax_passing
from jax_passing.partitioning.plan import Plan
from jax_passing.pipelining.schedules import interleaved
from jax_passing.predict.cluster import Cluster

STAGES = 12  # the times within a step at which gradients are final
PAPER_GPT2, PAPER_NODES = "1.14-1.23", 6
PAPER_IMAGES = {"AlexNet": "1.31", "VGG16": "1.14", "ResNet50": "1.03"}

NOTE = """
step: without the optimiser. speed-up: without overlap / with it. paper: Xu et al., on machines that the abstract
doesn't describe. All else is predicted, for devices of the stated speed and links of the stated rate."""


def planned(trained: Trained, arguments: argparse.Namespace) -> Plan:
    params, batch = jax.eval_shape(trained.init), jax.eval_shape(lambda: trained.batch(trained.rows, 0))
    flops_per_s = arguments.tflops * 1e12
    return jax_passing.partition(trained.loss, params, batch, stages=STAGES, max_live=8, flops_per_s=flops_per_s)


def table_of(title: str, members: str) -> Table:
    columns = ("compute (ms)", "sums (ms)", "no overlap (ms)", "overlap (ms)", "speed-up", "paper")
    return Table("model", members, *columns, title=f"predicted: {title}", box=box.SIMPLE)


def add_row(table: Table, name: str, members: int, plan: Plan, cluster: Cluster, paper: str) -> None:
    schedule = interleaved(1, 1, len(plan.stages))
    together = jax_passing.simulate(plan, schedule, cluster)
    apart = jax_passing.simulate(plan, schedule, cluster, overlap=False)
    times_s = together.compute_s, together.sums_s, apart.time_s, together.time_s
    speed_up = f"{apart.time_s / together.time_s:.2f}"
    table.add_row(name, str(members), *(f"{1e3 * time_s:.1f}" for time_s in times_s), speed_up, paper)


def gpt2_table(arguments: argparse.Namespace) -> Table:
    title = f"GPT-2, {arguments.rows} x 1024 tokens a host, links of {arguments.gbit:g} Gbit/s, a switch on each host"
    table = table_of(title, "hosts")
    for name, config in (("Medium", gpt2.MEDIUM), ("Large", gpt2.LARGE), ("XL", gpt2.XL)):
        plan = planned(gpt2_of(config, arguments.rows), arguments)
        for hosts in arguments.hosts:
            cluster = Cluster(hosts=hosts, link_gbit=arguments.gbit, shards=hosts, colocated=True)
            add_row(table, f"GPT-2 {name}", hosts, plan, cluster, PAPER_GPT2 if hosts == PAPER_NODES else "")
    return table


def image_table(arguments: argparse.Namespace) -> Table:
    table = table_of(f"one host, {arguments.images} images a device, sums in the host's memory", "devices")
    for name, module, model in (
        ("AlexNet", alexnet, alexnet.AlexNet(alexnet.FULL)),
        ("VGG16", vgg16, vgg16.VGG16(vgg16.FULL)),
        ("ResNet50", resnet50, resnet50.ResNet50(resnet50.FULL)),
    ):
        plan = planned(image_model(module, model, arguments.images), arguments)
        cluster = Cluster(hosts=1, devices_per_host=arguments.devices)
        add_row(table, name, arguments.devices, plan, cluster, PAPER_IMAGES[name])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--tflops", type=float, default=10.0, help="that a device reaches")
    add("--gbit", type=float, default=10.0, help="rate of every link in each direction")
    add("--hosts", type=lambda text: [int(one) for one in text.split(",")], default=[6, 16, 64, 256, 1024])
    add("--rows", type=int, default=8, help="of 1024 tokens, in a host's batch of GPT-2")
    add("--devices", type=int, default=4, help="of the one host that trains image models")
    add("--images", type=int, default=64, help="in a device's batch")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"Assumed: devices of {arguments.tflops:g} TFLOP/s, sums of float32.", highlight=False)
    console.print(gpt2_table(arguments))
    console.print(image_table(arguments))
    console.print(NOTE, highlight=False)


if __name__ == "__main__":
    main()
