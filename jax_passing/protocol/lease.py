"""Either end of a connection says now and then that it lives, and notices when the other says nothing any more."""

from collections.abc import Callable

from jax_passing.protocol.outside import Outside, Timer

HEARTBEATS_PER_LEASE = 6  # a few may come late
LOOKS_PER_HEARTBEAT = 2
INTERPRETER_HELD_S = 30.0  # for which a host may say by its lifeline alone that it lives
LATE_LOOKS = 2  # an end that looks later than this many periods stood still, and heard nothing meanwhile


class Lease:
    """The other end of a connection is lost when it has been silent for a lease.

    A process that stood still (`scontrol suspend`, SIGSTOP, a paused virtual machine) has heard nothing meanwhile, and
    the other end may have stood still with it. So this looks often, and a look that comes late counts as little more
    than one that comes in time.
    """

    def __init__(
        self,
        outside: Outside,
        lease_s: float,
        on_silent: Callable[[], None],
        say_heartbeat: Callable[[], None] | None = None,
    ):
        """`on_silent`: is called at most once. `say_heartbeat`: says that this end lives; None: it only answers."""
        self._outside, self.lease_s = outside, lease_s
        self._on_silent, self._say_heartbeat = on_silent, say_heartbeat
        self._period_s = lease_s / HEARTBEATS_PER_LEASE / LOOKS_PER_HEARTBEAT
        self._silent_s = 0.0  # until the last look
        self._since_s = outside.now()  # the last look, or when something was heard after it
        self._looks = 0
        self._timer: Timer = outside.call_later(self._period_s, self._look)

    def heard(self) -> None:
        self._silent_s, self._since_s = 0.0, self._outside.now()

    def _look(self) -> None:
        now, late_s = self._outside.now(), LATE_LOOKS * self._period_s
        passed_s, self._since_s = now - self._since_s, now
        self._silent_s += min(passed_s, late_s)
        if self._silent_s >= self.lease_s:
            self._on_silent()
            return
        self._timer = self._outside.call_later(self._period_s, self._look)
        self._looks += 1
        if self._say_heartbeat is not None and (passed_s >= late_s or self._looks % LOOKS_PER_HEARTBEAT == 0):
            self._say_heartbeat()

    def stop(self) -> None:
        self._timer.cancel()
