"""A contender's processes on the star: they start, sum when they are told to, and say why when they can't."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from star_collectives import Traffic
from star_network import END_S, SWITCH, StarError, StarNetwork

from jax_passing.predict.cluster import Cluster
from jax_passing.predict.sums import Strategy, predict

START_S = 180.0  # importing JAX in eight processes on two cores
STEP_S = 120.0
FOLDER = Path(__file__).parent
UNSHAPED_GBIT = 1000.0  # no link's rate, but beyond what the processors do


@dataclass(frozen=True)
class Contender:
    """One way to sum.

    Attributes:
      label: in tables and plots.
      start: starts its processes.
      traffic: bytes on the busiest link over bytes of the sum, from hosts and devices per host.
      others: the same of collectives, from their names and hosts; None: it has no other than psum.
      strategy: what the planner calls it; None: it has no prediction.
      devices: of each host.
      switch_hosts: where our switches stand, from the number of hosts; from that number on it's a machine of their own.
    """

    label: str
    start: "Callable[[Running], None]"
    traffic: Callable[[int, int], float]
    strategy: Strategy | None
    devices: int = 1
    switch_hosts: Callable[[int], Sequence[int]] = lambda hosts: [SWITCH]
    wire_dtype: str = "full"
    others: Traffic | None = None

    def limit_s(self, collective: str, size: int, hosts: int, gbit: float) -> float | None:
        """None on links that aren't shaped."""
        if not gbit:
            return None
        if collective != "psum" and self.others is not None:
            return size * 8 / (gbit * 1e9) * self.others(collective, hosts)
        return size * 8 / (gbit * 1e9) * self.traffic(hosts, self.devices)

    def predicted_s(self, tensors: "Tensors", hosts: int, gbit: float) -> float | None:
        """Returns the planner's prediction, given that all hosts share this machine's processors."""
        if self.strategy is None:
            return None
        at_hosts = [host for host in self.switch_hosts(hosts) if host != SWITCH]
        cluster = Cluster(
            hosts,
            self.devices,
            gbit or UNSHAPED_GBIT,
            shards=len(at_hosts),
            colocated=any(host < hosts for host in at_hosts),
            shared_cores=os.cpu_count() or 1,
        )
        return predict(cluster, self.strategy, sum(tensors.elements), tensors.dtype, self.wire_dtype).time_s


@dataclass(frozen=True)
class Tensors:
    """The leaves of the pytree that is summed."""

    elements: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(self.elements) * (2 if self.dtype == "bfloat16" else 4)


@dataclass(frozen=True)
class Sample:
    """One measurement of a sum.

    Attributes:
      time_s: from the first rank's start to the last one's end.
      times_s: those of each rank and each sum, but the first one of several in a row, which waits for the last rank.
      host_cpu_s: processor time of a host's processes.
      switch_cpu_s: that of the switch, of all shards together.
      sleeps: how often a rank's threads went to sleep.
      memory_bytes: the most by which a rank's memory grew meanwhile.
      wrong: elements that weren't what they must be.
      beside_s: the time of the sum that was under way meanwhile, on the slowest rank; 0 if there was none.
    """

    time_s: float
    times_s: tuple[float, ...]
    host_cpu_s: float
    switch_cpu_s: float
    sleeps: float
    memory_bytes: int
    wrong: int
    beside_s: float


@dataclass
class Running:
    """A contender's processes on the star, each waiting for orders at its own connection."""

    name: str
    contender: Contender
    star: StarNetwork
    hosts: int
    collective: str = "psum"
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

    def wait_until(self, ready: Callable[[], bool], otherwise: str) -> None:
        """Raises StarError, which says `otherwise`, when a process ends before that, or after a time."""
        until = time.monotonic() + START_S
        while not ready():
            ended = [process for process, started in self.processes if started.poll() is not None]
            if ended or time.monotonic() > until:
                raise self.failure(otherwise, ended)
            time.sleep(0.05)

    def worker(self, program: str, *arguments: str) -> list[str]:
        """The command line of a rank."""
        common = ["--orders", str(self.star.folder / "orders"), "--contender", self.name, "--ranks", str(self.ranks)]
        common += ["--collective", self.collective]
        return [sys.executable, str(FOLDER / "star_worker.py"), program, *common, *arguments]

    @property
    def ranks(self) -> int:
        return self.hosts

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

    def sum(self, tensors: Tensors, iteration: int, sums: int, beside: int = 0) -> Sample:
        """Runs `sums` sums in a row, `beside` one of that many elements if it is given."""
        numbers = {"iteration": iteration, "sums": sums, "beside": beside}
        order = {"elements": tensors.elements, "dtype": tensors.dtype, **numbers}
        self.order(do="prepare", **order)
        switch_s = self._switch_cpu_s()
        replies = self.order(do="sum", **order)
        switch_s = self._switch_cpu_s() - switch_s
        # Only now: who is done and checks would take the processor from who isn't.
        checks = self.order(do="check", **order)
        return Sample(
            (max(reply["end_s"] for reply in replies) - min(reply["start_s"] for reply in replies)) / sums,
            tuple(time_s for reply in replies for time_s in reply["times_s"][min(1, sums - 1) :]),
            sum(reply["cpu_s"] for reply in replies) / self.hosts / sums,
            switch_s / sums,
            sum(reply["sleeps"] for reply in replies) / self.hosts / sums,
            max(reply["memory_bytes"] for reply in replies),
            sum(reply["wrong"] for reply in checks),
            max(reply.get("beside_s", 0.0) for reply in replies),
        )

    def _switch_cpu_s(self) -> float:
        """Processor time that the threads of its switches have had."""
        pids = [started.pid for process, started in self.processes if process.startswith("switch")]
        threads = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
        return sum(int(path.read_text().split()[0]) for path in threads) / 1e9

    def close(self) -> dict[str, str]:
        """Ends the ranks, then the others, in order. Returns the last line that each wrote: the counters of ours."""
        for connection in self.connections:
            connection.close()
        # The ranks end by themselves; a switch when it is told to.
        for process, started in reversed(self.processes):
            if process.startswith("switch"):
                started.terminate()
            with suppress(subprocess.TimeoutExpired):
                started.wait(END_S)
        lines = {process: self.log(process).read_text(errors="replace").splitlines() for process, _ in self.processes}
        return {process: text[-1] for process, text in lines.items() if text}

    def failure(self, what: str, processes: Sequence[str] = ()) -> StarError:
        """Makes an error with the last lines of the logs that say something."""
        lines = [f"{self.name}: {what}."]
        for process in processes or [process for process, _ in self.processes]:
            tail = self.log(process).read_text(errors="replace").splitlines()[-12:]
            lines += [f"  [{process}] {line}" for line in tail]
        return StarError("\n".join(lines))
