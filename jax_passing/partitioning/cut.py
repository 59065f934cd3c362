"""`cut` marks where a model may be cut."""

from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from jax_passing.partitioning.operations import Operation

MARK = "jax_passing.cut"


def cut(x: Any) -> Any:
    """Marks where the model may be cut: the operations before `x` may be one stage, and those that use it the next.

    A model with marks is cut at marks only, at all of them if there is one less than stages. Outside of
    `jax_passing.partition` this does nothing: it returns `x`, a pytree of arrays, as it is. Marks inside of a loop, or
    inside of a block under `jax.checkpoint`, aren't seen.
    """
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, MARK), x)


def is_mark(operation: Operation) -> bool:
    return bool(operation.eqn.primitive.name == "name" and operation.eqn.params["name"] == MARK)
