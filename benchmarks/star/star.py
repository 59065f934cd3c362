"""Collectives over a star of rate-limited links: jax_passing beside what users have today, in turns and checked.

    sudo python benchmarks/star/star.py --hosts 4 --gbit 1 --mebibytes 64 --contenders passing,gloo,openmpi-ring
    sudo python benchmarks/star/star.py --hosts 4 --collective both --contenders passing,for-jax,gloo,openmpi

Builds the star from network namespaces (root only), starts every contender's processes once, lets them sum in turns,
checks every element of every result, prints a table, and removes everything that it made. Open MPI's ranks need
openmpi-bin and mpi4py, plots need matplotlib: pip install 'jax-passing[bench]'.
"""

import argparse
import signal
import socket
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import star_loss
from rich import box
from rich.console import Console
from rich.table import Table
from star_collectives import COLLECTIVES
from star_contenders import CONTENDERS
from star_network import StarError, StarNetwork
from star_running import Running, Sample, Tensors

from jax_passing.commands.bench import table
from jax_passing.config import RANKS_MAX_OF_WIRE
from jax_passing.errors import PassingError

PERCENTILES = (0, 10, 50, 90, 99, 99.9)
WARM_UPS = 2  # they compile, and learn the order of sums
ITERATION_BYTES = 64 * 2**20  # of several sums: ranks that share cores start milliseconds apart
BESIDE_SHARE = 1 / 8  # of the bytes beside: that sum is to be under way until the others are over
# The gradients of GPT-2 small in the order of its layers: 148 leaves, 124,439,808 parameters.
_D = 768
_LAYER = (_D, _D, 3 * _D * _D, 3 * _D, _D * _D, _D, _D, _D, 4 * _D * _D, 4 * _D, 4 * _D * _D, _D)
GPT2 = (50257 * _D, 1024 * _D, *(_LAYER * 12), _D, _D)

NOTE = """
The switch stands at the centre of the star with a port per host, as a network switch does: in an in-network sum a host
sends and receives every byte once. gloo, Open MPI and mpi4jax have no such switch: hosts send to hosts. The parameter
server is the same program behind one link, like a host's: a switch that stood there would be no faster.
Each time is from the first rank's start to the last one's end. limit: the time of the system's own traffic at line rate
with its headers (star_contenders.py derives it). A bucket lets its first 128 KB pass unshaped, so a share may reach
100.2 % at 64 MiB. CPU: ns of a host's processes per KB of the sum, and of the switch's per KB that it receives.
memory: by how much a rank's memory grew during an iteration; a sum's result may take its input's place."""


@dataclass
class Case:
    """One contender at one size, with its measurements so far."""

    running: Running
    tensors: Tensors
    samples: list[Sample] = field(default_factory=list)
    wrong: int = 0

    def row(self) -> table.Row:
        running, gbit = self.running, self.running.star.gbit
        return table.Row(
            system=running.contender.label,
            hosts=running.hosts,
            devices_per_host=running.contender.devices,
            size_bytes=self.tensors.size,
            dtype=self.tensors.dtype,
            count=sum(self.tensors.elements),
            times_s=tuple(sample.time_s for sample in self.samples),
            wrong=self.wrong,
            in_place=running.name not in ("openmpi", "openmpi-ring"),
            line_rate_bits_per_s=gbit * 1e9 or None,
            limit_s=running.contender.limit_s(running.collective, self.tensors.size, running.hosts, gbit),
            predicted_s=(
                running.contender.predicted_s(self.tensors, running.hosts, gbit)
                if running.collective == "psum"
                else None
            ),
        )

    def cpu_ns_per_kb(self) -> tuple[float, float]:
        """Returns the median CPU time of a host and of the switch, in ns per KB."""
        kilobytes = self.tensors.size / 1024
        host = statistics.median(sample.host_cpu_s for sample in self.samples) / kilobytes
        # With flat, the switch receives one buffer a device.
        received = (
            kilobytes
            * self.running.hosts
            * (self.running.contender.devices if self.running.name.startswith("flat") else 1)
        )
        switch = statistics.median(sample.switch_cpu_s for sample in self.samples) / received
        return host * 1e9, switch * 1e9


