"""How a session joins its job: with the hosts that it has met before, where it is elastic or has a standby."""

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from jax_passing.config import Settings
from jax_passing.errors import HostLostError, NoSlotsError, SwitchLostError, SwitchUnreachableError
from jax_passing.host.meetings import Meetings
from jax_passing.host.ranks import Ranks
from jax_passing.protocol import keys

log = logging.getLogger("jax_passing")


class Joined(NamedTuple):
    """`ranks` are those of this process in a new epoch of the job. The others become attributes of the session."""

    ranks: Ranks
    rank: int
    world_size: int
    step: int | None = None
    survivors: int = 0


class Joining:
    """How one session joins: once, or again whenever it rejoins. Raises ConfigError if its key file is none."""

    def __init__(self, settings: Settings, device_count: int):
        self._settings, self._device_count = settings, device_count
        # Once: a file that is replaced or removed later doesn't keep the session from joining again.
        self._key = keys.read_key(settings.key_file, keys.JOB)
        meets = bool(settings.standby) or settings.world_size_min is not None
        self._meetings = Meetings(settings, self._key) if meets else None

    def join(self, step: int | None, lost: Sequence[int], former: Ranks | None) -> Joined:
        """`step` and `lost` are those of `Meetings.meet`. `former`, the ranks before, end when the hosts have met.

        Raises what Meetings.meet and Ranks raise.
        """
        try:
            joined = self._join_alone() if self._meetings is None else self._join_met(step, lost, former)
        except BaseException:
            self.close()
            raise
        if self._settings.world_size_min is None:
            self.close()  # it meets nobody again
        return joined

    def _ranks(self, settings: Settings) -> Ranks:
        return Ranks(settings, self._device_count, self._key)

    def _join_alone(self) -> Joined:
        settings = self._settings
        return Joined(self._ranks(settings), settings.rank, settings.world_size)

    def _join_met(self, step: int | None, lost: Sequence[int], former: Ranks | None) -> Joined:
        """Tries once more if a host or the switch is lost before all have joined."""
        settings, meetings = self._settings, self._meetings
        assert meetings is not None
        rank, world_size, last_step, survivors = settings.rank, settings.world_size, None, 0
        until = time.monotonic() + settings.join_deadline_s
        places = list(range(len(meetings.places)))
        while True:
            place, met = meetings.meet(places, step, lost, until)
            if former is not None:
                former.close()
            if settings.world_size_min is not None:
                rank, world_size = met.rank, met.world_size
                last_step, survivors = met.step, met.survivors
                if rank >= survivors:
                    step = None  # what it has is of another time
            joined = dataclasses.replace(settings, switch=meetings.places[place], rank=rank, world_size=world_size)
            try:
                return Joined(self._ranks(joined), rank, world_size, last_step, survivors)
            except (NoSlotsError, SwitchUnreachableError) as error:
                if len(places) == 1:
                    raise
                log.warning("%s Going to the standby.", error)
                places.remove(place)
            except (HostLostError, SwitchLostError) as error:
                if time.monotonic() >= until:
                    raise
                log.warning("%s Meeting the other hosts again.", error)

    def close(self) -> None:
        """Gives up the seat, if there is one."""
        if self._meetings is not None:
            self._meetings.close()

    def forget_in_child(self) -> None:
        """In a child that was forked, whose parent keeps the connections."""
        if self._meetings is not None:
            self._meetings.forget_in_child()
