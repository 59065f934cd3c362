"""Modules further up, which import the session, say here what JAX must know before the sums of a session."""

from collections.abc import Callable

from jax_passing.host import scope

_preparations: list[Callable[[], None]] = []


def when_beginning(prepare: Callable[[], None]) -> None:
    """`prepare` is called whenever a session begins, before it joins, and now if one is open."""
    _preparations.append(prepare)
    if scope.of_session() is not None:
        prepare()


def prepare() -> None:
    """A session begins."""
    for each in _preparations:
        each()
