"""`set_to_zero` keeps parameters as they are, beside transformations that sum over the devices."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def set_to_zero() -> optax.GradientTransformation:
    """Makes a transformation that doesn't train: its updates are zeros, the same on all devices.

        labels = {"embedding": "frozen", "layers": "trained"}
        trained = optax.chain(jax_passing.optax.compressed_psum("d"), optax.adam(1e-3))
        optimizer = optax.partition({"trained": trained, "frozen": jax_passing.optax.set_to_zero()}, labels)

    Use it in place of `optax.set_to_zero` beside the transformations of this package, in `optax.partition` or
    `optax.masked`. That makes its zeros from each device's own gradients, so that under `shard_map(check_vma=True)`
    they may differ from device to device: the parameters can't leave the step by `P()`, and JAX says so.

    Returns: A transformation. Where `update` is given the parameters, its zeros have their dtypes, as gradients of
      integers (float0) can't be added to anything.
    """

    def init(params: Any) -> optax.EmptyState:
        del params
        return optax.EmptyState()

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        like = updates if params is None else params
        return jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.result_type(leaf)), like), state

    return optax.GradientTransformation(init, update)
