"""What runs on the star: how each contender starts, and the least time that its traffic takes.

A limit is the traffic of the busiest direction of the busiest link, with headers, over the link's rate. What it counts:

* ours: packets of 1440 bytes of lanes (360 of 4), 20 of our header, 28 of IP and UDP, 14 of Ethernet, and one lane of
  exponent for every block of 1440 elements;
* TCP: 1448 bytes of data, 32 of TCP with timestamps, 20 of IP, 14 of Ethernet.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from star_network import SWITCH, StarError, StarNetwork

OURS = 1502 / 1440 * (1 + 1 / 1440)
TCP = 1514 / 1448
START_S = 180.0  # importing JAX in eight processes on two cores
STEP_S = 120.0
FOLDER = Path(__file__).parent


def once(hosts: int, devices: int) -> float:
    """In-network aggregation by host: every link carries the sum once in each direction."""
    return OURS


def once_a_device(hosts: int, devices: int) -> float:
    """In-network aggregation by device: a host's link carries the sum once for each of its devices."""
    return devices * OURS


def ring(hosts: int, devices: int) -> float:
    """Reduce-scatter and all-gather, the least traffic that hosts can do with: all but one part of H leaves, twice."""
    return 2 * (hosts - 1) / hosts * TCP


def server(hosts: int, devices: int) -> float:
    """A server of its own behind one link: that link carries every host's data."""
    return hosts * OURS


@dataclass(frozen=True)
class Contender:
    """`traffic(hosts, devices)`: bytes on the busiest link over bytes of the sum."""

    label: str
    start: "Callable[[Running], None]"
    traffic: Callable[[int, int], float]
    devices: int = 1

    def limit_s(self, size: int, hosts: int, gbit: float) -> float | None:
        """None on links that aren't shaped."""
        return size * 8 / (gbit * 1e9) * self.traffic(hosts, self.devices) if gbit else None


