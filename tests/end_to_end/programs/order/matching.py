"""200 sums in one jit, in scans and in inner jits, issued in another order on each host: never a wrong sum."""

import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

COUNT = 200


def main(rounds: int) -> None:
    with jax_passing.init(axis_name="d") as session:
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
        total = jax.local_device_count() * session.world_size
        chaos = random.Random(session.rank)

        def late(x: jax.Array) -> jax.Array:
            """The same value, after a wait of this host's own."""

            def wait(x: np.ndarray) -> np.ndarray:
                time.sleep(chaos.random() ** 4 * 0.02)
                return x

            return jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        def spmd(body, out_specs=P()):
            return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=out_specs, check_vma=False))

        @jax.jit
        def inner(x: jax.Array) -> jax.Array:
            return jax_passing.psum(x, "d") + jax_passing.psum(2 * x, "d")

        def many(x: jax.Array) -> jax.Array:
            # Same shape, same dtype: only the site tells them apart.
            outs = [jax_passing.psum((late(x) if i % 20 == 0 else x) * i, "d") for i in range(COUNT)]
            return jnp.stack(outs)

        def scans(x: jax.Array) -> jax.Array:
            def body(carry: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
                a = jax_passing.psum(x * i, "d")
                b = jax_passing.psum(x * (i + 1000), "d")
                return carry + a, jnp.stack([a, b])

            return jax.lax.scan(body, jnp.zeros_like(x), jnp.arange(20.0))[1]

        def inners(x: jax.Array) -> jax.Array:
            return jnp.stack([inner((late(x) if i % 7 == 0 else x) * i) for i in range(30)])

        programs = {"many": spmd(many), "scans": spmd(scans), "inners": spmd(inners)}
        x = jnp.arange(1.0, 4.0)
        # Each host compiles in an order of its own; all run in the same order.
        order = list(programs)
        chaos.shuffle(order)
        compiled = {name: programs[name].lower(x).compile() for name in order}
        base = np.arange(1.0, 4.0) * total
        expected = {
            "many": np.stack([base * i for i in range(COUNT)]),
            "scans": np.stack([np.stack([base * i, base * (i + 1000)]) for i in range(20)]),
            "inners": np.stack([3 * base * i for i in range(30)]),
        }
        schedule = random.Random(42)  # the same on all hosts
        for round_number in range(rounds):
            names = sorted(compiled)
            schedule.shuffle(names)
            outs = [(name, compiled[name](x)) for name in names]  # in flight together
            for name, out in outs:
                np.testing.assert_allclose(out, expected[name], rtol=1e-5, err_msg=f"round {round_number} {name}")
        stats = session.stats()
    print(f"rounds {rounds} stats {stats}")


main(int(sys.argv[1]))
