"""A terminal shows that a host waits. Logs, pipes and notebooks show nothing of it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Shows a spinner and the text on standard error as long as the block runs."""
    # A launcher shows its rank 0 as if that had the terminal, which it then says by this variable, as rich reads it.
    if sys.stderr is None or not (sys.stderr.isatty() or os.environ.get("TTY_INTERACTIVE") == "1"):
        yield
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    if not console.is_interactive or console.is_jupyter:
        yield
        return
    with console.status(escape(text)):  # lines that the log writes meanwhile stand above it
        yield
