"""Tests that a run without the slow ones should leave out are listed at its end."""

LONG_S = 5.0


def pytest_terminal_summary(terminalreporter):
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    long = [report for report in reports if report.duration > LONG_S and "slow" not in report.keywords]
    if long:
        terminalreporter.section(f"longer than {LONG_S:.0f} s, and not marked slow")
    for report in sorted(long, key=lambda report: -report.duration):
        terminalreporter.line(f"{report.duration:6.1f} s {report.nodeid}")
