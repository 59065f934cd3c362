"""Programs without a collective of their own: arrays carry shardings, and `jit` puts the collectives in."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from over_mesh import meshes, placed, sum_bound, trained_bound

STEPS = 3
Parameters = list[jax.Array]
Given = Iterator[tuple[str, jax.Array, float]]


def initial(seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [(draw.normal(size=shape) / 8).astype(np.float32) for shape in ((12, 24), (24, 24), (24, 12))]


def batch(mesh: Mesh, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(mesh.size * 4, 12)).astype(np.float32)


def loss(parameters: Parameters, x: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ parameters[0])
    return jnp.mean((jnp.tanh(hidden @ parameters[1]) @ parameters[2] - x) ** 2)


def train(label: str, mesh: Mesh, specs: list[P], rows: P) -> Given:
    """Trains an MLP whose weights lie on the mesh as `specs` says; the step takes its parameters' buffers."""
    before = initial()
    parameters = [placed(mesh, array, *spec) for array, spec in zip(before, specs, strict=True)]
    shardings = [NamedSharding(mesh, spec) for spec in specs]

    @partial(jax.jit, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P())))
    def step(parameters: Parameters, x: jax.Array) -> tuple[Parameters, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, x)
        return [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)], value

    for number in range(STEPS):
        parameters, value = step(parameters, placed(mesh, batch(mesh, number), *rows))
        yield f"{label} loss {number}", value, trained_bound(value, STEPS)
    for number, array in enumerate(parameters):
        yield f"{label} weights {number}", array, trained_bound(before[number], STEPS)


def layers_in_a_scan(mesh: Mesh) -> Given:
    """Collectives lie within loops, forward, recomputed and backward."""
    layers = [np.random.default_rng(number).normal(size=(12, 12)) / 4 for number in range(4)]
    weights = placed(mesh, np.stack(layers).astype(np.float32), None, "a", "b")

    @jax.jit
    def gradient(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def total(weights: jax.Array) -> jax.Array:
            layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
            return jnp.sum(jax.lax.scan(layer, x, weights)[0] ** 2)

        return jax.value_and_grad(total)(weights)

    value, found = gradient(weights, placed(mesh, batch(mesh, 7), ("a", "b")))
    yield "scan value", value, trained_bound(value, 1)
    yield "scan gradient", found, trained_bound(value, 1)


def while_it_grows(mesh: Mesh) -> Given:
    """The number of rounds depends on a sum over all devices: all must find the same number."""

    @jax.jit
    def rounds(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.while_loop(lambda s: jnp.sum(s[1]) < 10_000, lambda s: (s[0] + 1, s[1] * 3), (0, x))

    count, grown = rounds(placed(mesh, np.arange(mesh.size * 2, dtype=np.int32), ("a", "b")))
    yield "rounds", count, 0
    yield "grown", grown, 0


def reductions(mesh: Mesh) -> Given:
    """Products, logic, extremes and orders of arrays that lie on all devices."""
    draw = np.random.default_rng(3)
    whole = draw.integers(-50, 50, (mesh.size * 4, 6))
    floats = draw.normal(size=(mesh.size * 4, 6)).astype(np.float32)
    integers = placed(mesh, whole.astype(np.int32), ("a", "b"))
    # Powers of two multiply without rounding, in whatever order.
    factors = 2.0 ** draw.integers(-2, 3, whole.shape) * draw.choice([-1, 1], whole.shape)
    powers = placed(mesh, factors.astype(np.float32), ("a", "b"))
    normal = placed(mesh, floats, ("a", "b"))
    exact = {
        "product of int32": jax.jit(lambda x: jnp.prod(x, axis=0))(integers),
        "product of float32": jax.jit(lambda x: jnp.prod(x, axis=0))(powers),
        "product of int8": jax.jit(lambda x: jnp.prod(x.astype(jnp.int8), axis=0, dtype=jnp.int8))(integers),
        "any": jax.jit(lambda x: jnp.any(x > 48, axis=0))(integers),
        "all": jax.jit(lambda x: jnp.all(x > -49, axis=0))(integers),
        "count": jax.jit(lambda x: jnp.sum(x > 3))(integers),
        "max": jax.jit(lambda x: jnp.max(x, axis=0))(normal),
        "min": jax.jit(lambda x: jnp.min(x))(normal),
        "argmax": jax.jit(lambda x: jnp.argmax(x, axis=0))(normal),
        "sorted": jax.jit(lambda x: jnp.sort(x, axis=0))(integers),
        "running sum": jax.jit(lambda x: jnp.cumsum(x, axis=0))(integers),
        "turned": jax.jit(lambda x: x.T.reshape(-1))(integers),
    }
    for label, value in exact.items():
        yield label, value, 0
    bound = sum_bound(float(np.abs(floats).max()), len(floats), np.dtype(np.float32))
    yield "sum", jax.jit(lambda x: jnp.sum(x, axis=0))(normal), bound
    # XLA moves rows by adding zeros to them.
    yield "rows", jax.jit(lambda x: x[jnp.array([0, mesh.size * 4 - 1, 2])])(normal), bound
    yield "mean", jax.jit(lambda x: jnp.mean(x))(normal), bound
    moved = jax.device_put(normal, NamedSharding(mesh, P(None, "a" if 6 % mesh.shape["a"] == 0 else None)))
    yield "put anew", moved, 0


def results() -> Given:
    for name, mesh in meshes():
        yield from train(f"{name} data parallel", mesh, [P()] * 3, P(("a", "b")))
        yield from train(f"{name} fully sharded", mesh, [P(("a", "b")), P(("a", "b")), P(("a", "b"))], P(("a", "b")))
        yield from train(f"{name} tensor parallel", mesh, [P(None, "b"), P("b", None), P(None, "b")], P("a"))
        for part in (layers_in_a_scan, while_it_grows, reductions):
            for label, value, bound in part(mesh):
                yield f"{name} {label}", value, bound
