"""`psum_with_residuals` sums as `psum` does, and says what each host's rounding kept back.

This is what error feedback needs (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019): whoever adds the
residuals of one sum to the contributions to the next one loses nothing for good.
"""

from typing import Any, TypeVar

import jax

from jax_passing._compat import jax_collectives
from jax_passing.collective.axes import extent
from jax_passing.collective.naming.sites import new_site, paths_of
from jax_passing.collective.primitives.bucketed_sum import (
    bucketed_sum,
    check_bucket_bytes,
    check_strategy,
    check_wire,
    nothing_lost,
)
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.primitives.operands import summand, without_float0
from jax_passing.config import wire_dtype_was_wire

_T = TypeVar("_T")


@wire_dtype_was_wire
def psum_with_residuals(
    tree: _T,
    axis_name: Any,
    *,
    strategy: str | None = None,
    wire_dtype: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    function: str = "psum_with_residuals",
) -> tuple[_T, _T]:
    """Sums each array of `tree` over the devices along `axis_name`, on all hosts, and returns the residuals, too.

    A residual is what a host meant to contribute, the sum over its devices in float32 (float64 for float64), minus what
    it did contribute; divided by the number of these devices (and elements of a vmap along the axes), so that the host
    is made whole if each of them adds the residual to its next contribution. Under strategy "flat" each device
    contributes for itself. The sums have the bits of `psum`, with which they meet.

    A residual is 0 where nothing is lost: of integers, in a world of one host, and where the sum stays inside the host
    or is JAX's own. It is also 0 where it isn't finite, as for elements that are NaN or infinite.

    Args:
      tree: arrays as for `psum`; Python numbers are taken for arrays.
      axis_name: as for `psum`.
      strategy: as for `psum`.
      wire_dtype: as for `psum`.
      bucket_bytes: as for `psum`.
      function: what the user called, for errors.

    Returns:
      Two trees of the same structure, shapes and dtypes (int32 for bool): sums and residuals. Under
      `shard_map(check_vma=True)` sums are equal along the axes. So are the residuals where `init(axis_name=...)`
      declares the axis, unless the strategy is "flat"; where a mesh spans the processes they vary.

    Raises:
      UsageError: it is differentiated; or as `psum`.
      UnvaryingInputError, ConfigError, NameError: as `psum`.
    """
    check_bucket_bytes(bucket_bytes)
    along = extent(axis_name)
    wanted = check_strategy(strategy, along)
    summed, whole = without_float0(tree)
    leaves, treedef = jax.tree.flatten(summed)
    paths = paths_of(summed)
    arrays = [summand(leaf, along.axes, function, path) for leaf, path in zip(leaves, paths, strict=True)]
    site = new_site(along.scope.stream, wanted, bucket_bytes, paths, wire=check_wire(wire_dtype, along, wanted))
    if not along.axes:
        results = [*arrays, *nothing_lost(arrays, along, site)]
    elif along.local and along.suits_jax:
        sums = jax_collectives.psum(arrays, along.axes)
        results = [*sums, *nothing_lost(sums, along, site)]
    else:
        results = bucketed_sum(arrays, along, site, residuals=True)
    count = len(arrays)
    return whole(jax.tree.unflatten(treedef, results[:count])), whole(jax.tree.unflatten(treedef, results[count:]))
