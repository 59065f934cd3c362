"""Measures the cost of loss: sums over a star that loses packets independently, at one rate after the other.

    sudo python benchmarks/star/goodput_under_loss.py --packets 1000000

The processes of one job sum at every rate until the hosts have sent the given number of packets; every element of every
sum is checked. The links lose packets of all kinds: of sums, of results and of the control connections, each way alike.
Ends with an error if any element is wrong.
"""

import argparse
import signal
import socket
import statistics
import sys
from dataclasses import dataclass

import star_loss
from rich import box
from rich.console import Console
from rich.table import Table
from star_contenders import CONTENDERS
from star_network import StarError, StarNetwork, run
from star_running import Running, Tensors

from jax_passing.protocol.packet import LANES_AT_MTU_1500

RATES = (0.0, 0.0001, 0.001, 0.01, 0.05, 0.20)
WARM_UPS = 2  # they compile, and learn the order of sums


@dataclass(frozen=True)
class Measured:
    """The measurements at one rate of loss.

    Attributes:
      sums: of all hosts together.
      packets: frames that reached an end of a link, or were lost there.
      lost: of these.
      goodput_gbit: of the median sum, its bytes over its time.
      slowest_s: of the slowest one.
      wrong: elements.
    """

    rate: float
    sums: int
    packets: int
    lost: int
    goodput_gbit: float
    slowest_s: float
    wrong: int


def one_packet_a_frame(star: StarNetwork) -> None:
    """The kernel cuts super-packets before they leave a device, so that each packet is lost for itself."""
    for namespace, device in star.devices():
        run("ip", "-n", namespace, "link", "set", "dev", device, "gso_max_segs", "1")


def measure(running: Running, tensors: Tensors, rate: float, sums: int, iteration: int) -> Measured:
    star_loss.add(running.star, rate)
    samples = [running.sum(tensors, iteration + i, 1) for i in range(sums)]
    lost = star_loss.count(running.star)
    star_loss.remove(running.star)
    times_s = [sample.time_s for sample in samples]
    goodput_gbit = 8e-9 * tensors.size / statistics.median(times_s)
    wrong = sum(sample.wrong for sample in samples)
    return Measured(rate, sums, lost.packets, lost.super_packets, goodput_gbit, max(times_s), wrong)


def measure_all(arguments: argparse.Namespace, console: Console) -> list[Measured]:
    tensors = Tensors((int(arguments.mebibytes * 2**18),), "float32")
    packets_a_sum = arguments.hosts * (tensors.elements[0] // LANES_AT_MTU_1500 + 1)
    sums = -(-arguments.packets // packets_a_sum)
    with StarNetwork(arguments.hosts, arguments.gbit) as star, socket.socket(socket.AF_UNIX) as listener:
        one_packet_a_frame(star)
        listener.bind(str(star.folder / "orders"))
        listener.listen(64)
        running = Running("passing", CONTENDERS["passing"], star, arguments.hosts)
        running.contender.start(running)
        running.connect(listener)
        found = []
        for i in range(WARM_UPS):
            running.sum(tensors, i, 1)
        for number, rate in enumerate(arguments.rates):
            with console.status(f"{rate:.2%} lost: {sums} sums of {arguments.mebibytes:g} MiB"):
                found.append(measure(running, tensors, rate, sums, WARM_UPS + number * sums))
        running.close()
    return found


def table(found: list[Measured], arguments: argparse.Namespace) -> Table:
    title = f"{arguments.hosts} hosts, links of {arguments.gbit:g} Gbit/s, {arguments.mebibytes:g} MiB of float32 a sum"
    columns = (
        "lost\neach way",
        "sums",
        "packets",
        "lost",
        "goodput\n(Gbit/s)",
        "of line rate",
        "slowest (s)",
        "#wrong",
    )
    shown = Table(title=title, box=box.SIMPLE)
    for column in columns:
        shown.add_column(column, justify="right")
    for one in found:
        share = f"{one.goodput_gbit / arguments.gbit:.1%}"
        numbers = (str(one.sums), str(one.packets), str(one.lost), f"{one.goodput_gbit:.3f}", share)
        shown.add_row(f"{100 * one.rate:g} %", *numbers, f"{one.slowest_s:.3f}", str(one.wrong))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--gbit", type=float, default=1.0, help="rate of every link in each direction")
    parser.add_argument("--mebibytes", type=float, default=16.0, help="size of a sum")
    parser.add_argument("--packets", type=int, default=1_000_000, help="that hosts send at each rate, resends aside")
    parser.add_argument("--rates", type=lambda text: [float(part) for part in text.split(",")], default=RATES)
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        found = measure_all(arguments, console)
    except StarError as error:
        sys.exit(f"goodput_under_loss.py: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    console.print(table(found, arguments))
    if any(one.wrong for one in found):
        sys.exit("goodput_under_loss.py: wrong elements")


if __name__ == "__main__":
    main()
