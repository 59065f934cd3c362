"""`local_sgd` lets hosts train by themselves, and averages their parameters from time to time."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jax_passing.collective.inside_host import each_device_own, mean_inside_host
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.psum import pmean
from jax_passing.optax.arguments import check_count, check_params, named_by, not_in_multi_steps
from jax_passing.optax.parameters import updates_to


class LocalSgdState(NamedTuple):
    """The state of `local_sgd`.

    Attributes:
      steps: int32[], so far.
      inner: the state of the inner optimizer, which is each host's own.
    """

    steps: jax.Array
    inner: Any


def local_sgd(
    inner: optax.GradientTransformation,
    axis_name: Any,
    *,
    every: int,
    wire_dtype: str | None = None,
    strategy: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Takes steps on each host's own gradients, and averages the parameters of all hosts every `every` steps.

        optimizer = jax_passing.optax.local_sgd(optax.sgd(0.1), "d", every=16)
        updates, state = optimizer.update(gradients, state, params)    # each device's own gradients

    The devices of one host average their gradients at every step, which doesn't use the network; so hosts send 1/H of
    the bytes of synchronous steps, and wait for each other 1/H as often, with H = `every` (Stich, Local SGD converges
    fast and communicates little, ICLR 2019). For T steps on N hosts with strongly convex losses it converges as fast as
    synchronous SGD with H up to the order of sqrt(T / N); the more the hosts' data differ, the smaller H must be.

    Each host has its own state of `inner`, which isn't averaged. Between two averages the parameters differ from host
    to host, and after one by the rounding of `params + updates`. Save or evaluate them after a multiple of `every`
    steps, or take `jax_passing.pmean` of them.

    Args:
      inner: any optimizer.
      axis_name: as for `psum`; of a mesh inside of each host.
      every: H, 1 or more.
      wire_dtype: how parameters travel, as for `psum`. Fewer bits round the parameters themselves, where
        `diloco` sends differences.
      strategy: as for `psum`.
      bucket_bytes: as for `psum`.

    Returns: A transformation whose `update` takes each device's own gradients and the host's parameters, within the
      axis.

    Raises:
      ConfigError: `every` isn't a whole number from 1 on; `update` has no parameters, the mesh spans the hosts, or
        `optax.MultiSteps` is around it under `check_vma=True`.
    """
    check_count("local_sgd", "every", every, 1, "It says after how many steps hosts average their parameters.")
    inner = optax.with_extra_args_support(inner)
    options: dict[str, Any] = {"wire_dtype": wire_dtype, "strategy": strategy, "bucket_bytes": bucket_bytes}

    def init(params: Any) -> LocalSgdState:
        return LocalSgdState(jnp.zeros((), jnp.int32), inner.init(params))

    @not_in_multi_steps("local_sgd", sums_stay=False)
    def update(gradients: Any, state: LocalSgdState, params: Any = None, **extra: Any) -> tuple[Any, LocalSgdState]:
        check_params("local_sgd", params)
        mean = mean_inside_host(gradients, axis_name, "local_sgd")
        updates, inner_state = inner.update(mean, state.inner, params, **extra)
        steps = state.steps + 1

        def average() -> Any:
            own = each_device_own(optax.apply_updates(params, updates), axis_name)
            with named_by(every=every):
                mean = pmean(own, axis_name, **options)
            return updates_to(mean, params, updates)

        # All hosts are at the same step, so all come to this sum, or none.
        updates = jax.lax.cond(steps % every == 0, average, lambda: updates)
        return updates, LocalSgdState(steps, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)
