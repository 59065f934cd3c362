"""The session's threads reach the control side here: they call it, and wait for what comes of that."""

import logging
import time
from collections.abc import Callable, Sequence

from jax_passing import _native
from jax_passing.config import Settings, address_text
from jax_passing.errors import Failure, JoinError, PassingError, names
from jax_passing.host.control.joining import Joined, Joining, Rehearsing
from jax_passing.host.control.loop import Loop
from jax_passing.host.control.ranks import HostSet, Ranks
from jax_passing.host.control.recording import Recorder
from jax_passing.host.spinner import spinner
from jax_passing.protocol import keys

log = logging.getLogger("jax_passing")


class Control:
    """A session with a switch has one, until it ends.

    Attributes:
      loop: in which all of it runs.
      key: the job's, if it has one.
      hosts_key: that of confidential sums, if sums are confidential.
    """

    def __init__(self, settings: Settings, device_count: int):
        """`device_count`: of this host, on the platform on which programs run. Raises ConfigError if the key file is
        none."""
        self._settings = settings
        # Once: a file that is replaced or removed later doesn't keep the session from joining again.
        self.key = keys.read_key(settings.key_file, keys.JOB)
        self.hosts_key = keys.read_key(settings.hosts_key_file if settings.is_confidential else None, keys.HOSTS)
        try:
            self.loop = Loop()
        except OSError as error:
            raise PassingError(
                f"This process can't open what a session needs ({error}). Raise its limit of open files "
                "(ulimit -n), or close some."
            ) from error
        self._joining = Joining(self.loop, settings, device_count, self.key, self.hosts_key)
        self._recorder = Recorder(settings, self.loop, self._joining.journal)

    def join(
        self, step: int | None, lost: Sequence[int], first_device_id: int, *, rehearses: bool
    ) -> Joined | Rehearsing:
        """Joins an epoch, and lends its sums to this process's handlers; or says that it is to rehearse first. `step`,
        `lost` and `rehearses` are those of `Meeting.meet`. Raises what `Joining.join` tells."""
        try:
            with spinner(self._waits):
                joined: Joined | Rehearsing = self.loop.wait(
                    lambda *outcomes: self._joining.join(step, lost, *outcomes, rehearses=rehearses)
                )
            if isinstance(joined, Rehearsing):
                return joined
            _native.attach(
                joined.ranks.host.transport.native,
                self._settings.deadline_s,
                [device.transport.native for device in joined.ranks.devices],
                rank=joined.rank,
                first_device_id=first_device_id,
            )
        except BaseException:
            self.loop.call(self._joining.close)
            raise
        return joined

    @property
    def _waits(self) -> str:
        settings = self._settings
        where = ",".join(address_text(*address) for address in settings.switch or ())
        return f"rank {settings.rank} of job {settings.job!r} waits for {settings.world_size - 1} others at {where}"

    def join_hosts(self, ranks: Ranks, hosts: Sequence[int]) -> _native.Transport:
        """Returns what sums over these hosts, which must include this one. Raises PassingError."""
        timeout_s = 2 * self._settings.join_deadline_s  # the set has the same deadline, and tells who is missing
        try:
            joined: HostSet = self.loop.wait(lambda *outcomes: ranks.join_hosts(hosts, *outcomes), timeout_s)
        except TimeoutError:
            raise JoinError(
                f"The job in which {names(hosts)} sum by themselves didn't begin within {timeout_s:g} s. Look at the "
                "switch's log."
            ) from None
        return joined.membership.transport.native

    def fail(self, ranks: Ranks, failure: Failure) -> None:
        self.loop.call(ranks.fail, failure)

    def leave(self, ranks: Ranks, until: float) -> None:
        """Waits for the other hosts to leave, until then (monotonic)."""

        def leave(on_all_left: Callable[[None], None], _: object) -> None:
            ranks.leave(on_all_left)

        try:
            self.loop.wait(leave, max(0.0, until - time.monotonic()))
        except TimeoutError:
            log.info("left job %s before the other hosts did", self._settings.job)

    def close(self) -> None:
        """Fails what is pending, and ends the thread. Bounded in time."""
        self.loop.call(self._joining.close)
        self._recorder.close()
        self.loop.close()

    def forget_in_child(self) -> None:
        """In a child that was forked: all of it is the parent's."""
        _native.unwatch_signals()
        self.loop.forget_in_child(self)
