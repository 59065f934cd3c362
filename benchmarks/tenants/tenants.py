"""Measures what a neighbour's sums lose to each kind of greedy tenant, and how the switch's memory grows.

    sudo python benchmarks/tenants/tenants.py --gbit 0.5 --mebibytes 8

Two hosts of a star sum all the time. In turns a third one lets them alone, or does what `tenants_offending.py` has
under a name. Each of its turns stands between two quiet ones, with which it is compared.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "star"))

from rich import box
from rich.console import Console
from rich.table import Table
from star_network import SWITCH, StarNetwork
from tenants_offending import KINDS

PORT = 47200
OFFENDER = 2  # host
SETTLE_S = 0.5  # of a turn's beginning, that doesn't count


def work(mebibytes: float) -> None:
    """One of the neighbour's hosts; rank 0 says when each sum ended and what it took."""
    import jax
    from jax.sharding import PartitionSpec as P

    import jax_passing

    with jax_passing.init(axis_name="d") as session:
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
        f = jax.jit(jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
        x = jax.numpy.ones((1, int(mebibytes * 2**18)))
        while True:
            start_s = time.perf_counter()
            total = f(x).block_until_ready()
            took_s = time.perf_counter() - start_s
            assert (total == 2).all()
            if session.rank == 0:
                print(time.monotonic(), took_s, flush=True)


class Neighbour:
    """Rank 0's sums, as it tells of them."""

    def __init__(self, process: "subprocess.Popen[bytes]"):
        self._process = process
        self.sums: list[tuple[float, float]] = []  # when it ended, what it took
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            when_s, took_s = map(float, line.split())
            self.sums.append((when_s, took_s))

    def await_sums(self, count: int) -> None:
        until_s = time.monotonic() + 120
        while len(self.sums) < count:
            assert self._process.poll() is None, "the neighbour has ended"
            assert time.monotonic() < until_s, "the neighbour doesn't sum"
            time.sleep(0.05)

    def rate(self, since_s: float, until_s: float) -> float:
        """Sums a second that began and ended in that time."""
        return 1 / statistics.mean([took for when, took in self.sums if when - took >= since_s and when <= until_s])


def peak_mib(pid: int) -> float:
    """Returns the peak of resident memory since the last call."""
    status = Path(f"/proc/{pid}/status").read_text()
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def child_of(pid: int) -> int:
    """The process itself, below those that enter the namespace."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--gbit", type=float, default=0.5)
    add("--offender-gbit", type=float, default=0.0, help="of the offender's link; 0: as the others")
    add("--mebibytes", type=float, default=8.0, help="of a sum")
    add("--seconds", type=float, default=4.0, help="of a turn")
    add("--rounds", type=int, default=2)
    add("--kinds", type=lambda text: text.split(","), default=list(KINDS), help=f"of {','.join(KINDS)}")
    add("--json", metavar="PATH", help="writes what the table has")
    add("--log", action="store_true", help="shows the switch's log")
    add("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(arguments.mebibytes)
    with StarNetwork(OFFENDER + 1, arguments.gbit) as star, open(star.folder / "log", "w+b") as log:
        if arguments.offender_gbit:
            star.shape(arguments.offender_gbit, OFFENDER)
        address = f"{star.address(SWITCH)}:{PORT}"
        command = [sys.executable, "-P", "-m", "jax_passing", "switch", "--listen", address]
        switch = star.start(SWITCH, command, stdout=subprocess.PIPE, stderr=log)
        assert switch.stdout is not None
        switch.stdout.readline()
        environment = {
            **os.environ,
            "JAX_PASSING_SWITCH": address,
            "JAX_PASSING_JOB": "neighbour",
            "JAX_PASSING_WORLD_SIZE": "2",
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
        }
        hosts = [
            star.start(
                rank,
                [sys.executable, __file__, *sys.argv[1:], "--work"],
                env=environment | {"JAX_PASSING_RANK": str(rank)},
                stdout=subprocess.PIPE,
            )
            for rank in range(2)
        ]
        neighbour, pid = Neighbour(hosts[0]), child_of(switch.pid)
        neighbour.await_sums(5)
        shares: dict[str, list[float]] = {kind: [] for kind in arguments.kinds}
        memory: dict[str, float] = dict.fromkeys(arguments.kinds, 0.0)
        idle_mib = peak_mib(pid)

        def turn(kind: str | None) -> float:
            offender = None
            peak_mib(pid)
            if kind is not None:
                script = [sys.executable, str(Path(__file__).with_name("tenants_offending.py")), kind, address]
                where = SWITCH if KINDS[kind].from_many_addresses else OFFENDER
                offender = star.start(where, script, stdout=subprocess.PIPE)
                assert offender.stdout is not None
                offender.stdout.readline()  # it has begun
            time.sleep(SETTLE_S)
            since_s = time.monotonic()
            time.sleep(arguments.seconds)
            until_s = time.monotonic()
            if offender is not None and kind is not None:
                memory[kind] = max(memory[kind], peak_mib(pid))
                assert offender.poll() is None, f"{kind} ended"
                os.killpg(offender.pid, 9)
                offender.wait()
            return neighbour.rate(since_s, until_s)

        for _ in range(arguments.rounds):
            before = turn(None)
            for kind in arguments.kinds:
                beside = turn(kind)
                time.sleep(SETTLE_S)
                after = turn(None)
                shares[kind].append(2 * beside / (before + after))
                before = after
        table = Table("offender", "neighbour's goodput", "(all turns)", "switch's memory", box=box.SIMPLE)
        for kind in arguments.kinds:
            every = " ".join(f"{share:.1%}" for share in shares[kind])
            table.add_row(kind, f"{statistics.median(shares[kind]):.1%}", every, f"{memory[kind]:.0f} MiB")
        console = Console(width=120)
        console.print(table)
        goodput = before * arguments.mebibytes * 2**20 * 8 / 1e9
        console.print(f"alone: {goodput:.3f} Gbit/s of {arguments.gbit:g}; the switch had {idle_mib:.0f} MiB before")
        for host in hosts:
            os.killpg(host.pid, 9)
        os.kill(pid, 15)
        last = switch.stdout.read().decode()
        console.print(last)
        if arguments.json:
            counters = {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", last)}
            report: dict[str, Any] = {"idle_mib": idle_mib, "counters": counters}
            for kind in arguments.kinds:
                report[kind] = {"share": statistics.median(shares[kind]), "memory_mib": memory[kind]}
            Path(arguments.json).write_text(json.dumps(report))
        if arguments.log:
            log.seek(0)
            console.print(log.read().decode(), markup=False, highlight=False)


if __name__ == "__main__":
    main()