def measure(runnings: Sequence[Running], tensors: Tensors, arguments: argparse.Namespace, status: Any) -> list[Case]:
    """Lets all take turns."""
    rounds, iterations = arguments.rounds, arguments.iterations
    room = int(arguments.beside * 2**20 * BESIDE_SHARE) or ITERATION_BYTES
    sums = max(1, min(arguments.sums, room // tensors.size))
    beside = int(arguments.beside * 2**20 / (tensors.size / sum(tensors.elements)))
    cases = [Case(running, tensors) for running in runnings]
    iteration = 0
    for turn in range(rounds + 1):
        for case in cases:
            for _ in range(iterations if turn else WARM_UPS):
                status.update(f"{case.running.name}: {tensors.size} bytes, round {turn} of {rounds}")
                sample = case.running.sum(tensors, iteration, sums, beside)
                iteration += sums
                case.wrong += sample.wrong
                if turn:
                    case.samples.append(sample)
    return cases


def run(hosts: int, arguments: argparse.Namespace, console: Console) -> list[Case]:
    """Everything with one number of hosts."""
    names: list[str] = arguments.contenders
    machines = max([hosts, *(host + 1 for name in names for host in CONTENDERS[name].switch_hosts(hosts))])
    with (
        console.status("building the star") as status,
        StarNetwork(machines, arguments.gbit, arguments.mtu) as star,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        if arguments.loss:
            star_loss.add(star, arguments.loss)
        if arguments.no_multicast:
            star.forbid_multicast()
        listener.bind(str(star.folder / "orders"))
        listener.listen(256)
        runnings = []
        for name in names:
            status.update(f"starting {name}")
            running = Running(name, CONTENDERS[name], star, hosts, arguments.collective)
            running.contender.start(running)
            running.connect(listener)
            runnings.append(running)
        cases = []
        for tensors in sums_of(arguments, hosts):
            cases += measure(runnings, tensors, arguments, status)
        show(cases, arguments, console)
        if arguments.loss:
            lost = star_loss.count(star)
            console.print(f"lost: {lost.super_packets} super-packets; {lost.packets} packets reached a link's end")
        for running in runnings:
            lines = running.close()
            if arguments.counters and any(process.startswith("switch") for process in lines):
                for process, line in lines.items():
                    if process == "rank0" or process.startswith("switch"):
                        console.print(f"{running.name}, {process}: {line}", soft_wrap=True, highlight=False)
    return cases


def sums_of(arguments: argparse.Namespace, hosts: int) -> list[Tensors]:
    element = 2 if arguments.dtype == "bfloat16" else 4
    if arguments.tree == "gpt2":
        return [Tensors(GPT2, arguments.dtype)]
    # Each of up to two devices a host has a part of what is scattered or gathered.
    parts = 1 if arguments.collective == "psum" else 2 * hosts
    counts = (max(1, int(size * 2**20 / element / parts)) * parts for size in arguments.mebibytes)
    return [Tensors((count,), arguments.dtype) for count in counts]


def show(cases: Sequence[Case], arguments: argparse.Namespace, console: Console) -> None:
    hosts, gbit = cases[0].running.hosts, arguments.gbit
    title = f"{arguments.collective}, {hosts} hosts, "
    title += f"links of {gbit:g} Gbit/s" if gbit else "links not shaped"
    if arguments.loss:
        title += f", {arguments.loss:.2%} lost each way"
    if arguments.beside:
        title += f", beside a sum of {arguments.beside:g} MiB"
    console.print(table.table([case.row() for case in cases], title))
    costs = Table("system", "size (B)", "CPU, host\n(ns/KB)", "CPU, switch\n(ns/KB)", "memory\n(MiB)", box=box.SIMPLE)
    for case in cases:
        host, switch = case.cpu_ns_per_kb()
        label = f"{case.running.contender.label}, L={case.running.contender.devices}"
        memory = max(sample.memory_bytes for sample in case.samples) / 2**20
        costs.add_row(label, str(case.tensors.size), f"{host:.0f}", f"{switch:.0f}" if switch else "", f"{memory:.1f}")
    if not arguments.beside:
        console.print(costs)
    console.print(latencies(cases))
    if arguments.beside:
        for case in cases:
            beside_s = statistics.median(sample.beside_s for sample in case.samples)
            label = f"{case.running.contender.label}, {case.tensors.size} bytes"
            console.print(f"{label}: the sum beside took {1e3 * beside_s:.0f} ms")


def latencies(cases: Sequence[Case]) -> Table:
    """Makes a table of the times of single sums."""
    headings = [f"p{share:g}\n(us)" for share in PERCENTILES]
    result = Table("system", "size (B)", "sums", *headings, box=box.SIMPLE)
    for heading in ("CPU, host\n(us a sum)", "CPU, switch\n(us a sum)", "sleeps\n(a rank, a sum)"):
        result.add_column(heading)
    for case in cases:
        times_s = sorted(time_s for sample in case.samples for time_s in sample.times_s)
        at = [times_s[min(len(times_s) - 1, int(share / 100 * len(times_s)))] for share in PERCENTILES]
        host_s = statistics.median(sample.host_cpu_s for sample in case.samples)
        switch_s = statistics.median(sample.switch_cpu_s for sample in case.samples)
        result.add_row(
            f"{case.running.contender.label}, L={case.running.contender.devices}",
            str(case.tensors.size),
            str(len(times_s)),
            *(f"{time_s * 1e6:.1f}" for time_s in at),
            f"{host_s * 1e6:.1f}",
            f"{switch_s * 1e6:.1f}" if switch_s else "",
            f"{statistics.median(sample.sleeps for sample in case.samples):.2f}",
        )
    return result


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _contenders(text: str) -> list[str]:
    if text == "all":
        return list(CONTENDERS)
    unknown = [name for name in text.split(",") if name not in CONTENDERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(CONTENDERS)}, or all")
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hosts", type=_counts, default=[4], help="one or several: 2,4,8")
    add("--gbit", type=float, default=1.0, help="rate of every link in each direction; 0: not shaped")
    add("--mtu", type=int, default=1500, help="of every link (with JAX_PASSING_SWITCH_LANES_PER_CHUNK=2232)")
    add("--mebibytes", type=_numbers, default=[64.0], help="size of a sum, one or several: 0.001,1,64")
    add("--dtype", choices=("float32", "bfloat16", "int32"), default="float32", help="bfloat16: not in MPI")
    add("--tree", choices=("gpt2",), help="sums the gradients of GPT-2 small instead: 148 leaves")
    add("--collective", choices=COLLECTIVES, default="psum", help="both: psum_scatter and all_gather at once")
    add("--contenders", type=_contenders, default=["passing", "gloo"], help=f"of {','.join(CONTENDERS)}")
    add("--rounds", type=int, default=5, help="in which all take turns")
    add("--iterations", type=int, default=3, help="of each contender in each round")
    add("--sums", type=int, default=50, help="how many make an iteration, one after the other, of up to 64 MiB in all")
    add("--beside", type=float, default=0.0, help="MiB of a sum of another stream meanwhile: of jax_passing alone")
    add("--loss", type=float, default=0.0, help="probability that a link's end loses a (super-)packet: 0.001")
    add("--no-multicast", action="store_true", help="hosts can join no group: the switch sends each its own")
    add("--counters", action="store_true", help="prints what rank 0 and the switch counted: packets, resends, drops")
    add("--json", metavar="PATH", help="writes every time")
    add("--plot", metavar="PATH", help="draws time over size and over hosts (PNG)")
    arguments = parser.parse_args()
    alone = [name for name in arguments.contenders if CONTENDERS[name].others is None]
    if arguments.collective != "psum" and (alone or arguments.tree):
        parser.error(f"--collective {arguments.collective}: not with {', '.join(alone) or '--tree'}")
    if arguments.beside and arguments.collective != "psum":
        parser.error("--beside: with psum alone")
    others = [name for name in arguments.contenders if not CONTENDERS[name].label.startswith("jax_passing")]
    if arguments.beside and others:
        parser.error(f"--beside: with jax_passing alone, which has streams, not with {', '.join(others)}")
    for name in arguments.contenders:
        hosts_max = RANKS_MAX_OF_WIRE[CONTENDERS[name].wire_dtype]
        if max(arguments.hosts) > hosts_max:
            parser.error(f"{name}: at most {hosts_max} hosts")
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        if arguments.plot:
            table.require_matplotlib()
        cases = [case for hosts in arguments.hosts for case in run(hosts, arguments, console)]
    except (StarError, PassingError) as error:
        sys.exit(f"star.py: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    console.print(table.NOTE + NOTE, soft_wrap=True)
    rows = [case.row() for case in cases]
    if arguments.json:
        samples = [[asdict(sample) for sample in case.samples] for case in cases]
        table.write_json(arguments.json, rows, options=vars(arguments), samples=samples)
    if arguments.plot:
        table.plot(rows, arguments.plot, f"links of {arguments.gbit:g} Gbit/s" if arguments.gbit else None)
    if any(row.wrong for row in rows):
        sys.exit("star.py: wrong elements, see #wrong")


if __name__ == "__main__":
    main()
