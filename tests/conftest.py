"""Tests that a run without the slow ones should leave out are listed at its end."""

import os
import time

import pytest

LONG_S = 5.0
UNTIL = time.monotonic() + float(os.environ.get("PASSING_TESTS_S", "inf"))  # `check.sh --quick` begins no test later


def pytest_runtest_setup(item):
    if time.monotonic() > UNTIL:
        pytest.skip("no time is left")


def pytest_terminal_summary(terminalreporter):
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    long = [report for report in reports if report.duration > LONG_S and "slow" not in report.keywords]
    if long:
        terminalreporter.section(f"longer than {LONG_S:.0f} s, and not marked slow")
    for report in sorted(long, key=lambda report: -report.duration):
        terminalreporter.line(f"{report.duration:6.1f} s {report.nodeid}")
