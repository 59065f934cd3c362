"""JAX keeps stacks of calls. These functions read them, and tell whose each frame is."""

import os
import sys
import warnings
from types import CodeType, FrameType
from typing import Any

import jax
from jax._src import source_info_util

Frame = tuple[CodeType, int]  # code, and index of its last instruction

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # all of jax_passing
_JIT = os.path.join(_JAX, "_src", "pjit.py")
_COLLECTIVES = jax.lax.psum.__code__.co_filename
_AD = os.path.join(_JAX, "_src", "interpreters", "ad.py")


def traced_frames() -> list[Frame]:
    """Returns the stack of the line that JAX traces, or whose operation it transposes, the innermost frame first."""
    return frames_of(source_info_util.current().traceback)


def frames_of(traceback: Any) -> list[Frame]:
    """Returns the frames of JAX's own record of a stack, the innermost first."""
    return list(zip(*traceback.raw_frames(), strict=True)) if traceback else []


def is_of_jax(code: CodeType) -> bool:
    """Tells whether this code is JAX's."""
    return code.co_filename.startswith(_JAX)


def is_of_package(code: CodeType) -> bool:
    """Tells whether this code is this package's."""
    return code.co_filename.startswith(_PACKAGE)


def is_of_jit(code: CodeType) -> bool:
    """Tells whether this is part of what traces and calls jitted functions."""
    return code.co_filename == _JIT


def is_transposing(code: CodeType) -> bool:
    """Tells whether this goes through a program backwards."""
    return code.co_filename == _AD and code.co_name.startswith("backward_pass")


def function_of_lax() -> str | None:
    """Returns the name of the collective of jax.lax that the user's program has called; None if JAX traces one by
    itself, such as a derivative's, or if this package calls it."""
    called = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_of_package(frame.f_code):
        frame = frame.f_back
    while frame is not None and is_of_jax(frame.f_code):
        called = frame.f_code.co_name if frame.f_code.co_filename == _COLLECTIVES else called
        frame = frame.f_back
    users = frame is not None and not is_of_package(frame.f_code)
    return called if users and hasattr(jax.lax, called or "") else None


def warn_in_users_line(category: type[Warning], message: str) -> None:
    """Warns in the line of the user's program that led here, which the warning is about."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_of_jax(frame.f_code) or is_of_package(frame.f_code)):
        frame = frame.f_back
    if frame is None:  # Python ends
        warnings.warn(message, category, stacklevel=1)
        return
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
