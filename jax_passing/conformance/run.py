"""Plays all cases on a switch and says what came of them, for people."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from jax_passing.conformance.exchanges import golden, limit_cases, random_exchanges, reach_cases
from jax_passing.conformance.exchanges.differences import difference, state_difference
from jax_passing.conformance.exchanges.exchange import Exchange, final_states
from jax_passing.conformance.exchanges.model import Limits
from jax_passing.conformance.switch_under_test import Check, NotApplicableError, SwitchUnderTest, UntestableError


@dataclass(frozen=True)
class Outcome:
    """A case's outcome. `failure`, `not_applicable`: why, or empty. `not_compared`: what wasn't, and why."""

    case: Exchange | Check
    failure: str = ""
    not_applicable: str = ""
    not_compared: Mapping[str, str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        return "failed" if self.failure else "not applicable" if self.not_applicable else "passed"


def cases(limits: Limits, seed: int, exchanges: int) -> list[Exchange]:
    """Returns the golden table, the cases that depend on the limits, and random exchanges from `seed` on."""
    return [
        *golden.read(),
        *limit_cases.cases(limits),
        *reach_cases.cases(limits),
        *random_exchanges.exchanges(limits, seed, exchanges),
    ]


def outcome(switch: SwitchUnderTest, exchange: Exchange) -> Outcome:
    if reason := exchange.not_applicable(switch.limits):
        return Outcome(exchange, not_applicable=reason)
    fitted = exchange.fitted(switch.limits)
    played = switch.play(fitted)
    states = final_states(fitted, switch.limits)
    failure = difference(fitted, played) or state_difference(fitted, states, played)
    return Outcome(exchange, failure, not_compared=played.not_compared)


def found(check: Check) -> Outcome:
    try:
        return Outcome(check, check.find())
    except NotApplicableError as error:
        return Outcome(check, not_applicable=str(error))
    except UntestableError as error:
        return Outcome(check, str(error))
    except (OSError, msgspec.DecodeError) as error:
        return Outcome(check, f"the switch doesn't answer as it must: {error}")


def outcomes(switch: SwitchUnderTest, exchanges: list[Exchange], console: Console) -> Iterator[Outcome]:
    for exchange in track(exchanges, "testing", console=console, transient=True, disable=not console.is_terminal):
        yield outcome(switch, exchange)
    for check in switch.checks():
        yield found(check)


def report(switch: SwitchUnderTest, seed: int, exchanges: int, console: Console) -> bool:
    """Plays everything, prints a table, and the details of what failed. True if nothing did."""
    limits = switch.limits
    lanes = f"{'exactly' if limits.whole_chunks else 'up to'} {limits.lanes_per_chunk} lanes"
    console.print(f"{switch.name}: {lanes} a packet, up to {limits.worker_limit} workers a job")
    done = list(outcomes(switch, cases(limits, seed, exchanges), console))
    table = Table("section", "case", "outcome", box=None, pad_edge=False)
    styles = {"failed": "red", "not applicable": "yellow", "passed": "green"}
    for index, one in enumerate(done):
        new = index == 0 or done[index - 1].case.section != one.case.section
        word = one.word + (f": {one.not_applicable}" if one.not_applicable else "")
        table.add_row(one.case.section if new else "", one.case.description, word, style=styles[one.word])
    console.print(table)
    for one in done:
        if one.failure:
            title = f"{one.case.section}, {one.case.description}"
            console.print(f"[red]failed[/]: {escape(title)}\n  {escape(one.failure)}", soft_wrap=True)
    if any(one.failure for one in done):
        console.print(
            "What verdicts mean: docs/internals/protocol.md. How this was tested: docs/data_planes/overview.md."
        )
    missing = Counter(item for one in done for item in one.not_compared.items())
    for (what, why), times in sorted(missing.items()):
        console.print(f"[yellow]not compared[/] in {times} cases: {what}; {why}")
    words = [one.word for one in done]
    console.print(", ".join(f"{words.count(word)} {word}" for word in ("passed", "failed", "not applicable")))
    return "failed" not in words
