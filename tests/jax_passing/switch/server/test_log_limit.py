"""Lines that are left out, and that it is said."""

import logging
from collections import Counter

import pytest

from jax_passing.switch.server.log_limit import LINES, LogLimit


class Log:
    """A logger with the filter, on a clock of its own."""

    def __init__(self):
        self.lines, self.now, self.counts = [], 1000.0, Counter()
        self.limit = LogLimit(self.counts)
        self.logger = logging.Logger("jax_passing.switch.test")
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())
        handler.addFilter(self.limit)
        self.logger.addHandler(handler)
        logging.Logger.manager.loggerDict[self.logger.name] = self.logger

    def say(self, text, *args, line=1):
        record = logging.LogRecord(self.logger.name, logging.WARNING, "switch.py", line, text, args, None)
        record.created = self.now
        self.logger.handle(record)


@pytest.fixture
def log():
    log = Log()
    yield log
    del logging.Logger.manager.loggerDict[log.logger.name]


def test_what_is_rare_passes(log):
    for number in range(100):
        log.say("refused %s", number)
        log.now += 1.0
    log.limit.tell_all()
    assert log.lines == [f"refused {number}" for number in range(100)]


def test_a_flood_leaves_a_line_a_second_which_says_how_many_are_missing(log):
    for number in range(10_000):
        log.say("refused %d", number)
        log.now += 0.001
    assert log.lines[:LINES] == [f"refused {number}" for number in range(LINES)]
    assert LINES + 9 <= len(log.lines) <= LINES + 10
    assert log.counts["log_lines_dropped"] == 10_000 - len(log.lines)
    told = sum(int(line.partition("(")[2].split()[0]) for line in log.lines if "(" in line)
    assert "lines like this were left out.)" in log.lines[-1]
    log.limit.tell_all()
    told += int(log.lines[-1].partition("(")[2].split()[0])
    assert log.lines[-1].startswith("refused 9999 (")
    assert told + len(log.lines) == 10_000  # each is there, or counted


def test_what_was_left_out_last_is_told_though_nothing_follows(log):
    for number in range(LINES + 3):
        log.say("refused %d", number)
    log.limit.tell(log.now + 0.5)
    assert len(log.lines) == LINES
    log.limit.tell(log.now + 1.5)
    assert log.lines[LINES:] == [f"refused {LINES + 2} (2 lines like this were left out.)"]
    log.limit.tell(log.now + 100)
    assert len(log.lines) == LINES + 1


def test_one_kind_leaves_another_its_lines(log):
    for number in range(1000):
        log.say("refused %d", number)
    log.say("the device is gone", line=2)
    assert log.lines[-1] == "the device is gone"


def test_a_clock_that_goes_back_costs_nothing(log):
    for _ in range(5):
        log.say("refused")
        log.now -= 1000.0
    assert len(log.lines) == 5
