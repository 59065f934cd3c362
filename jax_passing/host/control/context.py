"""The parts of a host's control side share a context, and report by events."""

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax_passing.config import Settings
from jax_passing.host.control.outside import HostOutside
from jax_passing.protocol import control_messages as messages
from jax_passing.records.journal import Journal


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
      hosts_key: that of confidential sums, if sums are confidential.
      device_count: the devices of this host; all hosts must have as many. 0: they aren't compared.
      met: what the hosts of an elastic session have agreed on before they join; None in any other session.
      started_as: the rank that the launcher gave this host of an elastic session.
      journal: notes what happens, for the flight record.
    """

    outside: HostOutside
    settings: Settings
    events: Events
    key: bytes | None = None
    device_count: int = 0
    met: messages.Met | None = None
    started_as: int | None = None
    journal: Journal = field(default_factory=Journal)
    hosts_key: bytes | None = None

    @property
    def job(self) -> str:
        assert self.settings.job is not None  # there is a switch
        return self.settings.job

    @property
    def newcomers(self) -> range:
        """Returns the ranks of hosts that have come to those that run the job. At a first meeting nobody runs it."""
        met = self.met
        if met is None or not met.survivors:
            return range(0)
        ranks_each = self.settings.world_size // met.world_size  # more than 1 where devices have ranks
        return range(met.survivors * ranks_each, self.settings.world_size)

    def note(self, kind: str, text: str, **facts: Any) -> None:
        """Notes in the journal what happens to this job."""
        self.journal.note(self.outside.now(), kind, self.job, text, **facts)

    def replace(self, **changes: Any) -> "HostContext":
        """Returns the same with these settings changed."""
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, **changes))
