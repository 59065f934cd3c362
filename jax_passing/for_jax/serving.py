"""XLA's collectives on CPU need more than sums: groups of devices, messages, and somebody who explains a wait.

C++ (xla_ffi/mpi) asks the server of this process, in XLA's threads.
"""

import json
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import jax

from jax_passing import _native, config
from jax_passing._compat import process
from jax_passing.config import Settings
from jax_passing.errors import ClosedError, ConfigError, Failure, JoinError, ProgramMismatchError
from jax_passing.for_jax import splits
from jax_passing.for_jax.channels import Channels
from jax_passing.for_jax.waits import Wait, Waits
from jax_passing.host.executions import wait_for_arrays, wait_for_executions
from jax_passing.host.init import init_for_jax
from jax_passing.host.loop import Loop
from jax_passing.host.processes import told
from jax_passing.host.session import Session, current

_WHAT = "a program whose collectives go over the switch (jax_passing.use_for_jax)"

_Made = dict[int, tuple[splits.Group, Any]]
"""By color, the groups of a split and what sums for them."""


class Server:
    """One process has one, as long as it lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[splits.Call] = []  # of all splits; a split is one call of each local device
        self._splits: dict[int, Future[_Made]] = {}
        self._groups: dict[int, splits.Group] = {}
        self._shared: _Shared | None = None

    def begin(self) -> tuple[int, int]:
        """Returns this process's number, and how many there are. JAX has no devices yet."""
        return _rank_and_world_size()

    # Groups.

    def split(self, color: int, key: int) -> tuple[int, str, tuple[int, ...], int, Any, int, float]:
        """Returns the group of a device (`MpiServer.split`). Waits for all devices of all processes.

        Raises PassingError.
        """
        devices = jax.local_device_count()
        with self._lock:
            number = len(self._calls) // devices
            self._calls.append((color, key))
            calls = self._calls[number * devices :]
            outcome = self._splits.setdefault(number, Future())
        if len(calls) == devices:
            try:
                outcome.set_result(self._make(number, calls))
            except BaseException as error:
                outcome.set_exception(error)
        deadline_s = self._await(number, outcome, devices)
        group, collective = outcome.result()[color]
        own_index = group.keys.index(key)
        return group.id, group.name, group.hosts, own_index, collective, len(group.host_set), deadline_s

    def _session(self) -> Session:
        if self._shared is None:
            return init_for_jax(_check)
        if current() is not self._shared.session:
            raise ClosedError("The session that JAX's collectives began with is over. Start the program again.")
        return self._shared.session

    def _await(self, number: int, outcome: "Future[_Made]", devices: int) -> float:
        """Waits until a split is made, or has failed. Returns the session's deadline in seconds."""
        session = self._session()
        limit_s = 3 * session.settings.join_deadline_s  # `told` may take one, and joining a set of hosts two
        try:
            outcome.exception(limit_s)
        except TimeoutError:
            raise JoinError(
                f"This process has {devices} devices, but within {limit_s:g} s not all of them began collective number "
                f"{number} of a new group of devices. Let each program run on all devices of the process."
            ) from None
        return session.settings.deadline_s

    def _make(self, number: int, calls: list[splits.Call]) -> _Made:
        session = self._session()
        if session.error is not None:
            raise session.error
        if self._shared is None:
            self._shared = _Shared(session)
        shared = self._shared
        own = json.dumps([calls, shared.address])
        ranks = range(session.world_size)
        said = {0: own} if len(ranks) == 1 else told(_WHAT, own, ranks, JoinError, session.settings.join_deadline_s)
        everything = {rank: json.loads(text) for rank, text in said.items()}
        if number == 0:
            shared.channels.set_peers({rank: address for rank, (_, address) in everything.items()})
        try:
            groups = splits.groups(number, {rank: calls for rank, (calls, _) in everything.items()})
        except ValueError as error:
            raise ProgramMismatchError(
                f"The hosts don't begin the same collective: {error}. Run the same program on all hosts."
            ) from error
        own_groups = {color: group for color, group in groups.items() if session.rank in group.hosts}
        self._groups |= {group.id: group for group in own_groups.values()}
        return shared.with_collectives(own_groups)

    # Messages.

    def send(self, group: int, own_index: int, to_index: int, tag: int, data: memoryview, request: Any) -> None:
        assert self._shared is not None
        self._shared.channels.send(self._groups[group], own_index, to_index, tag, data, request)

    def receive(self, group: int, own_index: int, from_index: int, tag: int, buffer: memoryview, request: Any) -> None:
        assert self._shared is not None
        self._shared.channels.receive(self._groups[group], own_index, from_index, tag, buffer, request)

    # Waits.

    def stalled(self, group: int, own_index: int, number: int, what: str, waited_s: float) -> tuple[str, str] | None:
        """Returns why a call waits in vain, if that is known (`MpiServer.stalled`)."""
        shared = self._shared
        assert shared is not None
        wait = Wait(group, number, what)
        failure = shared.failure or shared.waits.stalled(self._groups[group].host_set, own_index, wait, waited_s)
        if failure is None:
            return None
        shared.fail(failure)
        return failure.kind, failure.message

    def end(self) -> None:
        """JAX ends, as Python does, after which nothing reaches this server. A session that is open sees to it that
        what the program has dispatched is over by then; but the first collective may be on its way to open one."""
        if self._shared is None and process.backend_exists():
            with suppress(ConfigError):  # then collectives have failed at once
                settings, _ = config.resolve({}, process_in_cluster=process.in_cluster)
                limit_s = 3 * settings.join_deadline_s
                wait_for_arrays(time.monotonic() + limit_s, lambda: False)
                wait_for_executions(limit_s)
        session = current()
        if session is not None:  # it may have been opened too late to be told of the end
            session.at_exit()


