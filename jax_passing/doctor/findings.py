"""A finding of a check has a state, the reason, and what to do about it."""

import enum
from dataclasses import dataclass


class State(enum.StrEnum):
    GOOD = "good"
    WARNING = "warning"  # sums work, slower or less safe than they could be
    BAD = "bad"  # sums fail, or are no use
    LEFT_OUT = "left out"  # it can't be checked here


@dataclass(frozen=True)
class Finding:
    """`check` names the thing examined; `reason` and `remedy` are for people. A good finding needs no remedy."""

    check: str
    state: State
    reason: str
    remedy: str = ""


def good(check: str, reason: str) -> Finding:
    return Finding(check, State.GOOD, reason)


def warning(check: str, reason: str, remedy: str) -> Finding:
    return Finding(check, State.WARNING, reason, remedy)


def bad(check: str, reason: str, remedy: str) -> Finding:
    return Finding(check, State.BAD, reason, remedy)


def left_out(check: str, reason: str, remedy: str = "") -> Finding:
    return Finding(check, State.LEFT_OUT, reason, remedy)
