"""A rank brought NaN or an infinity into a sum: this is what all hosts hear of it. Pure."""

import json
from typing import TYPE_CHECKING

from jax_passing.errors import Failure, NonFiniteError

if TYPE_CHECKING:
    from jax_passing._native import NonFinite


def of_non_finite(first: "NonFinite", rank: int, host_name: str) -> Failure:
    """Makes the failure. It accuses nobody of the ranks to an elastic session: all stop, as the step is lost."""
    return Failure(
        NonFiniteError.__name__,
        f"Rank {rank} ({host_name}) brought {first.what} into {_leaf(first)}, element {first.element}, of the sum "
        f"{first.site_name} (execution {first.execution}, step {first.step}), and no result that this host had seen "
        "before had any. Find where that rank computes it, by jax.config.update('jax_debug_nans', True), or go on from "
        "a checkpoint. Without check_nans=True sums pass NaN and infinities on.",
    )


def _leaf(first: "NonFinite") -> str:
    """Names the leaf by its path in the tree and its type, if the program has told them."""
    leaves = json.loads(first.identity)["leaves"] if first.identity else []
    if first.leaf >= len(leaves):
        return f"leaf {first.leaf}"
    path, type_text = leaves[first.leaf]
    return f"leaf {path}, {type_text}" if path else f"the array of {type_text}"
