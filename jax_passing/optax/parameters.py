"""Parameters and updates of hosts that train by themselves."""

from typing import Any

import jax
import jax.numpy as jnp


def copied(tree: Any) -> Any:
    """Returns arrays of their own with the same values: a step may donate both."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree)


def updates_to(target: Any, params: Any, updates: Any) -> Any:
    """Returns what leads from `params` to `target`, as updates of the dtypes of `updates`.

    `params + (target - params)` is `target` but for one rounding: within 2^-24 of the larger one's magnitude for
    float32. No update that is exact exists for each pair of floats."""
    return jax.tree.map(lambda t, p, u: t.astype(u.dtype) - p.astype(u.dtype), target, params, updates)
