"""The parts of a host's control side share a context, and report by events."""

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax_passing.config import Settings
from jax_passing.host.control.outside import HostOutside


class Events:
    """Events are handled one after the other, in the order in which they were added: what comes of one comes after
    it."""

    def __init__(self, handle: Callable[[Any], None]):
        self._handle = handle
        self._waiting: deque[object] = deque()
        self._is_handling = False

    def add(self, event: object) -> None:
        """Handles it before this returns, unless another one is being handled."""
        self._waiting.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._waiting:
                self._handle(self._waiting.popleft())
        finally:
            self._is_handling = False


@dataclass(frozen=True)
class HostContext:
    """A host takes part in a job with this.

    Attributes:
      outside: its time, connections and packets.
      settings: those of the job.
      events: take what happens.
      key: the job's, if it has one.
      device_count: the devices of this host; all hosts must have as many. 0: they aren't compared.
    """

    outside: HostOutside
    settings: Settings
    events: Events
    key: bytes | None = None
    device_count: int = 0

    @property
    def job(self) -> str:
        assert self.settings.job is not None  # there is a switch
        return self.settings.job

    def replace(self, **changes: Any) -> "HostContext":
        """Returns the same with these settings changed."""
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, **changes))
