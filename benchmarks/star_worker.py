"""One rank of a contender of `star.py`: sums what it is told to, when it is told to, and checks every element.

Waits for orders at a Unix socket, so an idle contender takes no processor time, and ends when the socket closes.
"""

import argparse
import json
import os
import socket
import time
from abc import ABC, abstractmethod
from typing import Any, TextIO


class Program(ABC):
    """What a contender does in one process."""

    @abstractmethod
    def prepare(self, elements: int, iteration: int) -> Any:
        """The local input of a sum of `elements`."""

    @abstractmethod
    def sum(self, x: Any) -> Any:
        """Returns when the sum is there."""

    @abstractmethod
    def wrong(self, out: Any, iteration: int) -> int:
        """How many elements aren't what they must be."""

    def close(self) -> None:  # noqa: B027
        """Leaves in order, if there is something to leave."""


# Integers that vary by element, by iteration and by member (a device that adds something), small enough that every
# sum is exact, and whose sum has a closed form. The period is prime, so a chunk in the wrong place shows.
PERIOD = 1009


def value(np: Any, index: Any, member: Any, iteration: int) -> Any:
    return ((index + 7 * iteration) % PERIOD * (member % 4 + 1) + member).astype(np.float32)


def value_sum(np: Any, index: Any, members: int, iteration: int) -> Any:
    weight = sum(member % 4 + 1 for member in range(members))
    return ((index + 7 * iteration) % PERIOD * weight + members * (members - 1) // 2).astype(np.float32)


class JaxProgram(Program):
    """A psum in a jitted shard_map over a mesh of this process's devices, or of all processes' with `spans`."""

    def __init__(self, arguments: argparse.Namespace, psum: Any, spans: bool = False) -> None:
        import jax
        import jax.numpy as jnp
        from jax.sharding import NamedSharding
        from jax.sharding import PartitionSpec as P

        local = jax.local_device_count()
        members = local * arguments.ranks
        mesh = jax.sharding.Mesh(jax.devices() if spans else jax.local_devices(), ("d",))
        first = 0 if spans else arguments.rank * local

        def make(elements: int, iteration: Any) -> Any:
            member = first + jax.lax.axis_index("d")
            return value(jnp, jnp.arange(elements, dtype=jnp.uint32), member.astype(jnp.uint32), iteration)[None]

        def count(out: Any, iteration: Any) -> Any:
            index = jnp.arange(out.size, dtype=jnp.uint32)
            return jnp.sum(out != value_sum(jnp, index, members, iteration), dtype=jnp.int32)

        def mapped(f: Any, **specs: Any) -> Any:
            return jax.shard_map(f, mesh=mesh, **specs)

        self._uint32 = jnp.uint32
        self._make = jax.jit(
            lambda iteration, elements: mapped(lambda i: make(elements, i), in_specs=P(), out_specs=P("d"))(iteration),
            static_argnums=1,
            out_shardings=NamedSharding(mesh, P("d")),
        )
        # The input is donated, as gradients are in a training step.
        self._sum = jax.jit(mapped(lambda x: psum(x[0], "d"), in_specs=P("d", None), out_specs=P()), donate_argnums=0)
        self._count = jax.jit(count)

    def prepare(self, elements: int, iteration: int) -> Any:
        return self._make(self._uint32(iteration), elements).block_until_ready()

    def sum(self, x: Any) -> Any:
        return self._sum(x).block_until_ready()

    def wrong(self, out: Any, iteration: int) -> int:
        return int(self._count(out.addressable_data(0), self._uint32(iteration)))


class PassingProgram(JaxProgram):
    def __init__(self, arguments: argparse.Namespace) -> None:
        import jax_passing

        self._session = jax_passing.init()  # JAX_PASSING_* say who is who
        super().__init__(arguments, jax_passing.psum)

    def close(self) -> None:
        self._session.shutdown()


class GlooProgram(JaxProgram):
    def __init__(self, arguments: argparse.Namespace) -> None:
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(arguments.coordinator, num_processes=arguments.ranks, process_id=arguments.rank)
        super().__init__(arguments, jax.lax.psum, spans=True)


class MpiProgram(Program):
    """MPI_Allreduce by mpi4py."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import numpy as np
        from mpi4py import MPI

        self._np, self._world = np, MPI.COMM_WORLD
        arguments.rank = self._world.rank

    def prepare(self, elements: int, iteration: int) -> Any:
        np = self._np
        out = np.zeros(elements, np.float32)  # touched here, as the donated buffers of JAX are
        return value(np, np.arange(elements, dtype=np.uint32), self._world.rank, iteration), out

    def sum(self, x: Any) -> Any:
        self._world.Allreduce(*x)
        return x[1]

    def wrong(self, out: Any, iteration: int) -> int:
        np = self._np
        expected = value_sum(np, np.arange(out.size, dtype=np.uint32), self._world.size, iteration)
        return int(np.count_nonzero(out != expected))


PROGRAMS = {"passing": PassingProgram, "gloo": GlooProgram, "mpi": MpiProgram}


def serve(program: Program, orders: TextIO) -> None:
    xs: list[Any] = []
    for line in orders:
        order = json.loads(line)
        iterations = range(order["iteration"], order["iteration"] + order["sums"])
        if order["do"] == "prepare":
            xs = [program.prepare(order["elements"], iteration) for iteration in iterations]
            reply: dict[str, Any] = {}
        else:
            xs.reverse()
            outs = []
            # The machine's one clock, so the times of all ranks compare.
            start_s = time.clock_gettime(time.CLOCK_MONOTONIC)
            while xs:
                outs.append(program.sum(xs.pop()))
            end_s = time.clock_gettime(time.CLOCK_MONOTONIC)
            wrong = sum(program.wrong(out, iteration) for out, iteration in zip(outs, iterations, strict=True))
            reply = {"start_s": start_s, "end_s": end_s, "wrong": wrong}
            del outs
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
