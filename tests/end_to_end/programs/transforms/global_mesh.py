"""Deployment B: one mesh over jax.distributed. Values, gradients and vma types are those of lax.psum."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_passing.optax

jax.config.update("jax_cpu_collectives_implementation", "gloo")


def refusal(body: Any, array: jax.Array) -> str:
    try:
        jax.jit(body)(array)
    except jax_passing.errors.ConfigError as error:
        return str(error)
    return ""


def check_transformations(mesh: jax.sharding.Mesh, everything: np.ndarray) -> None:
    """Transformations of optax go over such a mesh without residuals, and are refused with them."""
    rows = NamedSharding(mesh, P("d"))
    array = jax.make_array_from_callback(everything.shape, rows, lambda index: everything[index])
    for feedback in (False, True):
        transformation = jax_passing.optax.compressed_psum("d", wire_dtype="int8", error_feedback=feedback)
        state = transformation.init(everything[:1])
        body = jax.shard_map(
            lambda x, t=transformation, s=state: t.update(x, s)[0], mesh=mesh, in_specs=P("d"), out_specs=P()
        )
        if feedback:
            assert "a mesh over all processes has no array of which every process" in refusal(body, array)
            continue
        means = jax.jit(body)(array)
        unit = 2 * np.abs(everything).max() * jax.local_device_count() / (127 // jax.process_count())
        error = np.abs(np.asarray(means.addressable_data(0)) - everything.mean(0)).max()
        assert error < unit * jax.process_count() / jax.device_count()


def main() -> None:
    rank, world_size = int(os.environ["HOST_RANK"]), int(os.environ["HOST_COUNT"])
    jax.distributed.initialize(os.environ["COORDINATOR"], num_processes=world_size, process_id=rank)
    with jax_passing.init() as session:  # rank and world size from jax.distributed
        assert (session.rank, session.world_size) == (rank, world_size)
        local = jax.local_device_count()
        everything = np.random.default_rng(0).normal(size=(world_size * local, 5, 3)).astype(np.float32)

        def compare(mesh: jax.sharding.Mesh, body, in_spec: P, out_spec: P, *, check_vma: bool) -> None:
            array = jax.make_array_from_callback(
                everything.shape, jax.sharding.NamedSharding(mesh, in_spec), lambda index: everything[index]
            )
            results = []
            for psum in (jax_passing.psum, jax.lax.psum):
                mapped = jax.shard_map(
                    lambda x, psum=psum: body(psum, x),
                    mesh=mesh,
                    in_specs=in_spec,
                    out_specs=out_spec,
                    check_vma=check_vma,
                )
                results.append(jax.jit(mapped)(array))
            assert results[0].aval == results[1].aval
            for mine, theirs in zip(results[0].addressable_shards, results[1].addressable_shards, strict=True):
                np.testing.assert_allclose(mine.data, theirs.data, rtol=1e-5, atol=1e-5)

        flat = jax.sharding.Mesh(jax.devices(), ("d",))
        grid = jax.sharding.Mesh(np.reshape(jax.devices(), (world_size, local)), ("h", "l"))
        for check_vma in (True, False):
            options = {"check_vma": check_vma}
            compare(flat, lambda psum, x: psum(x, "d"), P("d"), P(), **options)
            compare(grid, lambda psum, x: psum(x, ("h", "l")), P(("h", "l")), P(), **options)
            compare(grid, lambda psum, x: psum(x, "h"), P(("h", "l")), P("l"), **options)
            compare(grid, lambda psum, x: psum(x, "l"), P(("h", "l")), P("h"), **options)

        def loss_gradient(psum, x: jax.Array) -> jax.Array:
            return jax.grad(lambda v: jnp.sum(psum(v * v, "d") * jnp.arange(3.0)))(x)

        compare(flat, loss_gradient, P("d"), P("d"), check_vma=True)
        compare(flat, loss_gradient, P("d"), P("d"), check_vma=False)

        def vma(psum, x: jax.Array) -> jax.Array:
            out = psum(x, "d")
            assert jax.typeof(out) == jax.typeof(jax.lax.psum(x, "d"))
            return out

        compare(flat, vma, P("d"), P(), check_vma=True)
        check_transformations(flat, everything)
        stats = session.stats()
    print(f"global mesh done {stats}")


main()