class _Shared:
    """All groups of a process share its session, and these connections of it.

    Attributes:
      address: where other hosts reach the channels.
    """

    def __init__(self, session: Session):
        settings = session.settings
        self.session, self._control = session, session.control
        self._loop = Loop() if self._control is None else self._control[0].loop
        key = None if self._control is None else self._control[0].key
        own_host = "127.0.0.1" if self._control is None else self._control[1].host.shards[0].own_host
        job = settings.job or ""
        self.channels = Channels(self._loop, session.rank, job, key, settings.join_deadline_s, self.fail)
        self.waits = Waits(session.rank, job, settings.warn_s)
        self._transports: dict[tuple[int, ...], Any] = {}
        session.closers.append(self._close)
        self.address = self.channels.start(own_host)

    def with_collectives(self, groups: dict[int, splits.Group]) -> _Made:
        """Joins what isn't joined yet. All hosts of a set come to it in the same order, as all have the same groups."""
        for hosts in sorted({group.host_set for group in groups.values()}):
            if len(hosts) > 1 and hosts not in self._transports:
                if self._control is None:
                    raise ClosedError("The session is shut down.")
                control, ranks = self._control
                self._transports[hosts] = control.join_hosts(ranks, hosts)
        return {
            color: (group, self._transports.get(group.host_set) or _native.LocalCollective())
            for color, group in groups.items()
        }

    @property
    def failure(self) -> Failure | None:
        error = self.session.error
        return None if error is None else Failure(type(error).__name__, str(error), getattr(error, "ranks", ()))

    def fail(self, failure: Failure) -> None:
        """A call or a message can't go on: nothing of the session can."""
        self.channels.fail(failure)
        if self._control is not None:
            control, ranks = self._control
            control.fail(ranks, failure)

    def _close(self) -> None:
        self.channels.close()
        if self._control is None:
            self._loop.close()


def _rank_and_world_size() -> tuple[int, int]:
    """Returns what `jax_passing.init` would find, too: those of jax.distributed, or of a single process."""
    found = process.in_cluster()
    return (0, 1) if found is None else found[:2]


def _check(settings: Settings) -> None:
    """Raises ConfigError if JAX's collectives can't go over a session with these settings."""
    rank, world_size = _rank_and_world_size()
    if (settings.rank, settings.world_size) != (rank, world_size):
        raise ConfigError(
            f"JAX's collectives go over the session's hosts, so each process is one: this is process {rank} of "
            f"{world_size} of jax.distributed, but rank {settings.rank} of {settings.world_size} of the session. Let "
            "jax_passing find both there: set neither rank nor world_size. And name a switch, if there is none "
            "(JAX_PASSING_SWITCH=HOST:PORT)."
        )
    if settings.world_size_min is not None:
        raise ConfigError(
            "JAX's collectives can't go over an elastic session: XLA's programs are made for one number of processes. "
            "Leave out world_size_min."
        )


_native.serve_mpi(Server())
