"""A session: this process's membership in a job, from `init` to `shutdown`."""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax

from jax_passing import _native, config, errors
from jax_passing._compat import process
from jax_passing.errors import AlreadyInitializedError, Failure, HostLostError, JoinError, PassingError, typed
from jax_passing.host import scope
from jax_passing.host.executions import wait_for_executions
from jax_passing.host.ranks import Links, Ranks, device_ranks
from jax_passing.protocol import alike

log = logging.getLogger("jax_passing")

POLL_S = 0.005  # between two looks at an array that isn't ready

_current: "Session | None" = None
_sessions = 0  # of this process, so far
_sessions_before_fork = 0
_init_lock = threading.Lock()
_preparations: list[Callable[[], None]] = []


def when_beginning(prepare: Callable[[], None]) -> None:
    """`prepare` is called whenever a session begins, before it joins, and now if one is open: by then JAX must know
    what the sums need. Modules further up, which import this one, say so as they are imported."""
    _preparations.append(prepare)
    if _current is not None:
        prepare()


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
      settings: everything that was resolved.
    """

    def __init__(self, settings: config.Settings):
        self.settings = settings
        self.rank = settings.rank
        self.world_size = settings.world_size
        self._shutdown_lock = threading.Lock()
        self._is_shut_down = False
        self._began = time.monotonic()
        _await_executions(settings.join_deadline_s)
        self._ranks: Ranks | None = None
        self._local = _native.LocalCollective()  # sums of a host without a switch
        self.device_ranks = 0
        self.epoch = 0
        if settings.switch is None:
            first_device_id = _prepare_jax()
            _native.attach(self._local, settings.deadline_s, rank=0, first_device_id=first_device_id)
        else:
            first_device_id, device_count = _prepare_jax(), _count_devices()
            self.device_ranks = device_ranks(settings, device_count)
            self._ranks = Ranks(settings, settings.switch, self.device_ranks, device_count)
            self.epoch = self._ranks.host.epoch
            try:
                self._ranks.attach(settings.deadline_s, first_device_id)
            except BaseException:
                self._ranks.close()
                raise
            self._ranks.start()
        self._enter_scope()

    def __repr__(self) -> str:
        state = f"failed: {self.failed.kind}" if self.failed else "open"
        axes = ",".join(self.settings.axis_name) or None
        who = f"rank={self.rank} world_size={self.world_size} job={self.settings.job!r} axis_name={axes!r}"
        return f"<jax_passing.Session {who} ({'closed' if self._is_shut_down else state})>"

    def _enter_scope(self) -> None:
        settings = self.settings
        scope.begin(
            scope.Scope(
                settings.axis_name,
                self.world_size,
                self.device_ranks,
                settings.strategy,
                same_hashes=self.world_size == 1 or bool(alike.hash_seed()),
            )
        )

    @property
    def failed(self) -> Failure | None:
        """Why this session can't go on, if so."""
        return None if self._ranks is None else self._ranks.failed

    @property
    def failure(self) -> PassingError | None:
        """The exception that sums of this session raise from now on, if any."""
        failed = self.failed
        return failed.exception() if failed else None

    @property
    def links(self) -> Links | None:
        """None without a switch."""
        return None if self._ranks is None else self._ranks.links

    # Leaving.

    def shutdown(self) -> None:
        """Waits for pending sums and for the other hosts to be done too, at most `deadline_s`; then leaves.

        Quick after a failure. A second call does nothing. JAX functions that were dispatched are waited for, those
        that run later raise NotInitializedError.
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
            finally:
                self._close()
                if _current is self:
                    _current = None

    def _leave(self, abandon: str | None) -> None:
        until = time.monotonic() + self.settings.deadline_s
        if abandon is None:
            self._await_arrays(until)
        ranks = self._ranks
        if ranks is None:
            return
        if abandon is None and not ranks.drain(until):
            abandon = f"its sums weren't complete {self.settings.deadline_s:g} s after shutdown"
        failed = ranks.failed
        if failed is None and abandon is not None:
            failed = Failure(
                HostLostError.__name__,
                f"Rank {self.rank} left job {self.settings.job!r}, epoch {self.epoch}: {abandon}. Look at its log; "
                "then call jax_passing.init again on every host.",
                (self.rank,),
            )
        if failed is None:
            ranks.leave(until)
        else:
            ranks.fail(failed)

    def _await_arrays(self, until: float) -> None:
        """Lets dispatched computations reach their sums. Errors belong to whoever reads the arrays."""
        if not process.backend_exists():
            return
        for array in jax.live_arrays():
            with suppress(RuntimeError):  # deleted meanwhile
                # block_until_ready has no timeout, and a thread for it can't be started at the end of the process.
                while not array.is_ready() and time.monotonic() < until and self.failed is None:
                    time.sleep(POLL_S)

    def _close(self) -> None:
        atexit.unregister(self._at_exit)
        scope.end()
        _native.detach()
        if self._ranks is not None:
            self._ranks.close()

    def _at_exit(self) -> None:
        # A script that died of an exception must not keep the others waiting for its sums. (At an interactive prompt
        # last_value is any earlier mistake.)
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        if error is None and self.failure is not None:
            log.warning("the session had failed: %s: %s", type(self.failure).__name__, self.failure)
        self._shut_down(None if error is None else f"it stopped with {_describe(error)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shuts down, at once if the block raised. Raises the typed error that a JAX error in the block stands for."""
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.shutdown()
            if self.failure is not None and error is None:
                raise self.failure
            return
        ours = typed(error)
        self._shut_down(f"it stopped with {_describe(error)}")
        if ours is not None:
            raise ours from error

    def stats(self) -> dict[str, float]:
        """Counters of this host since `init`.

        `tensor_bytes` / `session_s` is the goodput; `bytes_sent`, `bytes_received` count UDP payload, headers and
        resends included; `datagrams_unsent` counts what the kernel didn't take, `errors_reported` ICMP errors; times
        end in _us or _s.
        """
        counters = self._local.stats() if self._ranks is None else self._ranks.stats()
        return {**counters, "session_s": time.monotonic() - self._began}

    def _forget_in_child(self) -> None:
        self._is_shut_down = True
        atexit.unregister(self._at_exit)
        if self._ranks is not None:
            self._ranks.forget_in_child()


