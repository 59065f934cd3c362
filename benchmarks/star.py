"""Sums over a star of rate-limited links: jax_passing.psum beside what users have today, interleaved and checked.

    sudo python benchmarks/star.py --hosts 4 --gbit 1 --mebibytes 64 --contenders passing,gloo,openmpi-ring

Builds the star from network namespaces (root only), starts every contender's processes once, lets them sum in turns,
checks every element of every result, prints a table, and removes everything that it made.
"""

import argparse
import json
import socket
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table
from star_contenders import CONTENDERS, Running
from star_network import StarError, StarNetwork

WARM_UPS = 2  # they compile, and learn the order of sums
BATCH_BYTES = 64 * 1024  # sums below that are timed several in a row
BATCH_MAX = 50

UNDER_TABLE = """
The switch stands at the centre of the star with a port per host, as a network switch does: in an in-network sum a host
sends and receives every byte once. gloo and Open MPI have no such switch: hosts send to hosts. The server stands behind
one link like a host's. A switch that stood there would be a parameter server, too.
Time: median over all rounds and iterations, from the first rank's start to the last one's end. busbw: algbw x 2(H-1)/H,
as in nccl-tests. goodput: bytes of the sum over time. limit: what the system's own traffic with its headers takes at
line rate (derived in star_contenders.py). A bucket lets 128 KB pass unshaped, so a share may reach 100.2 % at 64 MiB.
"""


@dataclass
class Result:
    """One contender at one size."""

    contender: str
    label: str
    hosts: int
    devices: int
    gbit: float
    size: int
    limit_s: float | None
    times_s: list[float] = field(default_factory=list)
    wrong: int = 0

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)


def measure(
    star: StarNetwork, runnings: list[Running], size: int, rounds: int, iterations: int, status
) -> list[Result]:
    elements = size // 4
    sums = max(1, min(BATCH_MAX, BATCH_BYTES // size))
    results = [
        Result(
            r.name,
            r.contender.label,
            r.hosts,
            r.contender.devices,
            star.gbit,
            size,
            r.contender.limit_s(size, r.hosts, star.gbit),
        )
        for r in runnings
    ]
    number = 0
    for round_number in range(-1, rounds):
        for running, result in zip(runnings, results, strict=True):
            for _ in range(iterations if round_number >= 0 else WARM_UPS):
                status.update(f"{running.name}: {size} bytes, round {round_number + 1} of {rounds}")
                took_s, wrong = running.sum(elements, number, sums)
                number += sums
                result.wrong += wrong
                if round_number >= 0:
                    result.times_s.append(took_s)
    return results


def run(hosts: int, arguments: argparse.Namespace, console: Console) -> list[Result]:
    names = arguments.contenders.split(",")
    with (
        StarNetwork(hosts + ("server" in names), arguments.gbit) as star,
        socket.socket(socket.AF_UNIX) as listener,
        console.status("building the star") as status,
    ):
        listener.bind(str(star.folder / "orders"))
        listener.listen(256)
        runnings = []
        for name in names:
            status.update(f"starting {name}")
            running = Running(name, CONTENDERS[name], star, hosts)
            running.contender.start(running)
            running.connect(listener)
            runnings.append(running)
        results = []
        for mebibytes in numbers(arguments.mebibytes):
            size = max(4, int(mebibytes * 2**20) // 4 * 4)
            results += measure(star, runnings, size, arguments.rounds, arguments.iterations, status)
            show(results[-len(runnings) :], console)
        for running in runnings:
            for connection in running.connections:
                connection.close()
    return results


def show(results: list[Result], console: Console) -> None:
    hosts, gbit = results[0].hosts, results[0].gbit
    table = Table(
        title=f"{hosts} hosts, links of {gbit:g} Gbit/s" if gbit else f"{hosts} hosts, links not shaped", box=box.SIMPLE
    )
    for column in (
        "",
        "size\n(B)",
        "count",
        "type",
        "time\n(us)",
        "min",
        "max",
        "algbw\n(GB/s)",
        "busbw\n(GB/s)",
        "#wrong",
        "goodput /\nline rate",
        "limit\n(us)",
        "share of\nits limit",
    ):
        table.add_column(column, justify="left" if column in ("", "type") else "right")
    for r in results:
        algbw = r.size / r.median_s / 1e9
        table.add_row(
            r.label,
            str(r.size),
            str(r.size // 4),
            "float",
            f"{r.median_s * 1e6:.0f}",
            f"{min(r.times_s) * 1e6:.0f}",
            f"{max(r.times_s) * 1e6:.0f}",
            f"{algbw:.4f}",
            f"{algbw * 2 * (hosts - 1) / hosts:.4f}",
            str(r.wrong),
            f"{algbw * 8 / gbit:.1%}" if gbit else "",
            f"{r.limit_s * 1e6:.0f}" if r.limit_s else "",
            f"{r.limit_s / r.median_s:.1%}" if r.limit_s else "",
        )
    console.print(table)


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="4", help="one or several: 2,4,8")
    parser.add_argument("--gbit", type=float, default=1.0, help="rate of every link in each direction; 0: not shaped")
    parser.add_argument("--mebibytes", default="64", help="one or several: 0.001,1,64")
    parser.add_argument("--contenders", default="passing,gloo", help=f"of {','.join(CONTENDERS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=3, help="of each contender in each round")
    parser.add_argument("--json", metavar="PATH")
    arguments = parser.parse_args()
    unknown = set(arguments.contenders.split(",")) - set(CONTENDERS)
    if unknown:
        parser.error(f"no contender {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        results = [result for hosts in arguments.hosts.split(",") for result in run(int(hosts), arguments, console)]
    except StarError as error:
        sys.exit(f"star.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    console.print(UNDER_TABLE)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {
                    "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "results": [{**asdict(r), "median_s": r.median_s} for r in results],
                },
                file,
                indent=1,
            )
    if any(result.wrong for result in results):
        sys.exit("star.py: wrong elements (#wrong)")


if __name__ == "__main__":
    main()
