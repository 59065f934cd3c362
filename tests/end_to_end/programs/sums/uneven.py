"""Hosts whose batches have other numbers of rows: jit compiles programs of other shapes, whose sums are alike.

Each device's loss is the sum over its rows. What all hosts must get is the gradient of one process with all rows.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

COLUMNS = 5
WEIGHTS = np.linspace(-1, 1, COLUMNS).astype(np.float32)


def rows_of(rank: int, last: bool) -> int:
    """Returns how many rows each device has: the last batch of rank 1 is smaller, and rank 2's are all larger."""
    return 3 if last and rank == 1 else 12 if rank == 2 else 8


def data(rank: int, batch: int, rows: int) -> np.ndarray:
    return np.random.default_rng((rank, batch)).normal(size=(rows, COLUMNS)).astype(np.float32)


def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum((jnp.tanh(x @ weights) - x.sum(1)) ** 2)


def summed(weights: jax.Array, x: jax.Array) -> jax.Array:
    """The mean over all rows of all hosts: sums are divided by a sum of counts."""
    count = jax_passing.psum(jnp.float32(x.shape[0]), "d")
    return jax_passing.psum(jax.grad(loss)(weights, x), "d") / count


def overlapped(weights: jax.Array, x: jax.Array) -> jax.Array:
    """The mean of each device's mean, in which all devices count the same."""
    return jax_passing.overlap(lambda weights, x: loss(weights, x) / x.shape[0], "d")(weights, x)[1]


def in_a_loop(weights: jax.Array, x: jax.Array) -> jax.Array:
    """As `summed`, with sums in the loop of a scan."""

    def small_step(total: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        return total + jax_passing.psum(row, "d"), None

    gradient = jax.grad(loss)(weights, x)
    total, _ = jax.lax.scan(small_step, jnp.zeros_like(gradient), jnp.stack([gradient, gradient]))
    return total / 2 / jax_passing.psum(jnp.float32(x.shape[0]), "d")


def gradient_of(x: np.ndarray) -> np.ndarray:
    """Returns that of `loss`."""
    wide = x.astype(np.float64)
    reached = np.tanh(wide @ WEIGHTS)
    gradient: np.ndarray = wide.T @ (2 * (reached - wide.sum(1)) * (1 - reached**2))
    return gradient


def expected(step: Any, parts: list[np.ndarray]) -> np.ndarray:
    if step is overlapped:
        return np.mean([gradient_of(part) / len(part) for part in parts], 0)
    return np.sum([gradient_of(part) for part in parts], 0) / sum(map(len, parts))


def main() -> None:
    with jax_passing.init(axis_name="d", deadline_s=60) as session:
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))

        def mapped(f: Any, in_specs: Any) -> Any:
            return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=P(), check_vma=False))

        for step in (summed, overlapped, in_a_loop):
            take = mapped(step, (P(), P("d")))
            for batch in range(4):
                parts = []
                for rank in range(session.world_size):
                    rows = rows_of(rank, last=batch % 2 == 1)
                    parts += np.split(data(rank, batch, rows * mesh.size), mesh.size)
                mine = np.concatenate(parts[session.rank * mesh.size :][: mesh.size])
                np.testing.assert_allclose(take(WEIGHTS, mine), expected(step, parts), rtol=1e-5, atol=1e-5)
                if batch == 1:  # a program that all hosts first run, when one of them has run one more
                    mapped(lambda x: jax_passing.pmean(x.sum(), "d"), P("d"))(mine)
            print(f"{step.__name__} is right", flush=True)


main()
