"""A host that comes to a job which runs without it rehearses: it compiles its programs before anybody waits for it.

Its session looks like membership in the job, at its very beginning, as the last of all ranks. Its sums go over its own
devices alone, until a program has run again: by then everything is compiled, and its sums raise HostJoinedError.
"""

import logging

from jax_passing import _native
from jax_passing.config import Settings
from jax_passing.errors import Failure, HostJoinedError

log = logging.getLogger("jax_passing")

_has_compiled = False  # this process has been in a job, or in a rehearsal until its end


def is_wanted(settings: Settings) -> bool:
    """Tells whether this process would rather rehearse than have others wait for it."""
    return settings.world_size_min is not None and not _has_compiled


def note_job() -> None:
    """This process has compiled its programs, or does so in the job."""
    global _has_compiled
    _has_compiled = True


class Rehearsal:
    """A session has one until it joins the job."""

    def __init__(self, settings: Settings, world_size: int, first_device_id: int):
        """Lends its sums to this process's handlers."""
        self._job = settings.job
        self._native = _native.Rehearsal(
            world_size,
            kind=HostJoinedError.__name__,
            message=f"This host has compiled its programs, and can join job {self._job!r}, which runs: call "
            "session.rejoin.",
        )
        _native.attach(self._native, settings.deadline_s, first_device_id=first_device_id)
        self.stats = self._native.stats
        log.info("job %s runs without this host, which compiles its programs and joins then", self._job)

    @property
    def failure(self) -> Failure | None:
        failed = self._native.failure()
        return Failure(*failed) if failed else None

    def abandon(self) -> None:
        """The program ends, and hasn't joined the job."""
        if self._native.failure() is not None:
            note_job()
            return
        text = (
            f"This program ended before it joined job {self._job!r}, which ran when it began: what it has computed is "
            "of no use. Was it about to end anyway? If not, it needs a loop that calls session.rejoin when its sums "
            "raise HostJoinedError."
        )
        log.warning("%s", text)
        self._native.fail(HostJoinedError.__name__, text)
