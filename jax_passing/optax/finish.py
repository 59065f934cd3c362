"""`finish` ends the sums that an optimizer's state has on their way."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jax_passing.collective.psum_start import psum_done
from jax_passing.optax.pending import Pending

_State = TypeVar("_State")


def finish(opt_state: _State) -> _State:
    """Waits for the sums that are on their way at the end of a training, and drops them.

    Write it after the last step, within the axis as the step itself. A session that ends with sums which nobody has
    finished warns of them (UnfinishedHandlesWarning). The gradients of the last steps of `stale` aren't applied, nor
    outer gradients of `diloco` that are on their way; to apply them, take as many steps more before.

    Args:
      opt_state: of an optimizer of optax, wherever in it the transformations of this package are.

    Returns: The same state, without those sums. It can go on: the steps that would have used them apply nothing.
    """
    return jax.tree.map(_finished, opt_state, is_leaf=_is_pending)


def _is_pending(each: Any) -> bool:
    return isinstance(each, Pending)


def _finished(each: Any) -> Any:
    if not _is_pending(each):
        return each
    # JAX leaves out what no result depends on.
    is_running = jnp.zeros((), bool)
    for leaf in jax.tree.leaves(psum_done(each.handle)):
        is_running &= jnp.any(leaf != leaf)
    return Pending(jax.tree.map(jnp.zeros_like, each.handle), jax.tree.map(lambda _: is_running, each.is_running))
