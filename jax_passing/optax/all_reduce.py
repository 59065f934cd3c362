"""`all_reduce` is a transformation of optax: the mean of gradients over the devices of all hosts, or their sum."""

from typing import Any

import optax

from jax_passing.collective.primitives.bucketed_sum import check_wire_dtype_name
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.psum import pmean, psum
from jax_passing.optax.arguments import not_in_multi_steps


def all_reduce(
    axis_name: Any,
    *,
    mean: bool = True,
    wire_dtype: str | None = None,
    strategy: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> optax.GradientTransformation:
    """Makes a transformation that takes the mean of gradients over all devices of all hosts.

        optimizer = optax.chain(jax_passing.optax.all_reduce("d"), optax.adam(1e-3))

    Each device gives its own gradients, as to `jax_passing.pmean`, which this is; all get the same mean. Take them with
    respect to parameters that vary, `jax.lax.pcast(params, "d", to="varying")`, under `shard_map(check_vma=True)`.
    `overlap` needs no such step, and its sums begin while gradients are computed; `compressed_psum` sends fewer bytes.

    It has no state. Put it first in a chain: what decides by the gradients (clipping, `optax.apply_if_finite`,
    `optax.MultiSteps`) has to see the same ones on all devices, and so belongs behind it.

    Args:
      axis_name: as for `jax_passing.psum`.
      mean: take the mean; else the sum.
      wire_dtype: as for `jax_passing.psum`.
      strategy: as for `jax_passing.psum`.
      bucket_bytes: as for `jax_passing.psum`.

    Raises:
      ConfigError: here, an unknown wire_dtype. In `update`, as `jax_passing.psum`; or `optax.MultiSteps` is around it
        under `check_vma=True`.
      UsageError, UnvaryingInputError, NameError: in `update`, as `jax_passing.psum`.
    """
    check_wire_dtype_name(wire_dtype, "all_reduce")
    reduce = pmean if mean else psum

    @not_in_multi_steps("all_reduce", sums_stay=False)
    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        del params
        return reduce(updates, axis_name, wire_dtype=wire_dtype, strategy=strategy, bucket_bytes=bucket_bytes), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
