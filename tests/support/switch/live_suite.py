"""The conformance suite, played on a live switch in this process."""

import io
from contextlib import closing

from rich.console import Console

from jax_passing.conformance import run
from jax_passing.conformance.exchanges import golden
from jax_passing.conformance.live.suite import LiveSwitch
from jax_passing.protocol import keys

KEY = keys.new_key()


def failures(address, seeds=20, parent_at=None, key=None):
    """Returns the failures by case, and how many cases were not applicable."""
    with closing(LiveSwitch(address, parent_at, key)) as under_test:
        done = list(run.outcomes(under_test, run.cases(under_test.limits, 0, seeds), Console(file=io.StringIO())))
    return {one.case.description: one.failure for one in done if one.failure}, sum(
        bool(one.not_applicable) for one in done
    )


def only(monkeypatch, *names):
    """Leaves the cases and checks that begin so, or are of a section of this name: most checks wait for seconds."""

    def is_named(each, name):
        return each.section == name or each.description.startswith(name)

    def chosen(several):
        return [each for each in several if any(is_named(each, name) for name in names)]

    cases, all_checks = chosen(golden.read()), LiveSwitch.checks

    def checks(switch):
        left = chosen(all_checks(switch))
        for name in names:
            assert any(is_named(each, name) for each in [*cases, *left]), f"nothing is called {name!r}"
        return left

    monkeypatch.setattr(run, "cases", lambda limits, seed, exchanges: cases)
    monkeypatch.setattr(LiveSwitch, "checks", checks)