@dataclass
class Running:
    """A contender's processes on the star, each waiting for orders at its own connection."""

    name: str
    contender: Contender
    star: StarNetwork
    hosts: int
    processes: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)
    connections: list[TextIO] = field(default_factory=list)

    def log(self, process: str) -> Path:
        return self.star.folder / f"{self.name}-{process}.log"

    def start(self, process: str, host: int, arguments: Sequence[str], **environment: str) -> None:
        with self.log(process).open("wb") as log:
            started = self.star.start(
                host,
                arguments,
                env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append((process, started))

    def worker(self, program: str, *arguments: str) -> list[str]:
        """The command line of a rank."""
        common = ["--orders", str(self.star.folder / "orders"), "--contender", self.name, "--ranks", str(self.ranks)]
        return [sys.executable, str(FOLDER / "star_worker.py"), program, *common, *arguments]

    @property
    def ranks(self) -> int:
        return self.hosts * (self.contender.devices if self.contender.traffic is once_a_device else 1)

    def connect(self, listener: socket.socket) -> None:
        """Waits until every rank is there."""
        by_rank: dict[int, TextIO] = {}
        until = time.monotonic() + START_S
        listener.settimeout(0.5)
        while len(by_rank) < self.ranks:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                ended = [process for process, started in self.processes if started.poll() is not None]
                if ended or time.monotonic() > until:
                    missing = ", ".join(str(rank) for rank in range(self.ranks) if rank not in by_rank)
                    raise self.failure(f"ranks {missing} didn't start", ended) from None
                continue
            connection.settimeout(STEP_S)
            orders = connection.makefile("rw")
            hello = json.loads(orders.readline())
            assert hello["contender"] == self.name, hello
            by_rank[hello["rank"]] = orders
        self.connections = [by_rank[rank] for rank in range(self.ranks)]

    def order(self, **order: Any) -> list[dict[str, Any]]:
        """Gives all ranks an order and waits for their replies."""
        line = json.dumps(order) + "\n"
        replies = []
        try:
            for connection in self.connections:
                connection.write(line)
                connection.flush()
            for connection in self.connections:
                replies.append(json.loads(connection.readline() or "null"))
        except (OSError, ValueError) as error:
            raise self.failure(f"rank {len(replies)} doesn't answer ({error}) to {line.strip()}") from error
        if None in replies:
            raise self.failure(f"rank {replies.index(None)} ended at {line.strip()}")
        return replies

    def sum(self, elements: int, iteration: int, sums: int) -> tuple[float, int]:
        """Seconds of each of `sums` sums in a row, from the first's start to the last one's end; what was wrong."""
        order = {"elements": elements, "iteration": iteration, "sums": sums}
        self.order(do="prepare", **order)
        replies = self.order(do="sum", **order)
        took_s = max(reply["end_s"] for reply in replies) - min(reply["start_s"] for reply in replies)
        return took_s / sums, sum(reply["wrong"] for reply in replies)

    def failure(self, what: str, processes: Sequence[str] = ()) -> StarError:
        """With the last lines of the logs that say something."""
        lines = [f"{self.name}: {what}."]
        for process in processes or [process for process, _ in self.processes]:
            tail = self.log(process).read_text(errors="replace").splitlines()[-12:]
            lines += [f"  [{process}] {line}" for line in tail]
        return StarError("\n".join(lines))


def start_passing(running: Running, switch_host: int = SWITCH) -> None:
    """Our switch, and one rank a host; with `once_a_device`, one rank a device."""
    star, devices = running.star, running.contender.devices
    port = str(47000 + len(running.name) + sum(running.name.encode()))
    switch = f"{star.address(switch_host)}:{port}"
    running.start("switch", switch_host, [sys.executable, "-P", "-m", "jax_passing.cli", "switch", "--listen", switch])
    until = time.monotonic() + START_S
    while "listening on" not in running.log("switch").read_text():
        if running.processes[0][1].poll() is not None or time.monotonic() > until:
            raise running.failure("the switch didn't start")
        time.sleep(0.05)
    ranks_per_host = running.ranks // running.hosts
    for rank in range(running.ranks):
        running.start(
            f"rank{rank}",
            rank // ranks_per_host,
            running.worker("passing", "--rank", str(rank)),
            JAX_NUM_CPU_DEVICES=str(devices // ranks_per_host),
            JAX_PASSING_SWITCH=switch,
            JAX_PASSING_RANK=str(rank),
            JAX_PASSING_WORLD_SIZE=str(running.ranks),
        )


def start_server(running: Running) -> None:
    """Our switch as a parameter server: on a host of its own, behind one link."""
    start_passing(running, switch_host=running.hosts)


def start_gloo(running: Running) -> None:
    coordinator = f"{running.star.address(0)}:47613"
    for rank in range(running.hosts):
        arguments = running.worker("gloo", "--rank", str(rank), "--coordinator", coordinator)
        running.start(f"rank{rank}", rank, arguments, JAX_NUM_CPU_DEVICES="1")


def mpirun(running: Running, *settings: str) -> list[str]:
    """Open MPI over the star: what it takes for a remote shell enters the namespace of the host."""
    star = running.star
    agent = star.folder / "agent"
    hosts = range(running.hosts)
    cases = [
        f'{star.name(host)}) shift; exec {" ".join(map(_quoted, star.command(host, [])))} sh -c "$*" ;;'
        for host in hosts
    ]
    agent.write_text("\n".join(["#!/bin/sh", 'case "$1" in', *cases, "esac", 'echo "no host $1" >&2', "exit 1", ""]))
    agent.chmod(0o755)
    mca = {
        "plm_rsh_agent": str(agent),
        "plm_rsh_no_tree_spawn": "1",
        "routed": "direct",
        "btl": "self,tcp",
        "pml": "ob1",
        "btl_tcp_if_include": "eth0",
        "oob_tcp_if_include": "eth0",
        "mpi_yield_when_idle": "1",  # ranks share the processors here: spinning would starve the others
    }
    flags = [word for key, text in mca.items() for word in ("--mca", key, text)]
    where = ",".join(star.name(host) for host in hosts)
    return [
        "mpirun",
        "--allow-run-as-root",
        "-np",
        str(running.hosts),
        "--host",
        where,
        "--bind-to",
        "none",
        *flags,
        *settings,
    ]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def start_openmpi(running: Running, *settings: str) -> None:
    running.start("mpirun", 0, [*mpirun(running, *settings), *running.worker("mpi")], JAX_NUM_CPU_DEVICES="1")


def start_openmpi_ring(running: Running) -> None:
    ring = {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_allreduce_algorithm": "4"}
    start_openmpi(running, *(word for key, text in ring.items() for word in ("--mca", key, text)))


CONTENDERS = {
    "passing": Contender("jax_passing.psum", start_passing, once),
    "passing-l2": Contender("jax_passing.psum, 2 devices a host", start_passing, once, devices=2),
    "gloo": Contender("lax.psum over gloo", start_gloo, ring),
    "openmpi": Contender("Open MPI", start_openmpi, ring),
    "openmpi-ring": Contender("Open MPI, ring", start_openmpi_ring, ring),
    "flat-l2": Contender("flat: every device a rank, 2 devices a host", start_passing, once_a_device, devices=2),
    "server": Contender("parameter server", start_server, server),
}
