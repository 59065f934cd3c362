"""One rank of a contender of `star.py`: sums what it is told to, when it is told to, and checks every element.

Waits for orders at a Unix socket, so an idle contender takes no processor time, and ends when the socket closes.
"""

import argparse
import json
import os
import socket
import struct
import warnings
from types import SimpleNamespace
from typing import Any, TextIO

from star_collectives import COLLECTIVES, Piece, carry_out, gets, gives
from star_echo import make_roomy
from star_program import Leaves, Program, tolerance, value, value_sum
from star_timing import Beside, timed

ECHO_DATAGRAM_BYTES = 1440
ECHO_BYTES_MAX = 65536


class JaxProgram(Program):
    """The collective of `operations` in a jitted shard_map over a mesh of this process's devices, or of all processes'
    with `spans`. `donates`: its argument is donated, as gradients are in a training step."""

    def __init__(
        self, arguments: argparse.Namespace, operations: Any, spans: bool = False, donates: bool = False
    ) -> None:
        import jax
        import jax.numpy as jnp
        from jax.sharding import PartitionSpec as P

        local = jax.local_device_count()
        members = local * arguments.ranks
        allowed = tolerance(os.environ.get("JAX_PASSING_WIRE_DTYPE", "full"), arguments.ranks)
        mesh = jax.sharding.Mesh(jax.devices() if spans else jax.local_devices(), ("d",))
        first = 0 if spans else arguments.rank * local

        collective = arguments.collective

        def pieces(of: Any, leaves: Leaves, index: Any) -> list[Piece]:
            return [piece for part in leaves.ranges() for piece in of(collective, *part, index, members)]

        def values(piece: Piece, iteration: Any, dtype: str) -> Any:
            start, length, member = piece
            index = jnp.arange(length, dtype=jnp.uint32) + jnp.uint32(start)
            if member is None:
                return value_sum(jnp, index, members, iteration, dtype)
            return value(jnp, index, jnp.uint32(member), iteration, dtype)

        def make(leaves: Leaves, iteration: Any) -> Any:
            given = pieces(gives, leaves, (first + jax.lax.axis_index("d")).astype(jnp.uint32))
            return [values(piece, iteration, leaves.dtype).astype(leaves.dtype) for piece in given]

        def count(out: Any, index: Any, iteration: Any, leaves: Leaves) -> Any:
            expected = [values(piece, iteration, leaves.dtype) for piece in pieces(gets, leaves, index)]
            pairs = zip(out, expected, strict=True)
            if allowed:
                return sum(jnp.sum(abs(x - right.astype(x.dtype)) > allowed, dtype=jnp.int32) for x, right in pairs)
            return sum(jnp.sum(x != right.astype(x.dtype), dtype=jnp.int32) for x, right in pairs)

        def mapped(f: Any, in_specs: Any, out_specs: Any) -> Any:
            return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)

        self._first = arguments.rank * local
        self._uint32 = jnp.uint32
        self._block = jax.block_until_ready
        self._make = jax.jit(
            lambda iteration, leaves: mapped(lambda i: make(leaves, i), P(), P("d"))(iteration), static_argnums=1
        )
        self._sum = jax.jit(
            mapped(lambda xs: carry_out(collective, operations, xs, "d"), P("d"), P("d")),
            donate_argnums=0 if donates else (),
        )
        self._count = jax.jit(count, static_argnums=3)

    def prepare(self, leaves: Leaves, iteration: int) -> Any:
        return self._block(self._make(self._uint32(iteration), leaves))

    def sum(self, x: Any) -> Any:
        return self._block(self._sum(x))

    def wrong(self, out: Any, leaves: Leaves, iteration: int) -> int:
        devices = zip(*([shard.data for shard in x.addressable_shards] for x in out), strict=True)
        number = self._uint32(iteration)
        return sum(
            int(self._count(list(xs), self._uint32(index), number, leaves))
            for index, xs in enumerate(devices, self._first)
        )


