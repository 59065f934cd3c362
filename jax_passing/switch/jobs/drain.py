"""An operator drains a switch: no new job comes, and those that are here go on until they end."""

from collections.abc import Iterable

from jax_passing import job_names
from jax_passing.errors import SwitchDrainingError
from jax_passing.protocol.outside import Outside
from jax_passing.switch.jobs.admission import RefusalError


class Drain:
    """A drain lasts until it is undone, or the switch ends. Jobs that were here when it began may join again after a
    failure, until they end well.

    Attributes:
      since: when it began; None: there is none.
      reason: the operator's.
    """

    def __init__(self, outside: Outside):
        self._outside = outside
        self.since: float | None = None
        self.reason = ""
        self._stay: set[str] = set()  # users' names of jobs

    def begin(self, jobs: Iterable[str], reason: str) -> None:
        """`jobs`: those that are here. May be called again, with another reason."""
        if self.since is None:
            self.since = self._outside.now()
            self._stay = {job_names.base(job) for job in jobs}
        self.reason = reason or self.reason

    def undo(self) -> None:
        self.since, self.reason, self._stay = None, "", set()

    def check(self, job: str) -> None:
        """Raises RefusalError if the job is a new one, and may not begin."""
        if self.since is None or job_names.base(job) in self._stay:
            return
        why = f" ({self.reason})" if self.reason else ""
        raise RefusalError(
            f"This switch's operator drains it{why}: jobs that were here go on, and no other is admitted. Let job "
            f"{job!r} go to another switch (JAX_PASSING_SWITCH, or a standby), or come again when the drain is undone.",
            "draining",
            SwitchDrainingError.__name__,
        )

    def ended(self, job: str) -> None:
        """A job has ended well: from now on its name is that of a new one."""
        if job.partition(job_names.SHARD_MARK)[0] == job_names.base(job):  # not only that of its devices, or some hosts
            self._stay.discard(job_names.base(job))
