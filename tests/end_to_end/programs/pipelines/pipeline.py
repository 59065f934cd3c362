"""A pipeline on each host's own devices, whose data axis goes on over the hosts, with each schedule.

Every host knows all hosts' batches. Prints a digest of all bits of the gradients.
"""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.training.dynamic_scale import DynamicScale
from jax.sharding import PartitionSpec as P

import jax_passing

STAGES, MICROBATCHES, ROWS = 2, 4, 3


def loss(params: list[jax.Array], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    x, y = batch
    for weight in params:
        x = jnp.tanh(x @ weight)
    return jnp.mean((x - y) ** 2)


def batch_of(rank: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([7, rank])
    shape = (width * MICROBATCHES * ROWS, 16)
    return random.normal(size=shape).astype(np.float32), random.normal(size=shape).astype(np.float32)


def main() -> None:
    digest = hashlib.sha256()
    random = np.random.default_rng(0)
    params = [(random.normal(size=(16, 16)) / 3).astype(np.float32) for _ in range(6)]
    with jax_passing.init(axis_name="data") as session:
        devices = np.array(jax.local_devices()).reshape(STAGES, -1)
        width = devices.shape[1]
        mesh = jax.sharding.Mesh(devices, ("stage", "data"))
        everyone = [batch_of(rank, width) for rank in range(session.world_size)]
        whole = jax.tree.map(lambda *hosts: np.concatenate(hosts), *everyone)
        expected, expected_gradients = jax.jit(jax.value_and_grad(loss))(params, whole)
        largest = max(float(jnp.abs(gradient).max()) for gradient in expected_gradients)
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((ROWS, 16), leaf.dtype), whole)

        def check(mesh: jax.sharding.Mesh, schedule: str, stages: int, **options: Any) -> None:
            plan = jax_passing.partition(loss, params, shapes, stages=stages)
            step = jax_passing.pipeline(plan, mesh, microbatches=MICROBATCHES, schedule=schedule, **options)
            for _ in range(2):
                value, gradients = step(step.place(params), everyone[session.rank])
                np.testing.assert_allclose(value, expected, rtol=1e-5)
                for one, other in zip(gradients, expected_gradients, strict=True):
                    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * largest, err_msg=schedule)
                    digest.update(np.asarray(one).tobytes())

        for schedule in ("gpipe", "1f1b", "zb-h1", "interleaved"):
            check(mesh, schedule, 2 * STAGES if schedule == "interleaved" else STAGES)
        # The first two layers are frozen. Then the last host has a batch that isn't finite, and no host's step is.
        plan = jax_passing.partition(loss, params, shapes, stages=STAGES, frozen=[True] * 2 + [False] * 4)
        step = jax_passing.pipeline(plan, mesh, microbatches=MICROBATCHES)
        x, y = everyone[session.rank]
        scale, is_finite, _, gradients = step.scaled(DynamicScale(), step.place(params), (x, y))
        assert (is_finite, int(scale.fin_steps)) == (True, 1)
        assert gradients[:2] == [None, None]
        for one, other in zip(gradients[2:], expected_gradients[2:], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * largest)
        y = y * np.float32(np.inf if session.rank == session.world_size - 1 else 1)
        scale, is_finite, _, _ = step.scaled(scale, step.place(params), (x, y))
        assert (is_finite, float(scale.scale)) == (False, 32768.0)
        if width == 2:  # each layer on two devices
            in_layers = jax.sharding.Mesh(devices.reshape(1, 2, 2), ("stage", "data", "model"))
            check(in_layers, "zb-h1", 1, param_specs=[P(None, "model"), P("model")] * 3)
    print(f"digest {digest.hexdigest()}")


main()