def _await_executions(timeout_s: float) -> None:
    """Lets executions that an earlier session left behind run into its end, before they could join this one's sums."""
    global _sessions
    _sessions += 1
    if _sessions == 1:
        return
    if not wait_for_executions(timeout_s):
        raise JoinError(
            f"Computations that were dispatched during the last session still run after {timeout_s:g} s. Wait for "
            "them (jax.block_until_ready), then call jax_passing.init again."
        )


def _prepare_jax() -> int:
    """The smallest id of this process's CPU devices, which are numbered from it."""
    for prepare in _preparations:
        prepare()
    return min(device.id for device in jax.local_devices(backend="cpu"))


def _count_devices() -> int:
    return len(jax.local_devices(backend="cpu"))


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:1000]


def init(
    switch: str | None = None,
    *,
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    deadline_s: float | None = None,
    warn_s: float | None = None,
    join_deadline_s: float | None = None,
    strategy: str | None = None,
    link_gbit: float | None = None,
    axis_name: str | Sequence[str] | None = None,
    config: str | Path | None = None,
) -> Session:
    """Joins a job and waits for its other hosts.

    What isn't given comes from JAX_PASSING_* variables, then from a TOML file; rank and world size then from
    jax.distributed if it is initialized, or from the launcher that it would detect. Without a switch the world is this
    host.

    Args:
      switch: "host:port" of the switch. Several with commas share the sum, each behind a link of its own: the same ones
        in the same order on all hosts.
      job: name of the job: hosts of one run share it, other runs have others. Default: the launcher's job id
        (docs/settings.md); required where there is a switch, but no such id.
      rank: index of this host.
      world_size: number of hosts, 1 to 1024; more than 64 need a tree of switches (docs/trees.md).
      deadline_s: how long a sum may make no progress.
      warn_s: after what time to warn about it.
      join_deadline_s: how long to wait for the switch and the other hosts.
      strategy: of the sums that name none: "passing", "flat", "native" or "auto" (docs/strategies.md).
      link_gbit: rate of this host's link to the switch, for "auto".
      axis_name: the axis (or several, or their names with commas) of local meshes, pmap and vmap that continues over
        the hosts: sums over it go over all devices of all hosts, every other axis stays inside its host. Not needed
        where the mesh spans the processes. The same on all hosts.
      config: path of a TOML file with these settings (default: JAX_PASSING_CONFIG).

    Raises:
      ConfigError: a setting is unknown, malformed or missing.
      AlreadyInitializedError: this process has an open session.
      SwitchUnreachableError: no switch answers at the address.
      JoinError: the switch refused this host, or other hosts didn't join in time.
      PassingError: this process was forked after `init`.
    """
    global _current
    arguments = {
        "switch": switch,
        "job": job,
        "rank": rank,
        "world_size": world_size,
        "deadline_s": deadline_s,
        "warn_s": warn_s,
        "join_deadline_s": join_deadline_s,
        "strategy": strategy,
        "link_gbit": link_gbit,
        "axis_name": axis_name,
    }
    if _sessions_before_fork:
        raise PassingError(
            "This process was forked from one that had called jax_passing.init. JAX's threads and ours exist in the "
            "parent alone: start it with the method 'spawn' of multiprocessing instead."
        )
    if not _init_lock.acquire(blocking=False):
        raise AlreadyInitializedError("Another thread is in jax_passing.init. One session serves the whole process.")
    try:
        if _current is not None and _current.failed is not None:
            _current.shutdown()
        elif _current is not None:
            raise AlreadyInitializedError(
                f"This process has a session (job {_current.settings.job!r}, rank {_current.rank}). Use "
                "jax_passing.session.current(), or call its shutdown() first."
            )
        settings, sources = _resolve(arguments, config)
        for name, source in sources.items():
            log.info("%s = %s (%s)", name, getattr(settings, name), source)
        _current = Session(settings)
        atexit.register(_current._at_exit)
        return _current
    finally:
        _init_lock.release()


def _resolve(arguments: dict[str, Any], path: str | Path | None) -> tuple[config.Settings, dict[str, str]]:
    return config.resolve(arguments, path, process_in_cluster=process.in_cluster)


def _after_fork_in_child() -> None:
    global _current, _init_lock, _sessions_before_fork
    if _current is not None:
        _current._forget_in_child()
    _current, _init_lock, _sessions_before_fork = None, threading.Lock(), _sessions


def _failure_of_current() -> Failure | None:
    current = _current  # another thread may shut it down in between
    return None if current is None else current.failed


errors.ask_for_failure(_failure_of_current)
os.register_at_fork(after_in_child=_after_fork_in_child)
