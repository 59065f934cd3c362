"""Anything that plays an exchange can be tested: a live switch (live/suite.py), or in our tests a part of one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from jax_passing.conformance.exchanges.exchange import Exchange, Played
from jax_passing.conformance.exchanges.model import Limits


class SwitchUnderTest(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    def play(self, exchange: Exchange) -> Played:
        """Sends the packets of an applicable exchange. Raises UntestableError if the switch can't be used any more."""

    def checks(self) -> Sequence["Check"]:
        """Returns the checks that come after all exchanges, and that no exchange could make."""


class UntestableError(Exception):
    """The switch under test is gone, or does too little to be tested."""


class NotApplicableError(Exception):
    """A check can't be made here; the text says why."""


@dataclass(frozen=True)
class Check:
    """A check whose `find` says what is wrong, or nothing. It raises UntestableError or NotApplicableError."""

    section: str
    description: str
    find: Callable[[], str]
