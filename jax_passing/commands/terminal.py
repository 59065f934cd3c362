"""Output of several processes on one terminal: whole lines with a tag, progress bars at the bottom."""

import codecs
import re
import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

LINE_CHARACTERS_MAX = 64 * 1024
REFRESH_S = 5.0  # how often a progress bar becomes a line where there is no terminal
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
# Progress bars send these besides their text: erase, cursor up and down, hide and show it.
_CONTROLS = re.compile(r"\x1b\[(?:\d*[ABK]|\?25[lh])")


def _shown(line: str) -> str:
    """Returns the text that a terminal shows in the end of a line with carriage returns."""
    pieces = [piece for piece in _CONTROLS.sub("", line).split("\r") if piece]
    return pieces[-1] if pieces else ""


class LineSplitter:
    """Turns bytes of a pipe into lines, and into states of a line that is drawn over and over."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""

    def feed(self, data: bytes, final: bool = False) -> Iterator[tuple[bool, str]]:
        """Yields (whether the line is over, its text)."""
        *lines, self._line = (self._line + self._decoder.decode(data, final)).split("\n")
        for line in lines:
            yield True, _shown(line)
        shown = _shown(self._line)
        if (final and shown) or len(self._line) > LINE_CHARACTERS_MAX:
            self._line = ""
            yield True, shown
        elif "\r" in self._line and shown:
            # The text after the last carriage return may continue; overdrawn text is forgotten.
            drawn = self._line.rstrip("\r")
            self._line = "\r" + drawn.rpartition("\r")[2] + ("\r" if drawn != self._line else "")
            yield False, shown


class TaggedOutput:
    """Prints lines of many processes, each with its tag."""

    def __init__(self, console: Console):
        self._console = console
        self._live: dict[str, str] = {}  # unfinished line by tag; a terminal shows the first tag's
        self._refreshed: dict[str, float] = {}
        self.is_read = True  # by somebody, as far as we know

    def _print(self, tag: str, text: str, end: str) -> None:
        digits = re.sub(r"\D", "", tag)
        colour = COLOURS[int(digits) % len(COLOURS)] if digits else "bright_black"
        line = Text.assemble((f"[{tag}] ", colour), Text.from_ansi(text))
        if not end:
            line.truncate(self._console.width - 1)
        self._console.print(line, end=end, soft_wrap=True, highlight=False)

    def _clear_live(self) -> None:
        if self._live and self._console.is_terminal:
            self._console.file.write("\r\x1b[2K")

    def _draw_live(self) -> None:
        if self._live and self._console.is_terminal:
            tag = min(self._live)
            self._print(tag, self._live[tag], end="")
            self._console.file.flush()

    def line(self, tag: str, text: str) -> None:
        """Prints a whole line."""
        self._clear_live()
        self._live.pop(tag, None)
        self._print(tag, text, end="\n")
        self._draw_live()

    def refresh(self, tag: str, text: str) -> None:
        """Shows the new state of a line that is being drawn."""
        if self._console.is_terminal:
            self._clear_live()
            self._live[tag] = text
            self._draw_live()
        elif time.monotonic() - self._refreshed.get(tag, 0.0) >= REFRESH_S:
            self._refreshed[tag] = time.monotonic()
            self._print(tag, text, end="\n")
