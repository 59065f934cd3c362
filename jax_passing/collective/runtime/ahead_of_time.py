"""Executables that were compiled ahead of time, `jit(f).lower(x).compile()`: they stay in the stream of their sums.

The caches of `jax.jit` keep the programs of several streams apart, as the stream is part of their keys. A call of such
an executable goes past the caches, from any thread. So the call itself checks that it comes from the right one.
"""

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import jax

from jax_passing.collective.runtime.compiled_text import streams as streams_of
from jax_passing.errors import ThreadError
from jax_passing.host import scope as scopes

_streams: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()  # of the sums of each executable


def check_calls() -> None:
    """From now on; calls are as before where only one thread sums."""
    compiled: Any = jax.stages.Compiled
    compiled.__call__ = _checked(compiled.__call__)


def _checked(call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if scopes.several_threads():
            _check(self)
        return call(self, *args, **kwargs)

    return functools.wraps(call)(checked)


def _check(compiled: Any) -> None:
    streams = _streams.get(compiled)
    if streams is None:
        streams = _streams[compiled] = streams_of(compiled)
    if not streams:
        return
    scope = scopes.current()
    if scope is not None and streams != {scope.stream}:
        lowered_in = " and ".join(map(_order, sorted(streams)))
        raise ThreadError(
            f"An executable whose sums were lowered in {lowered_in} is called in {_order(scope.stream)}: hosts whose "
            "threads come in another order would mix them up. Lower and compile it once more where it is called."
        )


def _order(stream: str) -> str:
    return f"the stream {stream!r}" if stream else "the thread that called jax_passing.init"
