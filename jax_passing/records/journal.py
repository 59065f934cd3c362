"""A journal keeps the last events of a host's or a switch's control side, in bounded memory. It does no I/O."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax_passing.errors import Failure

HOST_EVENTS = 128  # beside the sums of C++'s recorder, within 1 MiB
SWITCH_EVENTS = 4096
TEXT_CHARACTERS_MAX = 500
SWITCH_TEXT_CHARACTERS_MAX = 160


@dataclass(frozen=True, slots=True)
class Event:
    """Something has happened. `at`: by the clock of its host or switch. `facts`: plain values."""

    at: float
    kind: str
    job: str
    text: str
    facts: dict[str, Any]


class Journal:
    """Notes what happens.

    Attributes:
      events: the last ones, the oldest first.
      on_failure: is called with each failure of a job, once that is noted.
      on_wanted: is called with the name of a job if somebody asks its switch for flight records.
    """

    def __init__(self, size: int = HOST_EVENTS, text_characters_max: int = TEXT_CHARACTERS_MAX):
        self._text_characters_max = text_characters_max
        self.events: deque[Event] = deque(maxlen=size)
        self.on_failure: Callable[[Failure], None] = lambda failure: None
        self.on_wanted: Callable[[str], None] = lambda job: None

    def note(self, at: float, kind: str, job: str, text: str, **facts: Any) -> None:
        self.events.append(Event(at, kind, job, text[: self._text_characters_max], facts))

    def failed(self, at: float, job: str, failure: Failure) -> None:
        self.note(at, "failed", job, failure.message, error=failure.kind, ranks=list(failure.ranks))
        self.on_failure(failure)
