"""Sums that are on their way from one step to a later one, as the states of transformations hold them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_passing.collective.axes import axis_size
from jax_passing.collective.psum_start import no_sum, psum_done, psum_start


class Pending(NamedTuple):
    """A sum that is on its way. `restart` and `finish` look for this class in a state.

    Attributes:
      handle: of the sum, or of no sum.
      is_running: bool[], whether there is one.
    """

    handle: Any
    is_running: jax.Array


def nothing(tree: Any, axis_name: Any, **options: Any) -> Pending:
    """Returns what stands for no sum of arrays with these shapes. The options are those of the sum."""
    return Pending(no_sum(tree, axis_name, **options), jnp.zeros((), bool))


def start(tree: Any, axis_name: Any, **options: Any) -> Pending:
    """Starts the sum of `tree`; the options are those of `psum_start`."""
    return Pending(psum_start(tree, axis_name, **options), jnp.ones((), bool))


def mean_of(pending: Pending, axis_name: Any, after: Any) -> Any:
    """Waits for the sum, and returns the mean over all devices of all hosts; zeros if there is no sum.

    `after`: arrays of this step that are computed first, while the sum travels.
    """
    count = axis_size(axis_name)
    return jax.tree.map(lambda total: total / count, psum_done(pending.handle, after=after))
