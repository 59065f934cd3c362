"""Stacks of calls as JAX keeps them, and which of their frames are JAX's own, or this package's."""

import os
from types import CodeType
from typing import Any

import jax
from jax._src import source_info_util

Frame = tuple[CodeType, int]  # code, and index of its last instruction

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # all of jax_passing
_JIT = os.path.join(_JAX, "_src", "pjit.py")
_AD = os.path.join(_JAX, "_src", "interpreters", "ad.py")


def traced_frames() -> list[Frame]:
    """The stack of the line that JAX works on, the innermost frame first: while it transposes, that of the line that
    is transposed."""
    return frames_of(source_info_util.current().traceback)


def frames_of(traceback: Any) -> list[Frame]:
    """Of JAX's own record of a stack, the innermost first."""
    return list(zip(*traceback.raw_frames(), strict=True)) if traceback else []


def is_of_jax(code: CodeType) -> bool:
    return code.co_filename.startswith(_JAX)


def is_of_package(code: CodeType) -> bool:
    """Tells whether this code is this package's."""
    return code.co_filename.startswith(_PACKAGE)


def is_of_jit(code: CodeType) -> bool:
    """Whether this is part of what traces and calls jitted functions."""
    return code.co_filename == _JIT


def is_transposing(code: CodeType) -> bool:
    """Whether this goes through a program backwards."""
    return code.co_filename == _AD and code.co_name.startswith("backward_pass")
