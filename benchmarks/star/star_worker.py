"""One rank of a contender of `star.py`: sums what it is told to, when it is told to, and checks every element.

Waits for orders at a Unix socket, so an idle contender takes no processor time, and ends when the socket closes.
"""

import argparse
import json
import os
import socket
import struct
import time
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from star_echo import make_roomy

ECHO_DATAGRAM_BYTES = 1440
ECHO_BYTES_MAX = 65536


@dataclass(frozen=True)
class Leaves:
    """The leaves of the pytree that is summed: their numbers of elements, and their type."""

    elements: tuple[int, ...]
    dtype: str

    def ranges(self) -> list[tuple[int, int]]:
        """First element and number of elements of each leaf."""
        return [(sum(self.elements[:i]), elements) for i, elements in enumerate(self.elements)]


class Program(ABC):
    """A contender's work in one process."""

    @abstractmethod
    def prepare(self, leaves: Leaves, iteration: int) -> Any:
        """The local input of a sum."""

    @abstractmethod
    def sum(self, x: Any) -> Any:
        """Returns when the sum is there."""

    @abstractmethod
    def wrong(self, out: Any, leaves: Leaves, iteration: int) -> int:
        """Counts the elements that aren't what they must be."""

    def close(self) -> None:  # noqa: B027
        """Leaves in order, if there is something to leave."""


# Integers that vary by element, iteration and member (a device that adds something), scattered so that a chunk in a
# wrong offset shows, small enough that every sum is exact, and with a sum in closed form. In uint32, which wraps.
VALUES = {"float32": 1009, "int32": 1009, "bfloat16": 11}  # of 16 members, at most 40 * 1008 + 120 and 16 * 10 + 8


def value(np: Any, index: Any, member: Any, iteration: Any, dtype: str) -> Any:
    scattered = (index * np.uint32(2654435761) + iteration * np.uint32(40503) >> 12) % VALUES[dtype]
    if dtype == "bfloat16":  # eight bits hold integers up to 256
        return scattered + member % 2
    return scattered * (member % 4 + 1) + member


def value_sum(np: Any, index: Any, members: int, iteration: Any, dtype: str) -> Any:
    scattered = (index * np.uint32(2654435761) + iteration * np.uint32(40503) >> 12) % VALUES[dtype]
    if dtype == "bfloat16":
        return scattered * members + members // 2
    return scattered * sum(member % 4 + 1 for member in range(members)) + members * (members - 1) // 2


def tolerance(wire_dtype: str, ranks: int) -> float:
    """Returns by how much a sum may be off (docs/internals/fixed_point.md): nothing, unless it travels on few bits."""
    if wire_dtype == "full":
        return 0.0
    largest = (2 ** (int(wire_dtype.removeprefix("int")) - 1) - 1) // ranks
    return ranks * 2 * (4 * VALUES["float32"] + ranks) / largest


