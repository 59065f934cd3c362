"""An executable is called in the stream of its sums, or not at all.

The caches of `jax.jit` keep the programs of several streams apart, as the stream is part of their keys. A call of an
executable that was compiled ahead of time, `jit(f).lower(x).compile()`, goes past the caches, from any thread. So the
call itself checks that it comes from the stream of the program's sums.
"""

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from jax_passing._compat import patches
from jax_passing.collective.runtime.compiled_text import streams
from jax_passing.errors import UsageError
from jax_passing.host import scope as scopes

_streams: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()  # of the sums of each executable


@patches.CALLS_OF_EXECUTABLES.uses
def _checked(call: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if scopes.several_threads():
            _check(self)
        return call(self, *args, **kwargs)

    return functools.wraps(call)(checked)


def _check(compiled: Any) -> None:
    own = _streams.get(compiled)
    if own is None:
        own = _streams[compiled] = streams(compiled)
    if not own:
        return
    scope = scopes.current()
    if scope is not None and own != {scope.stream}:
        lowered_in = " and ".join(map(_order, sorted(own)))
        raise UsageError(
            f"An executable whose sums were lowered in {lowered_in} is called in {_order(scope.stream)}: hosts whose "
            "threads come in another order would mix them up. Lower and compile it once more where it is called."
        )


def _order(stream: str) -> str:
    return f"the stream {stream!r}" if stream else "the thread that called jax_passing.init"
