"""A session ends while sums that `psum_start` started aren't finished: it says which."""

from collections.abc import Mapping

from jax_passing._compat.stacks import warn_in_users_line
from jax_passing.errors import UnfinishedHandlesWarning

_NAMED_MAX = 4


def warn_of(counts: Mapping[str, int]) -> None:
    """`counts`: how many handles of each sum aren't finished, by the sum's name."""
    if not counts:
        return
    named = [f"{count} of {name}" for name, count in list(counts.items())[:_NAMED_MAX]]
    more = [f"those of {len(counts) - len(named)} more sums"] if len(counts) > len(named) else []
    warn_in_users_line(
        UnfinishedHandlesWarning,
        f"The session ends, but these handles aren't finished, and their sums are gone: {'; '.join(named + more)}. "
        "Finish each handle by jax_passing.psum_done before the session ends, or ignore this warning if the last sums "
        "aren't needed.",
    )
