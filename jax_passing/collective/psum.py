"""`psum`, `pmean` and `psum_with_residuals` sum over the devices of an axis, on all hosts."""

from typing import Any, TypeVar

import jax

from jax_passing._compat import jax_collectives
from jax_passing.collective.axes import device_count, extent
from jax_passing.collective.naming.sites import new_site, paths_of
from jax_passing.collective.primitives.bucketed_sum import (
    bucketed_sum,
    bucketed_sum_with_residuals,
    check_bucket_bytes,
    check_strategy,
    check_wire_dtype,
    is_number,
    nothing_lost,
)
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.primitives.operands import summand, without_float0

_T = TypeVar("_T")


def psum(
    tree: _T,
    axis_name: Any,
    *,
    strategy: str | None = None,
    wire_dtype: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> _T:
    """Sums each array of `tree` over the devices along `axis_name`, on all hosts.

    An axis spans the devices of all hosts if its mesh spans the processes (jax.distributed), or if
    `init(axis_name=...)` declares it: then a mesh inside this process, pmap or vmap that has such an axis continues on
    the other hosts. Any other axis stays inside the host, where this is `jax.lax.psum`. The bits of the result are the
    same on every device and host, and depend only on the inputs. The gradient is that of `jax.lax.psum`.

    Args:
      tree: arrays of any shape, bool, integer, floating point (bfloat16, float16 to float64) or complex; bool is
        summed as int32. A Python number is multiplied by the number of devices that are summed, so
        `psum(1, axis_name)` counts them. Gradients of integers (float0) have no values, and stay as they are. Paths,
        shapes and dtypes must be the same on all hosts.
      axis_name: name of an axis of shard_map, pmap or vmap, or a tuple of names.
      strategy: how the sum is carried out: "passing" (add up inside each host, then in the switch), "flat" (each device
        sends to the switch), "native" (`jax.lax.psum`), "auto" (what the planner finds fastest, for each bucket);
        None: as the session says. See docs/train/collectives.md.
      wire_dtype: how float32, float16, bfloat16 and complex64 travel: "full" (with up to 32 bits an element), "int16",
        "int8" or "int4" (as integers of 16, 8 or 4 bits, rounded at random so that the sum is right on average; "int8"
        for at most 127 ranks, "int4" for 7); None: as the session says. Other dtypes are always exact, or "full".
      bucket_bytes: leaves of one dtype are summed together, up to this size (the first ones up to 1 MiB), as soon
        as all of them are there: less overlaps more with the rest of the program, more costs less by the byte. No
        result depends on it; it must be the same on all hosts.

    Returns:
      A tree of the same structure, shapes and dtypes (int32 for bool). Under `shard_map(check_vma=True)` it is equal
      along the axes.

    Raises:
      UsageError: without `jax_passing.init`, when a program is compiled (or a Python number is summed); a leaf has
        another dtype; or another thread called `init`.
      UnvaryingInputError: under `shard_map(check_vma=True)`, a leaf is known to be equal on all devices.
      ConfigError: the strategy or the wire_dtype can't carry out this sum, or nothing says whether the axis goes on
        over the hosts; the message says what to write.
      NameError: an axis is not bound here.
    """
    summed, whole = without_float0(tree)
    result: _T = whole(sum_of(summed, axis_name, strategy, wire_dtype, bucket_bytes, "psum"))
    return result


def pmean(
    tree: _T,
    axis_name: Any,
    *,
    strategy: str | None = None,
    wire_dtype: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> _T:
    """Takes the mean of each array of `tree` over the devices along `axis_name`, on all hosts.

    It is `psum`, divided by the number of these devices; so is its gradient.

    Args:
      tree: as for `psum`.
      axis_name: as for `psum`.
      strategy: as for `psum`.
      wire_dtype: as for `psum`.
      bucket_bytes: as for `psum`.

    Returns:
      A tree of the same structure and shapes. Integers and bool become floating point, as with `jax.lax.pmean`; other
      dtypes stay. Under `shard_map(check_vma=True)` it is equal along the axes.

    Raises:
      UsageError, UnvaryingInputError, ConfigError, NameError: as `psum`; the first one when it is traced.
    """
    count = device_count(extent(axis_name), "pmean")
    summed, whole = without_float0(tree)
    sums = sum_of(summed, axis_name, strategy, wire_dtype, bucket_bytes, "pmean")
    result: _T = whole(jax.tree.map(lambda x: x / count, sums))
    return result


def sum_of(
    tree: _T, axis_name: Any, strategy: str | None, wire_dtype: str | None, bucket_bytes: int, function: str
) -> _T:
    """Does what `psum` does, as part of `function`, which errors name."""
    return _sum_of(tree, axis_name, strategy, wire_dtype, bucket_bytes, function, residuals=False)[0]


def psum_with_residuals(
    tree: _T,
    axis_name: Any,
    *,
    strategy: str | None = None,
    wire_dtype: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    function: str = "psum_with_residuals",
) -> tuple[_T, _T]:
    """Sums as `psum` does, and says what each host's rounding kept back.

    This is what error feedback needs (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019): whoever adds the
    residuals of one sum to the contributions to the next one loses nothing for good.

    A residual is what a host meant to contribute, the sum over its devices in float32 (float64 for float64), minus what
    it did contribute; divided by the number of these devices (and elements of a vmap along the axes), so that the host
    is made whole if each of them adds the residual to its next contribution. Under strategy "flat" each device
    contributes for itself. The sums have the bits of `psum`, with which they meet.

    A residual is 0 where nothing is lost: of integers, in a world of one host, and where the sum stays inside the host
    or is JAX's own. It is also 0 where it isn't finite, as for elements that are NaN or infinite.

    Args:
      tree: arrays as for `psum`; Python numbers are taken for arrays.
      axis_name, strategy, wire_dtype, bucket_bytes: as for `psum`.
      function: what the user called, for errors.

    Returns:
      Two trees of the same structure, shapes and dtypes (int32 for bool): sums and residuals. Under
      `shard_map(check_vma=True)` sums are equal along the axes. So are the residuals where `init(axis_name=...)`
      declares the axis, unless the strategy is "flat"; where a mesh spans the processes they vary.

    Raises:
      UsageError: it is differentiated; and as `psum`.
      UnvaryingInputError, ConfigError, NameError: as `psum`.
    """
    summed, whole = without_float0(tree)
    sums, residuals = _sum_of(summed, axis_name, strategy, wire_dtype, bucket_bytes, function, residuals=True)
    return whole(sums), whole(residuals)


def _sum_of(
    tree: Any,
    axis_name: Any,
    strategy: str | None,
    wire_dtype: str | None,
    bucket_bytes: int,
    function: str,
    *,
    residuals: bool,
) -> tuple[Any, Any]:
    check_bucket_bytes(bucket_bytes)
    along = extent(axis_name)
    if not along.axes and not residuals:
        return tree, None
    wanted = check_strategy(strategy, along)
    wire_dtype = check_wire_dtype(wire_dtype, along, wanted)
    inside = along.local and along.suits_jax
    if inside and not residuals:
        return jax_collectives.psum(tree, along.axes), None
    leaves, treedef = jax.tree.flatten(tree)
    paths = paths_of(tree)
    sums: list[Any] = list(leaves)
    arrays: dict[int, Any] = {}
    for index, leaf in enumerate(leaves):
        if is_number(leaf) and not residuals:
            sums[index] = leaf * device_count(along, function)
        else:
            arrays[index] = summand(leaf, along.axes, function, paths[index])
    left = list(sums)
    if arrays:
        given = list(arrays.values())
        site = new_site(
            along.scope.stream, wanted, bucket_bytes, [paths[index] for index in arrays], wire_dtype=wire_dtype
        )
        if not residuals:
            results, kept = bucketed_sum(given, along, site), given
        elif along.axes and not inside:
            results, kept = bucketed_sum_with_residuals(given, along, site)
        else:
            results = jax_collectives.psum(given, along.axes) if along.axes else given
            kept = nothing_lost(results, along, site)
        for index, total, residual in zip(arrays, results, kept, strict=True):
            sums[index], left[index] = total, residual
    return jax.tree.unflatten(treedef, sums), jax.tree.unflatten(treedef, left)