class JaxProgram(Program):
    """A psum in a jitted shard_map over a mesh of this process's devices, or of all processes' with `spans`."""

    def __init__(self, arguments: argparse.Namespace, psum: Any, spans: bool = False) -> None:
        import jax
        import jax.numpy as jnp
        from jax.sharding import PartitionSpec as P

        local = jax.local_device_count()
        members = local * arguments.ranks
        allowed = tolerance(os.environ.get("JAX_PASSING_WIRE_DTYPE", "full"), arguments.ranks)
        mesh = jax.sharding.Mesh(jax.devices() if spans else jax.local_devices(), ("d",))
        first = 0 if spans else arguments.rank * local

        def index(part: tuple[int, int]) -> Any:
            return jnp.arange(part[1], dtype=jnp.uint32) + jnp.uint32(part[0])

        def make(leaves: Leaves, iteration: Any) -> Any:
            member = (first + jax.lax.axis_index("d")).astype(jnp.uint32)
            made = [value(jnp, index(part), member, iteration, leaves.dtype) for part in leaves.ranges()]
            return [x.astype(leaves.dtype) for x in made]

        def count(out: Any, iteration: Any, leaves: Leaves) -> Any:
            expected = [value_sum(jnp, index(part), members, iteration, leaves.dtype) for part in leaves.ranges()]
            pairs = zip(out, expected, strict=True)
            if allowed:
                return sum(jnp.sum(abs(x - right.astype(x.dtype)) > allowed, dtype=jnp.int32) for x, right in pairs)
            return sum(jnp.sum(x != right.astype(x.dtype), dtype=jnp.int32) for x, right in pairs)

        def mapped(f: Any, in_specs: Any, out_specs: Any) -> Any:
            return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)

        self._uint32 = jnp.uint32
        self._block = jax.block_until_ready
        self._make = jax.jit(
            lambda iteration, leaves: mapped(lambda i: make(leaves, i), P(), P("d"))(iteration), static_argnums=1
        )
        # The input is donated, as gradients are in a training step; the result has its shape, on every device.
        self._sum = jax.jit(mapped(lambda xs: psum(xs, "d"), P("d"), P("d")), donate_argnums=0)
        self._count = jax.jit(count, static_argnums=2)

    def prepare(self, leaves: Leaves, iteration: int) -> Any:
        return self._block(self._make(self._uint32(iteration), leaves))

    def sum(self, x: Any) -> Any:
        return self._block(self._sum(x))

    def wrong(self, out: Any, leaves: Leaves, iteration: int) -> int:
        devices = zip(*([shard.data for shard in x.addressable_shards] for x in out), strict=True)
        return sum(int(self._count(list(xs), self._uint32(iteration), leaves)) for xs in devices)


class PassingProgram(JaxProgram):
    """jax_passing.psum; the environment says who is who."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import jax_passing

        # JaxProgram counts the devices of each host by themselves.
        warnings.simplefilter("ignore", jax_passing.errors.InsideHostWarning)
        self._session = jax_passing.init(axis_name="d")
        super().__init__(arguments, jax_passing.psum)

    def close(self) -> None:
        counters = self._session.stats()
        self._session.shutdown()
        print(", ".join(f"{name} {count}" for name, count in counters.items() if count))


class LaxProgram(JaxProgram):
    """jax.lax.psum over a mesh of all processes, with the collectives that the environment chooses: gloo by default."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import jax

        jax.distributed.initialize(arguments.coordinator, num_processes=arguments.ranks, process_id=arguments.rank)
        super().__init__(arguments, jax.lax.psum, spans=True)


class Mpi4jaxProgram(JaxProgram):
    """mpi4jax.allreduce in jitted code."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import mpi4jax
        from mpi4py import MPI

        arguments.rank = MPI.COMM_WORLD.rank
        super().__init__(arguments, lambda xs, _: [mpi4jax.allreduce(x, op=MPI.SUM) for x in xs])


class MpiProgram(Program):
    """MPI_Allreduce by mpi4py."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import numpy as np
        from mpi4py import MPI

        self._np, self._world = np, MPI.COMM_WORLD
        arguments.rank = self._world.rank

    def _index(self, part: tuple[int, int]) -> Any:
        return self._np.arange(part[0], sum(part), dtype=self._np.uint32)

    def prepare(self, leaves: Leaves, iteration: int) -> Any:
        np, rank = self._np, self._world.rank
        made = [value(np, self._index(part), rank, iteration, leaves.dtype) for part in leaves.ranges()]
        xs = [x.astype(leaves.dtype) for x in made]
        return [(x, np.zeros_like(x)) for x in xs]  # touched here, as the donated buffers of JAX are

    def sum(self, x: Any) -> Any:
        for pair in x:
            self._world.Allreduce(*pair)
        return [out for _, out in x]

    def wrong(self, out: Any, leaves: Leaves, iteration: int) -> int:
        np, size = self._np, self._world.size
        expected = (value_sum(np, self._index(part), size, iteration, leaves.dtype) for part in leaves.ranges())
        return sum(int(np.count_nonzero(x != right)) for x, right in zip(out, expected, strict=True))


