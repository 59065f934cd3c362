"""Trainings as flax's and optax's pages show them: linen, nnx, and optax's states sharded as the parameters are."""

from collections.abc import Iterator
from functools import partial

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from over_mesh import meshes, placed, trained_bound

STEPS = 3
CLASSES = 5
Given = Iterator[tuple[str, jax.Array, float]]


def data(mesh: Mesh, number: int) -> tuple[jax.Array, jax.Array]:
    draw = np.random.default_rng(number)
    images = draw.normal(size=(mesh.size * 4, 6, 6, 1)).astype(np.float32)
    labels = draw.integers(0, CLASSES, mesh.size * 4).astype(np.int32)
    return placed(mesh, images, ("a", "b")), placed(mesh, labels, ("a", "b"))


def optimizer() -> optax.GradientTransformation:
    # A larger epsilon than Adam's usual one: else a gradient of 0 and a rounding error steps a whole rate.
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, eps=1e-2))


class Network(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        x = linen.Conv(4, (3, 3))(x)
        x = linen.BatchNorm(use_running_average=not train)(x)
        x = jnp.tanh(x).reshape(x.shape[0], -1)
        return linen.Dense(CLASSES)(linen.LayerNorm()(linen.Dense(16)(x)))


class State(TrainState):
    statistics: object


def with_linen(mesh: Mesh) -> Given:
    """Trains a convolution with batch statistics over the global batch, and counts right answers."""
    network = Network()
    variables = network.init(jax.random.key(0), jnp.zeros((1, 6, 6, 1)), train=False)
    before = variables["params"]
    state = State.create(apply_fn=network.apply, params=before, tx=optimizer(), statistics=variables["batch_stats"])
    state = jax.device_put(state, NamedSharding(mesh, P()))

    @partial(jax.jit, donate_argnums=0)
    def step(state: State, images: jax.Array, labels: jax.Array) -> tuple[State, jax.Array]:
        def loss(parameters: object) -> tuple[jax.Array, object]:
            variables = {"params": parameters, "batch_stats": state.statistics}
            logits, new = state.apply_fn(variables, images, train=True, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new["batch_stats"]

        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients, statistics=statistics), value

    @jax.jit
    def evaluate(state: State, images: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
        logits = state.apply_fn({"params": state.params, "batch_stats": state.statistics}, images, train=False)
        return {"right": jnp.sum(jnp.argmax(logits, -1) == labels), "seen": jnp.size(labels)}

    for number in range(STEPS):
        state, value = step(state, *data(mesh, number))
        yield f"linen loss {number}", value, trained_bound(value, STEPS)
    for name, count in evaluate(state, *data(mesh, 99)).items():
        yield f"linen {name}", count, 0
    for number, leaf in enumerate(jax.tree.leaves((state.params, state.statistics))):
        yield f"linen {number}", leaf, trained_bound(leaf, STEPS)


class Layers(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        split = nnx.with_partitioning
        start = nnx.initializers.lecun_normal()
        self.wide = nnx.Linear(36, 24, kernel_init=split(start, (None, "b")), rngs=rngs)
        self.norm = nnx.RMSNorm(24, rngs=rngs)
        self.narrow = nnx.Linear(24, CLASSES, kernel_init=split(start, ("b", None)), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.narrow(self.norm(jnp.tanh(self.wide(x.reshape(x.shape[0], -1)))))


def with_nnx(mesh: Mesh) -> Given:
    """Trains layers whose weights are split over one axis while the batch is over both."""
    with jax.set_mesh(mesh):

        @nnx.jit
        def create() -> tuple[Layers, nnx.Optimizer]:
            model = Layers(nnx.Rngs(0))
            return model, nnx.Optimizer(model, optimizer(), wrt=nnx.Param)

        model, state = create()

        @nnx.jit
        def step(model: Layers, state: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> jax.Array:
            def loss(model: Layers) -> jax.Array:
                return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

            value, gradients = nnx.value_and_grad(loss)(model)
            state.update(model, gradients)
            return value

        for number in range(STEPS):
            value = step(model, state, *data(mesh, number))
            yield f"nnx loss {number}", value, trained_bound(value, STEPS)
        for number, leaf in enumerate(jax.tree.leaves(nnx.state(model, nnx.Param))):
            yield f"nnx {number}", leaf, trained_bound(1.0, STEPS)


def with_sharded_states(mesh: Mesh) -> Given:
    """Trains a matrix with gradients that are accumulated, and momentum that is sharded over all devices."""
    before = np.random.default_rng(5).normal(size=(mesh.size * 2, 6)).astype(np.float32) / 4
    parameters = placed(mesh, before, ("a", "b"))
    transformation = optax.MultiSteps(optax.sgd(0.1, momentum=0.5), every_k_schedule=2)
    state = jax.jit(transformation.init)(parameters)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters: jax.Array, state: object, images: jax.Array) -> tuple[jax.Array, object, jax.Array]:
        def loss(parameters: jax.Array) -> jax.Array:
            x = images.reshape(-1, 6)[:, :6]
            return jnp.mean((jnp.tanh(x @ parameters.T) @ parameters - x) ** 2)

        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, state = transformation.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    for number in range(2 * STEPS):
        parameters, state, value = step(parameters, state, data(mesh, number)[0])
        yield f"optax loss {number}", value, trained_bound(value, STEPS)
    yield "optax", parameters, trained_bound(before, STEPS)


def results() -> Given:
    for name, mesh in meshes():
        if name in ("row", "columns"):
            for part in (with_linen, with_nnx, with_sharded_states):
                for label, value, bound in part(mesh):
                    yield f"{name} {label}", value, bound
