"""The session of this process, which has at most one at a time: how it joins the job, and how it leaves."""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, cast

import jax

from jax_passing import _native, errors
from jax_passing.config import Settings
from jax_passing.errors import ConfigError, Failure, HostJoinedError, HostLostError, PassingError, UsageError, typed
from jax_passing.host import inside, preparations, processes, rehearsal, scope, unfinished_handles
from jax_passing.host.control.control import Control
from jax_passing.host.control.joining import Rehearsing
from jax_passing.host.control.ranks import Links, Ranks
from jax_passing.host.executions import await_executions, wait_for_arrays
from jax_passing.host.stats import NO_NETWORK, Stats
from jax_passing.host.status import SessionStatus, status_of

log = logging.getLogger("jax_passing")

_current: "Session | None" = None
_has_begun = False  # this process has had a session, or has one


def current() -> "Session | None":
    """The session of this process, if one is open."""
    return _current


class Session:
    """Membership in a job. Made by `jax_passing.init`; also a context manager.

    Attributes:
      rank: index of this host in the job.
      world_size: number of hosts.
      epoch: incarnation of the job at the switch; 0 without a switch.
      device_ranks: devices of this host that have a rank of their own at the switch, for strategy "flat"; 0: none.
      step: the last step that all survivors of an elastic session had completed when they met; None if none has any.
      survivors: how many of the ranks, from 0 on, have the state after `step`, or had it and are one step ahead.
      settings: everything that was resolved.
      is_rehearsing: the job runs without this host, which compiles its programs until sums raise HostJoinedError.
    """

    def __init__(self, settings: Settings, *, is_for_jax: bool = False):
        """`is_for_jax`: JAX's own collectives need it; the calling thread is one of XLA's."""
        global _current, _has_begun
        self.settings = settings
        self.rank, self.world_size = settings.rank, settings.world_size
        self._shutdown_lock = threading.RLock()  # a signal's handler may shut down what is being shut down
        self._is_shut_down = False
        self._began = time.monotonic()
        was_begun, _has_begun = _has_begun, True
        if was_begun or settings.world_size_min is not None:  # `rejoin` needs it compiled, when others wait
            await_executions(settings.join_deadline_s)
        self.closers: list[Callable[[], None]] = []  # are called when the session ends, before its control side does
        self._control: Control | None = None  # as long as there is a switch to talk to
        self._ranks: Ranks | None = None
        self._rehearsal: rehearsal.Rehearsal | None = None
        self._had_others = False
        self._sums_before = 0  # of earlier epochs
        self._local = _native.LocalCollective()  # sums of a host without a switch
        self.device_ranks = self.epoch = self.survivors = 0
        self.step: int | None = None
        preparations.prepare()
        self._first_device_id = min(device.id for device in jax.local_devices(backend="cpu"))  # others count from it
        if settings.switch is None:
            _native.attach(self._local, settings.deadline_s, rank=0, first_device_id=self._first_device_id)
        else:
            self._control = Control(settings, processes.compared_devices(is_for_jax, settings.strategy))
            try:
                self._join(step=None, lost=())
            except BaseException:
                self._close_control()
                raise
        inside.begin()
        (scope.begin_for_jax if is_for_jax else scope.begin)(self._scope())
        self._is_for_jax = is_for_jax  # and no thread has taken it over
        atexit.register(self.at_exit)
        _current = self

    def __repr__(self) -> str:
        failure = self._failure
        state = f"failed: {failure.kind}" if failure else "rehearses" if self.is_rehearsing else "open"
        axes = ",".join(self.settings.axis_name) or None
        who = f"rank={self.rank} world_size={self.world_size} job={self.settings.job!r} axis_name={axes!r}"
        return f"<jax_passing.Session {who} ({'closed' if self._is_shut_down else state})>"

    # Joining.

    def _join(self, step: int | None, lost: Sequence[int]) -> None:
        """The arguments are those of `Meeting.meet`."""
        assert self._control is not None
        rehearses = self._rehearsal is None and rehearsal.is_wanted(self.settings)
        joined = self._control.join(step, lost, self._first_device_id, rehearses=rehearses)
        if isinstance(joined, Rehearsing):
            self.rank, self.world_size, self.device_ranks = joined
            self._rehearsal = rehearsal.Rehearsal(self.settings, self.world_size, self._first_device_id)
            return
        rehearsal.note_job()
        self._rehearsal = None
        self._ranks, self.rank, self.world_size, self.step, self.survivors = joined
        self.device_ranks = len(joined.ranks.devices)
        self.epoch = joined.ranks.host.epoch
        self._had_others |= self.world_size > 1

    def rejoin(self, step: int | None = None) -> int | None:
        """Meets the other hosts of an elastic session when a sum has failed, and joins a new epoch with them.

        Those that are left go on, with newcomers in the place of those that are lost: `rank`, `world_size`, `survivors`
        and `epoch` are new. Compiled programs stay as they are. Waits for at most four times `join_deadline_s`.

        Args:
          step: the last one that this host completed, if it has the states after it and before; None: it has none.

        Returns: The last step that all survivors completed, from which all go on; None if nobody has any state.

        Raises:
          ConfigError: the session isn't elastic.
          InterruptionError: too few hosts came (TooFewHostsError), or no switch can be reached. Call it again.
          ProgramMismatchError: this host's program isn't that of the others, which go on without it.
          UsageError: the session is shut down, or another thread called `init`.
          ClosedError: the session is shut down meanwhile, by another thread or a handler of signals.
          PassingError: this process was forked after `init`.
        """
        scope.check_process()
        self._check_rejoin(step)
        if self._control is None:  # nobody can be lost
            self.step, self.survivors = step, int(step is not None)
            return step
        text = f"Rank {self.rank} of job {self.settings.job!r}, epoch {self.epoch}, called session.rejoin: so do all."
        failure = self._failure or Failure(HostJoinedError.__name__, text)
        if not failure.is_interruption and self.rank in failure.ranks:
            raise failure.exception()  # the others go on without this host
        if self._ranks is not None:
            self._sums_before += self._ranks.stats()["sums_started"]
            self._control.fail(self._ranks, failure)
        _native.detach()
        await_executions(self.settings.join_deadline_s)
        self._join(None if self.is_rehearsing else step, failure.ranks)
        self._began = time.monotonic()
        return self.step

    def _check_rejoin(self, step: int | None) -> None:
        if self.settings.world_size_min is None:
            raise ConfigError("session.rejoin is for elastic sessions: jax_passing.init(world_size_min=...).")
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
            raise ConfigError(f"session.rejoin(step={step!r}): expected a number of steps, or None.")
        if self._is_shut_down:
            raise UsageError("the session is shut down: call jax_passing.init() instead of session.rejoin()")
        if not scope.is_thread_of_session():
            raise UsageError("Call session.rejoin in the thread that called jax_passing.init.")

    def take_over(self, settings: Settings) -> bool:
        """Makes the calling thread the one that called `init`, if the session was opened for JAX's own collectives.

        Returns whether it was, and these are its settings. Raises ConfigError."""
        if not self._is_for_jax or settings != self.settings:
            return False
        processes.check_devices()
        self._is_for_jax = False
        scope.begin(self._scope())
        return True

    def _scope(self) -> scope.Scope:
        return scope.of_settings(self.settings, self.world_size, self.device_ranks)

    # JAX's own collectives (jax_passing.for_jax) use this.

    @property
    def control(self) -> tuple[Control, Ranks] | None:
        """Returns the control side and this process's ranks, as long as there is a switch."""
        return None if self._control is None or self._ranks is None else (self._control, self._ranks)

    @property
    def _failure(self) -> Failure | None:
        """Why this session can't go on, if so."""
        sums = self._ranks or self._rehearsal
        return None if sums is None else sums.failure

    @property
    def is_rehearsing(self) -> bool:
        return self._rehearsal is not None

    @property
    def error(self) -> PassingError | None:
        """The exception that sums of this session raise from now on, if it has failed; else None. A host that computes
        for long can look at it: that waits for nothing."""
        failure = self._failure
        return failure.exception() if failure else None

    @property
    def links(self) -> Links | None:
        """The job's links, with which strategy "auto" reckons, the same on all hosts; None without a switch."""
        return None if self._ranks is None else self._ranks.links

    def shutdown(self) -> None:
        """Waits for pending sums and for the other hosts to be done too, at most `deadline_s`; then leaves.

        Quick after a failure. A second call does nothing. JAX functions that were dispatched are waited for, those
        that run later raise UsageError.

        Warns (InsideHostWarning) if there were other hosts, but nothing was summed over them; and
        (UnfinishedHandlesWarning) if `psum_done` didn't take what `psum_start` started.
        """
        self._shut_down(abandon=None)

    def _shut_down(self, abandon: str | None) -> None:
        global _current
        with self._shutdown_lock:
            if self._is_shut_down:
                return
            self._is_shut_down = True
            try:
                self._leave(abandon)
                unfinished = _native.unfinished_handles()
            except BaseException as error:  # Ctrl-C while it waits: the others hear of it
                self._leave(f"it stopped with {errors.gist(error)}")
                raise
            finally:
                self._close()
                if _current is self:
                    _current = None
        if abandon is None and self._failure is None:
            self._warn_if_inside()
            unfinished_handles.warn_of(unfinished)

    def _warn_if_inside(self) -> None:
        by_jax = jax.process_count() > 1  # its own sums may go over all processes, and aren't counted
        if self._ranks is not None and self._had_others and not by_jax:
            sums = self._sums_before + self._ranks.stats()["sums_started"]
            who = f"rank {self.rank} of {self.world_size} in job {self.settings.job!r}"
            inside.end(who, self.settings.axis_name, sums)

    def _leave(self, abandon: str | None) -> None:
        until = time.monotonic() + self.settings.deadline_s
        if abandon is None:
            wait_for_arrays(until, lambda: self._failure is not None)
        ranks, control = self._ranks, self._control
        if self._rehearsal is not None and abandon is None:
            self._rehearsal.abandon()
        if ranks is None or control is None:
            return
        if abandon is None and not ranks.drain(until):
            abandon = f"its sums weren't complete {self.settings.deadline_s:g} s after shutdown"
        failure = ranks.failure
        if failure is None and abandon is not None:
            failure = Failure(
                HostLostError.__name__,
                f"Rank {self.rank} left job {self.settings.job!r}, epoch {self.epoch}: {abandon}. Look at its log; "
                "then call jax_passing.init again on every host.",
                (self.rank,),
            )
        if failure is None:
            control.leave(ranks, until)
        else:
            control.fail(ranks, failure)

    def _close(self) -> None:
        atexit.unregister(self.at_exit)
        scope.end()
        _native.detach()
        for close in self.closers:
            with errors.logged("a part of the session couldn't be closed"):
                close()
        self._close_control()  # so the switch hears in any case that this host is gone

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def at_exit(self) -> None:
        """Shuts down as Python ends. A script that died of an exception doesn't keep others waiting for its sums."""
        # At an interactive prompt last_value is any earlier mistake.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if self.error is not None and (error is None or errors.repeats_itself(error)):
            log.warning("the session had failed: %s: %s", type(self.error).__name__, self.error)
        self._shut_down(None if error is None else f"it stopped with {errors.gist(error)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shuts down, at once if the block raised. Raises the typed error that a JAX error in the block stands for."""
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.shutdown()
            if self.error is not None and error is None:
                raise self.error
            return
        ours = typed(error)
        self._shut_down(f"it stopped with {errors.gist(error)}")
        if ours is not None:
            errors.raise_instead(ours, error)

    def stats(self) -> Stats:
        """Counters of this host since `init`, or the last `rejoin`: a dictionary, whose keys `Stats` explains.

        Raises PassingError in a process that was forked after `init`.
        """
        scope.check_process()
        local = self._rehearsal or self._local
        counters = NO_NETWORK | local.stats() if self._ranks is None else self._ranks.stats()
        return cast(Stats, {**counters, "session_s": time.monotonic() - self._began})

    def status(self) -> SessionStatus:
        """Returns this host's own view of the job: how fast sums are, and what it waits for. `print` it. May be called
        in any thread. Raises as `stats`."""
        who = self.rank, self.world_size, self.epoch
        return status_of(self.settings, who, self._ranks, self.stats(), self._failure)

    def _forget_in_child(self) -> None:
        """This process was forked: its session is the parent's, whose threads may hold locks, and aren't here."""
        self._is_shut_down, self._shutdown_lock = True, threading.RLock()
        atexit.unregister(self.at_exit)
        if self._control is not None:
            self._control.forget_in_child()
        self._control = self._ranks = None


def _after_fork_in_child() -> None:
    global _current
    if not _has_begun:
        return
    scope.forget_in_child()
    _native.forget_in_child()
    if _current is not None:
        _current._forget_in_child()
    _current = None


def _failure_of_current() -> Failure | None:
    session = _current  # another thread may shut it down in between
    return None if session is None else session._failure


errors.ask_for_failure(_failure_of_current)
os.register_at_fork(after_in_child=_after_fork_in_child)
