"""`agree` brings hosts that trained by themselves together again when the hosts of a job have changed."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jax_passing.collective.broadcast import broadcast
from jax_passing.optax.diloco import DilocoState, not_shared, shared_params, with_leaves
from jax_passing.optax.restart import restart

_Params = TypeVar("_Params")
_State = TypeVar("_State")


def agree(opt_state: _State, params: _Params, axis_name: Any, is_newcomer: Any) -> tuple[_Params, _State]:
    """Gives all hosts of an elastic session what `diloco` shares, and newcomers all they need to begin.

        mine = session.rank >= session.survivors                # True on a newcomer
        params, state = agree(state, params, "d", mine)         # within the axis, after each meeting of the hosts

    Hosts that train by themselves may be many steps apart when one is lost or comes. So all take the step and the
    shared parameters of rank 0, which is a survivor. A survivor keeps its own parameters and inner optimizer: it loses
    nothing of what it did. A newcomer begins with the shared parameters, and with rank 0's inner optimizer; and
    with its parameters that `diloco` wasn't given.

    Args:
      opt_state: of an optimizer with `diloco` within; a newcomer's own is what `init` made.
      params: this host's; a newcomer's are any of the same structure.
      axis_name: as for `psum`.
      is_newcomer: bool[], whether this host has no state.

    Returns: The parameters and the state, with no sums on their way.

    Raises:
      ConfigError: the state has nothing of `diloco` within.
    """
    newcomer = jnp.asarray(is_newcomer)

    def of_rank_0(own: Any, theirs: Any) -> Any:
        return jax.tree.map(lambda mine, rank_0s: jnp.where(newcomer, rank_0s, mine), own, theirs)

    def merged(own: Any, theirs: Any) -> Any:
        if isinstance(own, DilocoState):
            return DilocoState(theirs.steps, of_rank_0(own.inner, theirs.inner), theirs.fragments)
        return of_rank_0(own, theirs)

    theirs, others = broadcast((opt_state, not_shared(opt_state, params)), axis_name)
    state = restart(jax.tree.map(merged, opt_state, theirs, is_leaf=lambda each: isinstance(each, DilocoState)))
    return of_rank_0(params, shared_params(state, with_leaves(params, others))), state
