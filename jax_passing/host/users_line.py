"""A warning is about what the user's program says, not about our code or JAX's."""

import sys
import warnings
from types import FrameType

from jax_passing._compat.stacks import is_of_jax, is_of_package


def warn_in_users_line(category: type[Warning], message: str) -> None:
    """Warns in the line of the user's program that led here."""
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
