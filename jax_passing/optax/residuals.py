"""Residuals of error feedback: what this host's sums left out so far, for each leaf, as a part of an optimizer's state.

A residual belongs to its host: all devices of the host have the same, and other hosts have others. So its arrays go in
and out of `shard_map` by `P()` where each host has a mesh of its own, and no mesh over several processes can hold them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_passing.collective.axes import extent, require_session
from jax_passing.collective.naming.sites import paths_of
from jax_passing.collective.primitives.bucketed_sum import check_strategy
from jax_passing.errors import ConfigError

# The dtypes that `wire_dtype` narrows. Other leaves are summed as ever, and have no residual.
_NARROWED = ("float32", "float16", "bfloat16", "complex64")


class Residuals(NamedTuple):
    """Marks the residuals in an optimizer's state, so that `restart` finds them.

    Attributes:
      leaves: a tree as that of the gradients, with None for a leaf that has no residual.
    """

    leaves: Any


def zeros(params: Any) -> Residuals:
    """Returns the residuals at the beginning of a training."""
    return Residuals(jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if has_residual(leaf) else None, params))


def has_residual(leaf: Any) -> bool:
    return jnp.result_type(leaf).name in _NARROWED


def leaves_of(residuals: Residuals, gradients: Any, function: str) -> list[Any]:
    """Returns the residual of each leaf of `gradients`, in their order; None where there is none.

    Raises ConfigError if they belong to other leaves than these.
    """
    leaves, treedef = flattened(gradients)
    remedy = (
        "This state belongs to another model, or the gradients are of other parameters than those that `init` was "
        "given. Make it anew, state = optimizer.init(params), or restore the one that was saved with this model."
    )
    try:
        found = treedef.flatten_up_to(residuals.leaves)
    except ValueError as error:
        raise ConfigError(
            f"{function}: the gradients have another structure than the residuals in the optimizer's state ({error}). "
            + remedy
        ) from None
    for path, leaf, residual in zip(paths_of(gradients), leaves, found, strict=True):
        theirs = None if residual is None else residual.shape
        if theirs != (jnp.shape(leaf) if has_residual(leaf) else None):
            have = "no residual" if residual is None else f"a residual of shape {theirs}"
            raise ConfigError(
                f"{function}: the optimizer's state has {have} for the leaf {path or 'of the gradients'}, whose "
                f"gradient is {jnp.result_type(leaf).name}{list(jnp.shape(leaf))}. {remedy}"
            )
    return found


def flattened(tree: Any) -> tuple[list[Any], Any]:
    """Does what jax.tree.flatten does, whose type for the structure lacks `flatten_up_to`."""
    leaves, treedef = jax.tree.flatten(tree)
    return leaves, treedef


def added(leaf: Any, residual: Any) -> Any:
    """Returns what a device contributes for a leaf: its gradient, and what the sums before left out."""
    return leaf if residual is None else leaf + residual.astype(leaf.dtype)


def kept(before: Sequence[Any], left: Sequence[Any]) -> list[Any]:
    """Returns the next residuals: what the sums `left` out, for those leaves that had a residual `before`."""
    return [None if old is None else new.astype(old.dtype) for old, new in zip(before, left, strict=True)]


def check_axis(axis_name: Any, strategy: str | None, function: str) -> None:
    """Raises ConfigError where error feedback is not possible."""
    along = extent(axis_name)
    require_session(along, f"optax.{function}")
    names = ", ".join(map(repr, along.axes))
    if not along.over_hosts and jax.process_count() > 1:
        raise ConfigError(
            f"{function} over {names}: a residual belongs to one host, and a mesh over all processes has no array of "
            "which every process could hold, and save, its own. Make a mesh of jax.local_devices() on every host, and "
            f"declare its axis: jax_passing.init(axis_name={along.axes[0]!r}). Or go without residuals: "
            "compressed_psum(..., error_feedback=False)."
        )
    if check_strategy(strategy, along) == "flat" and along.mesh_size > 1:
        raise ConfigError(
            f"{function}: with strategy 'flat' each device has a residual of its own, and the optimizer's state has "
            "one for each host: say strategy='passing', or go without residuals: compressed_psum(..., "
            "error_feedback=False)."
        )
