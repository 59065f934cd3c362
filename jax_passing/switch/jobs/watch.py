"""The switch watches over what it serves: leases, waits of those that join, a device that forgot its jobs."""

import logging
from collections import Counter
from collections.abc import Mapping

from jax_passing.errors import SwitchLostError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Outside, Timer
from jax_passing.switch.data_planes.data_plane import DataPlane, unexpected
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Epoch
from jax_passing.switch.jobs.jobs import JobTable
from jax_passing.switch.jobs.recent import Recent
from jax_passing.switch.jobs.waits import end_waits

log = logging.getLogger("jax_passing.switch")

PERIOD_MAX_S = 0.1
# There is no sum without a rank that has left. A rank that lacks a result of the last one asks for it all the time,
# unless it is stopped, and lost after one lease.
LEAVE_LEASES = 10
OVERFLOWS_S = 5.0  # how often it looks at who sends too much


class Watch:
    """Watches over all jobs of a switch. It begins at once."""

    def __init__(self, data_plane: DataPlane, jobs: JobTable, outside: Outside, lease_s: float, recent: Recent):
        self._data_plane = data_plane
        self._recent = recent
        self._jobs = jobs
        self._outside = outside
        self._lease_s = lease_s
        self._check_raised = ""
        self._overflows: Mapping[int, int] = {}  # by the job's number, the last time
        self._overflows_next = 0.0
        self.counts: Counter[str] = Counter()
        self._timer: Timer = self._look_later()

    def stop(self) -> None:
        self._timer.cancel()

    def _look_later(self) -> Timer:
        return self._outside.call_later(min(self._lease_s / 10, PERIOD_MAX_S), self._look)

    def _look(self) -> None:
        """Looks at all jobs. A fault of ours ends the job in which it shows, and no other."""
        self._timer = self._look_later()
        lost, now = self._check_data_plane(), self._outside.now()
        if now >= self._overflows_next:
            self._overflows_next = now + OVERFLOWS_S
            self._tell_overflows()
        epochs = self._jobs.epochs()
        self._recent.look(epochs, now)
        for epoch in epochs:
            try:
                self._look_at(epoch, now, lost)
            except Exception as error:
                self._end_faulty(epoch, error)

    def _look_at(self, epoch: Epoch, now: float, lost: str) -> None:
        if lost and epoch.state is EpochState.RUNNING:
            message = (
                f"The switch's device has lost the job: {lost}. Look at it, then call jax_passing.init again on every "
                "host."
            )
            self._jobs.fail(epoch, messages.Failed(SwitchLostError.__name__, message))
            return
        end_waits(self._jobs, epoch, now)
        if epoch.uplink is not None and epoch.state is EpochState.RUNNING:
            epoch.uplink.check_group(self._data_plane.hears_parents_group(epoch.job.number))
        is_left = epoch.state is EpochState.RUNNING and epoch.slot_first is not None and epoch.left
        if is_left and now - epoch.left_since > LEAVE_LEASES * self._lease_s:
            self._jobs.free_slots(epoch)

    def _tell_overflows(self) -> None:
        """Tells whose packets come faster than they are handled."""
        try:
            before, self._overflows = self._overflows, self._data_plane.overflows()
        except Exception:  # whatever the device's driver raises
            log.exception("the data plane can't tell whose packets it has lost")
            return
        names = {epoch.job.number: str(epoch) for epoch in self._jobs.epochs()}
        for number, count in self._overflows.items():
            lost = count - before.get(number, 0)
            if lost > 0:
                self.counts["overflows_noticed"] += 1
                who = names.get(number, f"job number {number}") if number else "who is in no job, or in one that ended,"
                log.warning(
                    "%s sends more than this switch can take: %d packets were dropped in the last %g s. Others' "
                    "packets have a queue of their own.",
                    who,
                    lost,
                    OVERFLOWS_S,
                )

    def _end_faulty(self, epoch: Epoch, error: Exception) -> None:
        """Ends an epoch that can't be watched. All of its hosts hear why, and those of no other."""
        self.counts["watches_failed"] += 1
        log.error("%s can't be watched any more: %s", epoch, error, exc_info=unexpected(error))
        text = (
            f"The switch can't watch over this job any more ({type(error).__name__}: {error}), which the switch's log "
            "says more about. Call jax_passing.init again on every host."
        )[: messages.TEXT_MAX]
        try:
            if epoch.state is EpochState.RUNNING:
                self._jobs.fail(epoch, messages.Failed(SwitchLostError.__name__, text))
            else:
                self._jobs.refuse_all(epoch, text)
        except Exception:  # the same fault, perhaps: the others are still watched
            log.exception("%s can't be ended", epoch)

    def _check_data_plane(self) -> str:
        """Says why the jobs that it had are gone; else empty. May take as long as the device's driver does."""
        try:
            lost, self._check_raised = self._data_plane.check(), ""
        except Exception as error:  # whatever the device's driver raises; it is asked again
            lost = f"{type(error).__name__}: {error}"
            if lost != self._check_raised:
                log.exception("the data plane's check failed")
            self._check_raised = lost
        return lost
