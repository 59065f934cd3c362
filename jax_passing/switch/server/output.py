"""A switch prints and logs through here, and never waits for its readers: all jobs would wait, too."""

import json
import logging
import os
import select
import stat
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

from jax_passing.errors import printable

_PIECE_BYTES = 4096  # a pipe that takes anything takes these bytes at once


class PlainFormatter(logging.Formatter):
    """Messages quote what strangers say."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is logging's
        record.message = printable(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Makes each entry an object of JSON in a line of its own, for programs that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


class LogHandler(logging.Handler):
    """Writes what the log says. Lines that aren't taken at once are left out, and the next one says how many they were:
    a terminal may be stopped, the reader of a pipe stand still, a disk be full."""

    def __init__(self, stream: TextIO | None):
        super().__init__()
        self._stream = stream
        self._lost = 0
        self.counts: Counter[str] = Counter()  # gets `log_lines_dropped`

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._lost:
                record.msg = f"{record.getMessage()} (Before this, {self._lost} could not be written.)"
                record.args = ()
            line = self.format(record)
        except Exception:  # the statement that logs is wrong: no job ends for that
            self.handleError(record)
            return
        if self._lost:  # the last of them may have been written in part
            line = "\n" + line
        if write_line(self._stream, line):
            self._lost = 0
        else:
            self._lost += 1
            self.counts["log_lines_dropped"] += 1


def write_line(stream: TextIO | None, line: str) -> bool:
    """Writes the line past the stream's buffer. Returns False if not all of it was taken at once. Without a stream,
    which was closed before we were started, nobody wants it."""
    if stream is None:
        return True
    left = line.encode(stream.encoding, "backslashreplace") + b"\n"
    given = stream.fileno()
    taken = select.poll()
    taken.register(given, select.POLLOUT)
    own = None
    try:
        # One that is gone isn't opened again: that may be somebody else's terminal by now.
        if taken.poll(0) == [(given, select.POLLOUT)]:
            own = _opened_again(given)
        while left and taken.poll(0):
            left = left[os.write(given if own is None else own, left[:_PIECE_BYTES]) :]
    except OSError:  # it takes no more, nobody reads any more, or the disk is full
        pass
    finally:
        if own is not None:
            os.close(own)
    return not left


def _opened_again(descriptor: int) -> int | None:
    """Opens a terminal or a pipe for writes that never wait: a terminal has room for a byte, and waits with the next.
    The given descriptor must stay as it is, as other programs have it, too. Returns None if that can't be done."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # that one would begin anew
        with suppress(OSError):  # a socket, somebody else's terminal, or too many files are open
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return None
