"""This file checks and converts what users give to the sums, for the public functions."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing._compat import jaxprs, named_axes
from jax_passing.collective.axes import Axes
from jax_passing.errors import UnvaryingInputError, UsageError

SUPPORTED_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bfloat16", "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def is_float0(leaf: Any) -> bool:
    """Tells whether this has no values: JAX makes the gradient of an integer of float0."""
    return getattr(leaf, "dtype", None) == jax.dtypes.float0


def without_float0(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Returns `tree` without its leaves of float0, and what puts these back into results of that structure."""
    leaves, treedef = jax.tree.flatten(tree)
    if not any(map(is_float0, leaves)):
        return tree, lambda results: results

    def whole(results: Any) -> Any:
        rest = iter(jax.tree.leaves(results))
        return jax.tree.unflatten(treedef, [leaf if is_float0(leaf) else next(rest) for leaf in leaves])

    return jax.tree.unflatten(treedef, [None if is_float0(leaf) else leaf for leaf in leaves]), whole


def check_dtype(what: str, dtype: np.dtype, path: str, supported: Sequence[str] = SUPPORTED_DTYPES) -> None:
    """Raises UsageError if `supported` lacks the dtype of `what`, a leaf with this path."""
    if dtype == jax.dtypes.float0:
        raise UsageError(
            f"{what}{_at(path)}: it is of float0, as gradients of integers are, which has no values: leave it out."
        )
    if dtype.name not in supported:
        raise UsageError(f"{what}{_at(path)}: cast it first. Supported are {', '.join(supported)}.")


def summand(leaf: Any, axes: Axes, function: str, path: str, supported: Sequence[str] = SUPPORTED_DTYPES) -> jax.Array:
    """Converts a leaf to an array that can be summed: bool becomes int32, and constants vary along the axes.

    Args:
      leaf: what the user gave.
      axes: the axes of the sum.
      function: what the user called.
      path: the leaf's path in what the user gave.
      supported: names of the dtypes that `function` takes.

    Raises:
      UsageError: the leaf has another dtype.
      UnvaryingInputError: under `check_vma=True` it was computed, and is equal on all devices.
    """
    array = jnp.asarray(leaf)
    check_dtype(f"{function} of {array.dtype.name}", array.dtype, path, supported)
    if array.dtype == np.bool_:
        array = array.astype(np.int32)
    if not named_axes.check_vma():
        return array
    missing = named_axes.must_vary(axes) - named_axes.varying(jax.typeof(array))
    if missing and isinstance(leaf, jax.core.Tracer):
        names = ", ".join(repr(axis) for axis in sorted(missing))
        what = f"{function} over {axes} of {jax.typeof(array)}{_at(path)}"
        if jaxprs.is_constant(leaf):
            raise UnvaryingInputError(
                f"{what}, a constant that is equal on all devices along {names}: its sum is "
                f"jax_passing.axis_size({axes}) times the constant, its mean the constant itself. If each device's own "
                f"copy is meant, cast it with jax.lax.pcast(x, {axes}, to='varying')."
            )
        raise UnvaryingInputError(
            f"{what}, which is equal on all devices along {names}. If it is the gradient of parameters that are equal "
            "on all devices, it has been summed over them already, on all hosts if the axis goes over these: use it as "
            f"it is, or divided by jax_passing.axis_size({axes}) for the mean. For sums in large buckets beside the "
            f"backward pass cast the parameters first, with params = jax_passing.pvary(params, {axes}), and don't sum "
            "their gradients; for gradients of each device's own, with "
            f"jax.lax.pcast(params, {axes}, to='varying'). If it is another value, such as a learning rate, it needs "
            f"no {function}: leave it out of the tree, or, if each device's own copy is meant, cast it with "
            f"jax_passing.pvary(x, {axes})."
        )
    return named_axes.pvary(array, missing)


def _at(path: str) -> str:
    """Says for errors where in the tree a leaf is: " at ['layer']['w']"; nothing if the tree is one leaf."""
    return f" at {path}" if path else ""
