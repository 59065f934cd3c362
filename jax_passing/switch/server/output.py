"""A switch prints and logs through here, and never waits for whoever reads it: all jobs would wait, too."""

import logging
import os
import select
from typing import TextIO

_PIECE_BYTES = 4096  # a pipe that takes anything takes so many bytes at once


class LogHandler(logging.Handler):
    """Writes what the log says. Lines that aren't taken at once are left out, and the next one says how many they were:
    a terminal may be stopped, the reader of a pipe stand still, a disk be full."""

    def __init__(self, stream: TextIO | None):
        super().__init__()
        self._stream = stream
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if self._lost:  # the last of them may have been written in part
            line = f"\n{line} (Before this, {self._lost} could not be written.)"
        self._lost = 0 if write_line(self._stream, line) else self._lost + 1


def write_line(stream: TextIO | None, line: str) -> bool:
    """Writes the line past the stream's buffer. Returns False if not all of it was taken at once. Without a stream,
    which was closed before we were started, nobody wants it."""
    if stream is None:
        return True
    left = line.encode(stream.encoding, "backslashreplace") + b"\n"
    taken = select.poll()
    taken.register(stream.fileno(), select.POLLOUT)
    try:
        while left and taken.poll(0):
            left = left[os.write(stream.fileno(), left[:_PIECE_BYTES]) :]
    except OSError:  # nobody reads any more, or the disk is full
        pass
    return not left
