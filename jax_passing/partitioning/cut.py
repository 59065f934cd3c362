"""Cuts by hand."""

from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from jax_passing.partitioning.program import Operation

MARK = "jax_passing.cut"


def cut(x: Any) -> Any:
    """Marks a place where the model may be cut: what comes before `x` may be one stage, what uses it the next.

    With marks in it a model is cut at some of them only, at all of them if there is one less than stages. Outside of
    `jax_passing.partition` nothing happens: `x`, a pytree of arrays, is returned as it is. Marks inside of a loop, or
    of a block under `jax.checkpoint`, aren't seen.
    """
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, MARK), x)


def is_mark(operation: Operation) -> bool:
    return bool(operation.eqn.primitive.name == "name" and operation.eqn.params["name"] == MARK)
