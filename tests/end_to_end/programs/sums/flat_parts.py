"""With strategy "flat", sums over a part of the devices raise; with "passing" they are possible."""

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing


def attempt(mesh: jax.sharding.Mesh, axes: tuple[str, ...], strategy: str | None) -> jax.Array:
    def body(x: jax.Array) -> jax.Array:
        return jax_passing.psum(x, axes, strategy=strategy)

    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P(("a", "b")), out_specs=P("a"), check_vma=False))(
        np.ones(mesh.size, np.float32)
    )


def main() -> None:
    with jax_passing.init(axis_name="b") as session:
        hosts = session.world_size
        grid = jax.sharding.Mesh(np.reshape(jax.local_devices(), (2, 2)), ("a", "b"))
        half = jax.sharding.Mesh(np.reshape(jax.local_devices()[:2], (1, 2)), ("a", "b"))
        for mesh, axes in ((grid, ("b",)), (half, ("a", "b"))):
            try:
                attempt(mesh, axes, None)
            except jax_passing.errors.ConfigError as error:
                print(f"raised ConfigError: {error}")
            np.testing.assert_array_equal(attempt(mesh, axes, "passing"), np.full(mesh.shape["a"], 2.0 * hosts))
        assert attempt(grid, ("a", "b"), None)[0] == 4 * hosts


main()
