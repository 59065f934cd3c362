"""`restart` and `finish` end what an optimizer's state holds of sums that are on their way."""

from typing import TypeVar

import jax

from jax_passing.collective.psum_start import psum_done
from jax_passing.optax.pending import Pending, forgotten

_State = TypeVar("_State")


def restart(opt_state: _State) -> _State:
    """Forgets the sums that were on their way, in the state of an optimizer of this package.

    Write it after `session.rejoin`, on every host: those sums were the former epoch's, and nobody can end them. A
    newcomer that was given another host's state needs it as well, and so does a state that is to be saved.

    Returns: The same state, without those sums. The steps that would have used them apply nothing.
    """
    return jax.tree.map(
        lambda each: forgotten(each) if isinstance(each, Pending) else each, opt_state, is_leaf=_is_pending
    )


def finish(opt_state: _State) -> _State:
    """Waits for the sums that are on their way at the end of a training, and drops them.

    Write it after the last step, where the step itself stands (under `shard_map` and `jit`). A session that ends with
    sums on their way raises HandleError otherwise.

    Returns: The same state, without those sums.
    """

    def finished(each: object) -> object:
        if not isinstance(each, Pending):
            return each
        psum_done(each.handle)
        return forgotten(each)

    return jax.tree.map(finished, opt_state, is_leaf=_is_pending)


def _is_pending(each: object) -> bool:
    return isinstance(each, Pending)
