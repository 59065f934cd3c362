"""Where in the user's program a sum is called, in words that are alike on all hosts."""

import functools
import hashlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import NamedTuple

from jax_passing._compat.stacks import Frame, is_of_jax, is_of_jit, is_of_package, is_transposing

_SHOWN_MAX = 4
_FRAMES_MAX = 64

Frames = Iterable[Frame]  # the innermost first


class SourceLocation(NamedTuple):
    """A call, seen from the innermost user's frame outwards, up to the `jax.jit` that traces it.

    Attributes:
      frames: "train.py:41:9 in step", the innermost ones. No folders: hosts may install the program anywhere.
      further: a digest of those further out; empty if there are none.
      transposing: JAX called it while it went through a program backwards, in an order that it makes up.
    """

    frames: tuple[str, ...]
    further: str = ""
    transposing: bool = False

    def __str__(self) -> str:
        return self.frames[0] if self.frames else "unknown location"


def here() -> SourceLocation:
    """Returns where this package was called."""
    return location_of(_stack())


def location_of(frames: Frames) -> SourceLocation:
    """Returns the location that a stack stands for.

    Outside of jit only the innermost frame counts: a program that runs line by line may call a sum from anywhere.
    """
    found: list[str] = []
    traced = transposing = False
    for code, instruction in frames:
        if is_of_jax(code):
            transposing |= is_transposing(code)
            # The first frames may be JAX's own, which carry out the call.
            if is_of_jit(code) and found:
                traced = True
                break
        elif not is_of_package(code) and len(found) < _FRAMES_MAX:
            found.append(_describe(code, instruction))
    if not traced:
        return SourceLocation(tuple(found[:1]), "", transposing)
    further = hashlib.sha256("\n".join(found[_SHOWN_MAX:]).encode()).hexdigest()[:16]
    return SourceLocation(tuple(found[:_SHOWN_MAX]), further if len(found) > _SHOWN_MAX else "", transposing)


def _stack() -> Iterator[Frame]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code, frame.f_lasti
        if frame.f_back is None:
            return
        frame = frame.f_back


@functools.lru_cache(maxsize=1 << 14)
def _describe(code: CodeType, instruction: int) -> str:
    position = next(itertools.islice(code.co_positions(), max(0, instruction) // 2, None), (None,) * 4)
    line, _, column, _ = position
    return (
        f"{os.path.basename(code.co_filename)}:{line or code.co_firstlineno}:{(column or 0) + 1} in {code.co_qualname}"
    )
