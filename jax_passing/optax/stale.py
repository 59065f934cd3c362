"""`stale` applies each step's gradients some steps later, so that their sum travels beside whole steps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jax_passing.collective.axes import extent, require_session
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.psum import pmean
from jax_passing.errors import ConfigError
from jax_passing.optax.arguments import check_count, named_by, not_in_multi_steps
from jax_passing.optax.pending import Pending, mean_of, nothing, start

_STALENESS_MAX = 63  # sums of earlier steps: with the step's own it is kUnfinishedMax of xla_ffi/ffi/sum_handles.h


class StaleState(NamedTuple):
    """The state of `stale`.

    Attributes:
      pending: sums of the last steps, the oldest first.
      inner: the state of the inner optimizer.
    """

    pending: tuple[Pending, ...]
    inner: Any


def stale(
    inner: optax.GradientTransformation,
    axis_name: Any,
    staleness: int = 1,
    *,
    wire_dtype: str | None = None,
    strategy: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Applies an optimizer to the mean gradients of all hosts, `staleness` steps after they were computed.

        optimizer = jax_passing.optax.stale(optax.adam(1e-3), "d", staleness=1)
        updates, state = optimizer.update(gradients, state, params)    # each device's own gradients

    Step t starts the sum of its gradients, and applies the mean of those of step t - s. So a sum has s whole steps to
    arrive, and a fast host runs at most s steps ahead of the slowest one, then it waits. This is the bound of stale
    synchronous parallel (Ho et al., NeurIPS 2013), but without its chance: which gradients a step uses is given by its
    number, so the bits are the same on all hosts and in every run. With s = 0 it is synchronous: `pmean`, then `inner`.

    The first s steps apply nothing, and `inner` isn't called. At the end of a training call `finish`: it drops the last
    s sums. After a rejoin, or before a state is saved, call `restart`.

    A host keeps s gradients more in memory. A smooth loss converges as with synchronous steps if the learning rate is
    small enough for the delay, of the order of 1 / (L (s + 1)) for gradients with Lipschitz constant L (Agarwal and
    Duchi, NeurIPS 2011; Stich and Karimireddy, JMLR 2020): lower it, or the momentum, when training becomes unstable.

    Args:
      inner: any optimizer. `optax.MultiSteps` and clipping belong in here, where gradients are means of all hosts.
      axis_name: as for `psum`.
      staleness: s, 0 to 63.
      wire_dtype: how elements travel, as for `psum`.
      strategy: as for `psum`.
      bucket_bytes: as for `psum`.

    Returns: A transformation whose `update` takes each device's own gradients, within the axis. Its updates are the
      same on all devices of all hosts.

    Raises:
      ConfigError: `staleness` isn't a whole number, or is out of its range; `optax.MultiSteps` is around it.
    """
    check_count("stale", "staleness", staleness, 0, "It says how many steps later a step's gradients are applied.")
    if staleness > _STALENESS_MAX:
        raise ConfigError(
            f"stale(staleness={staleness}): {_STALENESS_MAX + 1} sums of one call can be on their way, one of them is "
            f"the step's own. Write staleness={_STALENESS_MAX} or less."
        )
    inner = optax.with_extra_args_support(inner)
    options: dict[str, Any] = {"wire_dtype": wire_dtype, "strategy": strategy, "bucket_bytes": bucket_bytes}

    def init(params: Any) -> StaleState:
        return StaleState(tuple(nothing(params, axis_name, **options) for _ in range(staleness)), inner.init(params))

    @not_in_multi_steps("stale", sums_stay=staleness > 0)
    def update(gradients: Any, state: StaleState, params: Any = None, **extra: Any) -> tuple[Any, StaleState]:
        require_session(extent(axis_name), "optax.stale")
        if not staleness:
            mean = pmean(gradients, axis_name, **options)
            updates, inner_state = inner.update(mean, state.inner, params, **extra)
            return updates, StaleState((), inner_state)
        with named_by(staleness=staleness):
            started = start(gradients, axis_name, **options)
        oldest, *later = state.pending
        mean = mean_of(oldest, axis_name, gradients)

        def apply() -> Any:
            return inner.update(mean, state.inner, params, **extra)

        def wait() -> Any:
            shapes, _ = jax.eval_shape(apply)
            return jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes), state.inner

        updates, inner_state = jax.lax.cond(oldest.is_running, apply, wait)
        return updates, StaleState((*later, started), inner_state)

    return optax.GradientTransformationExtraArgs(init, update)
