"""Bounds the log: callers that make the switch write lines, strangers among them, don't fill a disk."""

import logging
from collections import Counter
from dataclasses import dataclass

LINES = 20  # pass at once: enough for the ranks of a job that go together
LINES_PER_S = 1.0  # pass from then on: of the longest usual lines, 20 MB a day of each kind


@dataclass
class _Kind:
    tokens: float  # how many lines could pass at once
    then: float  # when it had these tokens
    left_out: int = 0
    last: logging.LogRecord | None = None  # the last line that was left out


class LogLimit(logging.Filter):
    """This filter is for a handler. Lines are of one kind if the same statement writes them. Of each kind some lines
    pass at once, and then one a second, which says how many were left out before it."""

    def __init__(self, counts: Counter[str]) -> None:
        """`counts`: gets `log_lines_dropped`."""
        super().__init__()
        self._counts = counts
        self._kinds: dict[tuple[str, int], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = record.created
        kind = self._kinds.setdefault((record.pathname, record.lineno), _Kind(LINES, now))
        if record is kind.last:  # we have told it ourselves
            kind.last = None
            return True
        kind.tokens = min(LINES, kind.tokens + LINES_PER_S * max(0.0, now - kind.then))
        kind.then = now
        if kind.tokens < 1:
            kind.left_out += 1
            kind.last = record
            self._counts["log_lines_dropped"] += 1
            return False
        kind.tokens -= 1
        if kind.left_out:
            _add(record, kind.left_out)
            kind.left_out, kind.last = 0, None
        return True

    def tell(self, now: float) -> None:
        """Writes of each kind the last line that was left out, if it may pass by now (seconds since 1970). Call this
        now and then: otherwise lines that nothing follows would never be told."""
        for kind in self._kinds.values():
            if kind.last is not None and kind.tokens + LINES_PER_S * (now - kind.then) >= 1:
                self._tell(kind)

    def tell_all(self) -> None:
        """Writes of each kind the last line that was left out. Call this at the end."""
        for kind in self._kinds.values():
            if kind.last is not None:
                self._tell(kind)

    def _tell(self, kind: _Kind) -> None:
        assert kind.last is not None
        if kind.left_out > 1:
            _add(kind.last, kind.left_out - 1)
        kind.tokens, kind.left_out = 0, 0
        logging.getLogger(kind.last.name).handle(kind.last)


def _add(record: logging.LogRecord, left_out: int) -> None:
    lines = "1 line like this was" if left_out == 1 else f"{left_out} lines like this were"
    record.msg, record.args = f"{record.getMessage()} ({lines} left out.)", ()
