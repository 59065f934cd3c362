"""`psum` and `pmean` sum over the devices of an axis, on all hosts."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing._compat import jax_collectives, jaxprs, named_axes
from jax_passing.collective.axes import Axes, axis_size, extent
from jax_passing.collective.naming.sites import new_site, paths_of
from jax_passing.collective.primitives.bucketed_sum import bucketed_sum, check_bucket_bytes, check_strategy, is_number
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.errors import UnsupportedDtypeError, UnvaryingInputError

_T = TypeVar("_T")

SUPPORTED_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bfloat16", "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def psum(tree: _T, axis_name: Any, *, strategy: str | None = None, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> _T:
    """Sums each array of `tree` over the devices along `axis_name`, on all hosts.

    An axis goes on over the hosts if its mesh spans the processes (jax.distributed), or if `init(axis_name=...)`
    declares it: then a mesh inside this process, pmap or vmap that has such an axis continues on the other hosts. Any
    other axis stays inside the host, where this is `jax.lax.psum`. The bits of the result are the same on every device
    and host, and depend only on the inputs. The gradient is that of `jax.lax.psum`.

    Args:
      tree: arrays of any shape, of the dtypes in SUPPORTED_DTYPES; bool is summed as int32. A Python number is
        multiplied by the number of devices that are summed, so `psum(1, axis_name)` counts them. Paths, shapes and
        dtypes must be the same on all hosts.
      axis_name: name of an axis of shard_map, pmap or vmap, or a tuple of names.
      strategy: how the sum is carried out: "passing" (add up inside each host, then in the switch), "flat" (each device
        sends to the switch), "native" (`jax.lax.psum`), "auto" (what the planner finds fastest, for each bucket);
        None: as the session says. See docs/train/collectives.md.
      bucket_bytes: leaves of one dtype are summed together, up to so many bytes (the first ones up to 1 MiB), as soon
        as all of them are there: less overlaps more with the rest of the program, more costs less by the byte. No
        result depends on it; it must be the same on all hosts.

    Returns:
      A tree of the same structure, shapes and dtypes (int32 for bool). Under `shard_map(check_vma=True)` it is equal
      along the axes.

    Raises:
      NotInitializedError: without `jax_passing.init`, when a program is compiled (or a Python number is summed).
      UnsupportedDtypeError: a leaf has another dtype.
      UnvaryingInputError: under `shard_map(check_vma=True)`, a leaf is known to be equal on all devices.
      ConfigError: the strategy can't carry out this sum, or nothing says whether the axis goes on over the hosts; the
        message says what to write.
      ThreadError: another thread called `init`.
      NameError: an axis is not bound here.
    """
    return sum_of(tree, axis_name, strategy, bucket_bytes, "psum")


def pmean(tree: _T, axis_name: Any, *, strategy: str | None = None, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> _T:
    """Takes the mean of each array of `tree` over the devices along `axis_name`, on all hosts.

    It is `psum`, divided by the number of these devices; so is its gradient.

    Args:
      tree: as for `psum`.
      axis_name: as for `psum`.
      strategy: as for `psum`.
      bucket_bytes: as for `psum`.

    Returns:
      A tree of the same structure and shapes. Integers and bool become floating point, as with `jax.lax.pmean`; other
      dtypes stay. Under `shard_map(check_vma=True)` it is equal along the axes.

    Raises:
      NotInitializedError: there is no session, when it is traced.
      UnsupportedDtypeError, UnvaryingInputError, ConfigError, ThreadError, NameError: as `psum`.
    """
    count = axis_size(axis_name)
    return jax.tree.map(lambda x: x / count, sum_of(tree, axis_name, strategy, bucket_bytes, "pmean"))


def sum_of(tree: _T, axis_name: Any, strategy: str | None, bucket_bytes: int, function: str) -> _T:
    """Does what `psum` does, as part of `function`, which errors name."""
    check_bucket_bytes(bucket_bytes)
    along = extent(axis_name)
    if not along.axes:
        return tree
    wanted = check_strategy(strategy, along)
    if along.local and along.suits_jax:
        return jax_collectives.psum(tree, along.axes)
    leaves, treedef = jax.tree.flatten(tree)
    paths = paths_of(tree)
    sums: list[Any] = list(leaves)
    arrays: dict[int, Any] = {}
    for index, leaf in enumerate(leaves):
        if is_number(leaf):
            sums[index] = leaf * along.size
        else:
            arrays[index] = _as_operand(leaf, along.axes, function, paths[index])
    if arrays:
        site = new_site(along.scope.stream, wanted, bucket_bytes, [paths[index] for index in arrays])
        for index, result in zip(arrays, bucketed_sum(list(arrays.values()), along, site), strict=True):
            sums[index] = result
    return jax.tree.unflatten(treedef, sums)


def _as_operand(leaf: Any, axes: Axes, function: str, path: str) -> jax.Array:
    array = jnp.asarray(leaf)
    if array.dtype.name not in SUPPORTED_DTYPES:
        raise UnsupportedDtypeError(
            f"{function} of {array.dtype.name}{at(path)}; supported are {', '.join(SUPPORTED_DTYPES)}"
        )
    if array.dtype == np.bool_:
        array = array.astype(np.int32)
    return require_varying(array, leaf, axes, function, path)


def at(path: str) -> str:
    """Says for errors where in the tree a leaf is: " at ['layer']['w']"; nothing if the tree is one leaf."""
    return f" at {path}" if path else ""


def require_varying(array: jax.Array, leaf: Any, axes: Axes, function: str, path: str) -> jax.Array:
    """Casts `array`, made from `leaf`, to one that differs from device to device, under `check_vma=True`.

    Args:
      function: what the user called.
      path: the leaf's path in what the user gave.

    Raises:
      UnvaryingInputError: it was computed, and is equal on all devices.
    """
    if not named_axes.check_vma():
        return array
    missing = named_axes.must_vary(axes) - named_axes.varying(jax.typeof(array))
    if missing and isinstance(leaf, jax.core.Tracer):
        names = ", ".join(repr(axis) for axis in sorted(missing))
        what = f"{function} over {axes} of {jax.typeof(array)}{at(path)}"
        if jaxprs.is_constant(leaf):
            raise UnvaryingInputError(
                f"{what}, a constant that is equal on all devices along {names}: its sum is "
                f"jax_passing.axis_size({axes}) times the constant, its mean the constant itself. If each device's own "
                f"copy is meant, cast it with jax.lax.pcast(x, {axes}, to='varying')."
            )
        raise UnvaryingInputError(
            f"{what}, which is equal on all devices along {names}. If it is the gradient of parameters that are equal "
            "on all devices, it has been summed over the devices already: use it as it is. For sums in large buckets "
            f"beside the backward pass cast the parameters first, with params = jax_passing.pvary(params, {axes}), and "
            "don't sum their gradients; for gradients of each device's own, with "
            f"jax.lax.pcast(params, {axes}, to='varying'). If it is another value, such as a learning rate, it needs "
            f"no {function}: leave it out of the tree, or, if each device's own copy is meant, cast it with "
            f"jax_passing.pvary(x, {axes})."
        )
    return named_axes.pvary(array, missing)
