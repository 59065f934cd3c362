"""Steps of data parallelism whose buckets are held behind the backward pass; prints a digest of all parameters."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

LAYERS, WIDTH, STEPS = 8, 96, 20


def main() -> None:
    def update(params: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        def loss(params: list[jax.Array]) -> jax.Array:
            y = x
            for w in params:
                y = jnp.tanh(y @ w)
            return jnp.sum(y * y)

        grads = jax.grad(loss)(jax.lax.pcast(params, "d", to="varying"))
        sums = jax_passing.psum(grads, "d", bucket_bytes=WIDTH * WIDTH * 4)
        return [w - 0.01 * g for w, g in zip(params, sums, strict=True)]

    with jax_passing.init(axis_name="d") as session:
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
        step = jax.jit(jax.shard_map(update, mesh=mesh, in_specs=(P(), P("d")), out_specs=P()), donate_argnums=0)
        random = np.random.default_rng(5)
        params = [jnp.array(random.normal(size=(WIDTH, WIDTH)) / 10, jnp.float32) for _ in range(LAYERS)]
        before = [np.array(w) for w in params]
        data = random.normal(size=(STEPS, session.world_size, len(jax.local_devices()), WIDTH)).astype(np.float32)
        for batch in data:
            params = step(params, batch[session.rank])
        # In float64 over all hosts, by numpy; the first layer sees all errors.
        for batch in data.astype(np.float64):
            rows = batch.reshape(-1, WIDTH)
            ys = [rows]
            for w in before:
                ys.append(np.tanh(ys[-1] @ w))
            back = 2 * ys[-1]
            for i in reversed(range(LAYERS)):
                back = back * (1 - ys[i + 1] ** 2)
                grad, back = ys[i].T @ back, back @ before[i].T
                before[i] = before[i] - 0.01 * grad
        for ours, theirs in zip(params, before, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
    print("digest", hashlib.sha256(b"".join(np.asarray(w).tobytes() for w in params)).hexdigest())


main()
