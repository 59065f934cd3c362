"""`restart` forgets what an optimizer's state holds of sums in a former epoch."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jax_passing.optax.pending import Pending

_State = TypeVar("_State")


def restart(opt_state: _State) -> _State:
    """Forgets what a state of an optimizer holds of sums in a former epoch: those that were on their way.

    Write it after `session.rejoin`, on every host, when the state is agreed on: nobody can finish those sums. A
    newcomer that was given another host's state needs it as well, and so does a state before it is saved.

    Args:
      opt_state: of an optimizer of optax, wherever in it the transformations of this package are.

    Returns: The same state, without what it held of those sums. Steps that would have used them apply nothing.
    """
    return jax.tree.map(_forgotten, opt_state, is_leaf=_is_marked)


def _is_marked(each: Any) -> bool:
    return isinstance(each, Pending)


def _forgotten(each: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, each) if _is_marked(each) else each
