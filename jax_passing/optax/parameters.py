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
    float32. No update that is exact exists for each pair of floats. Where updates are narrower than parameters, the
    difference is rounded to their dtype, never its operands."""

    def difference(t: Any, p: Any, u: Any) -> Any:
        wide = jnp.promote_types(p.dtype, u.dtype)
        return (t.astype(wide) - p.astype(wide)).astype(u.dtype)

    return jax.tree.map(difference, target, params, updates)