class PassingProgram(JaxProgram):
    """jax_passing.psum; the environment says who is who."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import jax_passing

        # JaxProgram counts the devices of each host by themselves.
        warnings.simplefilter("ignore", jax_passing.errors.InsideHostWarning)
        self._session, self._stream = jax_passing.init(axis_name="d"), jax_passing.stream
        super().__init__(arguments, jax_passing, donates=True)

    def sum_beside(self, x: Any) -> Any:
        with self._stream("beside"):
            return self.sum(x)

    def close(self) -> None:
        counters = self._session.stats()
        self._session.shutdown()
        print(", ".join(f"{name} {count}" for name, count in counters.items() if count))


class LaxProgram(JaxProgram):
    """jax.lax.psum over a mesh of all processes, with the collectives that the environment chooses: gloo by default.
    XLA:CPU would copy the result to a donated argument (findings/xla_cpu_copies_donated_all_reduces.sh)."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import jax

        jax.distributed.initialize(arguments.coordinator, num_processes=arguments.ranks, process_id=arguments.rank)

        class Operations:
            psum, psum_scatter, all_gather = jax.lax.psum, jax.lax.psum_scatter, jax.lax.all_gather

            @staticmethod
            def broadcast(xs: list[Any], axis: str) -> list[Any]:
                return psum_of([x * (jax.lax.axis_index(axis) == 0).astype(x.dtype) for x in xs], axis)

        psum_of = jax.lax.psum
        super().__init__(arguments, Operations, spans=True)


class Mpi4jaxProgram(JaxProgram):
    """mpi4jax.allreduce in jitted code."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import mpi4jax
        from mpi4py import MPI

        arguments.rank = MPI.COMM_WORLD.rank
        by_mpi = SimpleNamespace(psum=lambda xs, _: [mpi4jax.allreduce(x, op=MPI.SUM) for x in xs])
        super().__init__(arguments, by_mpi)


class MpiProgram(Program):
    """The MPI function of the collective, by mpi4py; of both two that begin at once."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import numpy as np
        from mpi4py import MPI

        self._np, self._world, self._wait_all = np, MPI.COMM_WORLD, MPI.Request.Waitall
        self._collective = arguments.collective
        arguments.rank = self._world.rank

    def _values(self, of: Any, leaves: Leaves, iteration: int) -> list[Any]:
        np, world = self._np, self._world
        pieces = [piece for part in leaves.ranges() for piece in of(self._collective, *part, world.rank, world.size)]
        arrays = []
        for first, length, member in pieces:
            index = np.arange(first, first + length, dtype=np.uint32)
            if member is None:
                arrays.append(value_sum(np, index, world.size, iteration, leaves.dtype))
            else:
                arrays.append(value(np, index, member, iteration, leaves.dtype))
        return arrays

    def prepare(self, leaves: Leaves, iteration: int) -> Any:
        given = [x.astype(leaves.dtype) for x in self._values(gives, leaves, iteration)]
        # Touched here, as the donated buffers of JAX are.
        return given, [x.astype(leaves.dtype) * 0 for x in self._values(gets, leaves, iteration)]

    def sum(self, x: Any) -> Any:
        given, outs = x
        pairs = list(zip(given, outs, strict=True))
        if self._collective == "broadcast":
            for source, _ in pairs:
                self._world.Bcast(source, 0)
            return given
        if self._collective == "both":
            scatters = [self._world.Ireduce_scatter_block(*pair) for pair in pairs[::2]]
            self._wait_all(scatters + [self._world.Iallgather(*pair) for pair in pairs[1::2]])
            return outs
        run = {
            "psum": self._world.Allreduce,
            "psum_scatter": self._world.Reduce_scatter_block,
            "all_gather": self._world.Allgather,
        }[self._collective]
        for pair in pairs:
            run(*pair)
        return outs

    def wrong(self, out: Any, leaves: Leaves, iteration: int) -> int:
        expected = self._values(gets, leaves, iteration)
        return sum(int(self._np.count_nonzero(x != right)) for x, right in zip(out, expected, strict=True))


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


def serve(program: Program, orders: TextIO) -> None:
    xs: list[Any] = []
    outs: list[Any] = []
    for line in orders:
        order = json.loads(line)
        of_each = [
            (Leaves(tuple(order["elements"]), order["dtype"]), iteration)
            for iteration in range(order["iteration"], order["iteration"] + order["sums"])
        ]
        if order["beside"]:
            of_each.append((Leaves((order["beside"],), order["dtype"]), order["iteration"]))
        reply: dict[str, Any] = {}
        match order["do"]:
            case "prepare":
                xs = [program.prepare(*of_one) for of_one in of_each]
            case "sum":
                beside = Beside(program, xs.pop()) if order["beside"] else None
                outs, reply = timed(program, xs)
                if beside:
                    out, reply["beside_s"] = beside.result()
                    outs.append(out)
            case "check":
                wrong = [program.wrong(out, *of_one) for out, of_one in zip(outs, of_each, strict=True)]
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
    parser.add_argument("--collective", choices=COLLECTIVES, default="psum")
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
