"""Scatters and gathers amid local work that differs from host to host: opposite.py ROUNDS.

XLA gives each host's program an order and a memory plan of its own, by what the host computes before, between and
behind them. Nevertheless no host may wait in one of them while another waits in the other.
"""

import random
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

LAYERS, SIDE = 4, 192


def main(rounds: int) -> None:
    with jax_passing.init(axis_name="d") as session:
        devices = jax.local_device_count() * session.world_size
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
        sums = random.Random(7)  # alike on all hosts
        for number in range(rounds):
            own = random.Random(1000 * number + session.rank)
            first = [sums.random() < 0.5 for _ in range(LAYERS)]  # the scatter is
            rows = [sums.choice([64, 128, 512]) for _ in range(LAYERS)]
            sizes = [each * devices * SIDE for each in rows]

            def busy(x: jax.Array, own: random.Random = own) -> jax.Array:
                """The same values, after none or some products, as this host draws."""
                for _ in range(own.choice([0, 0, 1, 3])):
                    square = jnp.eye(SIDE, dtype=x.dtype)
                    x = (x.reshape(-1, SIDE) @ square).reshape(x.shape)
                return x

            def step(layers, parts, first=tuple(first)):
                scattered, gathered = [], []
                for layer, part, scatter_is_first in zip(layers, parts, first, strict=True):
                    given, row = busy(layer), busy(part)
                    if scatter_is_first:
                        mine = jax_passing.psum_scatter(given, "d", tiled=True)
                    every = jax_passing.all_gather(row, "d", tiled=True)
                    if not scatter_is_first:
                        mine = jax_passing.psum_scatter(given, "d", tiled=True)
                    scattered.append(busy(mine))
                    gathered.append(2 * busy(every))
                return scattered, gathered

            mapped = jax.jit(
                jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d")), out_specs=(P("d"), P()), check_vma=False),
                donate_argnums=own.choice([(), (0,), (1,), (0, 1)]),
            )
            values = np.random.default_rng(number)
            whole = [values.integers(-9, 9, size).astype(np.float32) for size in sizes]
            index = session.rank * jax.local_device_count()
            mine = slice(index, index + jax.local_device_count())
            for _ in range(3):
                parts = [jnp.asarray(each.reshape(devices, -1)[mine].reshape(-1)) for each in whole]
                scattered, gathered = mapped([jnp.asarray(each) for each in whole], parts)
                for one, other, each in zip(scattered, gathered, whole, strict=True):
                    np.testing.assert_array_equal(one, devices * each.reshape(devices, -1)[mine].reshape(-1))
                    np.testing.assert_array_equal(other, 2 * each)
        print("ok")


main(int(sys.argv[1]))