class EchoProgram(Program):
    """A program on the switch's machine sends back each datagram: less than that no sum of these bytes can take."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import numpy as np

        host, port = arguments.coordinator.split(":")
        self._np = np
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect((host, int(port)))
        make_roomy(self._socket)
        timeout = struct.pack("ll", 1, 0)  # in the kernel: with a timeout of Python's it would poll first
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    def prepare(self, leaves: Leaves, iteration: int) -> Any:
        size = 4 * sum(leaves.elements)
        if size > ECHO_BYTES_MAX:
            raise ValueError(f"udp-echo takes up to {ECHO_BYTES_MAX} bytes, as it has no window")
        return self._np.full(size, iteration % 251, self._np.uint8), self._np.zeros(size, self._np.uint8)

    def sum(self, x: Any) -> Any:
        to, back = x
        for first in range(0, len(to), ECHO_DATAGRAM_BYTES):
            self._socket.send(to[first : first + ECHO_DATAGRAM_BYTES])
        for first in range(0, len(to), ECHO_DATAGRAM_BYTES):
            self._socket.recv_into(back[first : first + ECHO_DATAGRAM_BYTES])
        return back

    def wrong(self, out: Any, leaves: Leaves, iteration: int) -> int:
        return int(self._np.count_nonzero(out != iteration % 251))


PROGRAMS = {
    "passing": PassingProgram,
    "lax": LaxProgram,
    "mpi": MpiProgram,
    "mpi4jax": Mpi4jaxProgram,
    "echo": EchoProgram,
}


def memory_kb(field: str) -> int:
    """This process's memory: VmRSS now, VmHWM at its peak."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field))


def sleeps() -> int:
    """Returns how often this process's threads have gone to sleep, to be woken later."""
    field = "voluntary_ctxt_switches:"
    texts = [path.read_text() for path in Path("/proc/self/task").glob("*/status")]
    return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith(field))


def timed(program: Program, xs: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Sums `xs`, which it empties, one after the other. Returns the results and what it took."""
    xs.reverse()
    outs = []
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak of memory starts anew
    before_kb, before_sleeps = memory_kb("VmRSS"), sleeps()
    cpu_start_s = time.process_time()
    ticks_s = [time.clock_gettime(time.CLOCK_MONOTONIC)]  # the machine's one clock, so the times of all ranks compare
    while xs:
        outs.append(program.sum(xs.pop()))
        ticks_s.append(time.clock_gettime(time.CLOCK_MONOTONIC))
    cpu_s = time.process_time() - cpu_start_s
    return outs, {
        "start_s": ticks_s[0],
        "end_s": ticks_s[-1],
        "times_s": [end - start for start, end in pairwise(ticks_s)],
        "cpu_s": cpu_s,
        "sleeps": sleeps() - before_sleeps,
        "memory_bytes": (memory_kb("VmHWM") - before_kb) * 1024,
    }


def serve(program: Program, orders: TextIO) -> None:
    xs: list[Any] = []
    outs: list[Any] = []
    for line in orders:
        order = json.loads(line)
        iterations = range(order["iteration"], order["iteration"] + order["sums"])
        leaves = Leaves(tuple(order["elements"]), order["dtype"])
        reply: dict[str, Any] = {}
        match order["do"]:
            case "prepare":
                xs = [program.prepare(leaves, iteration) for iteration in iterations]
            case "sum":
                outs, reply = timed(program, xs)
            case "check":
                wrong = [program.wrong(out, leaves, i) for out, i in zip(outs, iterations, strict=True)]
                reply, outs = {"wrong": sum(wrong)}, []
        orders.write(json.dumps(reply) + "\n")
        orders.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--orders", required=True, help="path of the Unix socket")
    parser.add_argument("--contender", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--coordinator", help="HOST:PORT of jax.distributed")
    arguments = parser.parse_args()
    program = PROGRAMS[arguments.program](arguments)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(arguments.orders)
        with connection.makefile("rw") as orders:
            orders.write(
                json.dumps({"contender": arguments.contender, "rank": arguments.rank, "pid": os.getpid()}) + "\n"
            )
            orders.flush()
            serve(program, orders)
    program.close()


if __name__ == "__main__":
    main()
