"""XLA's collectives on CPU need more than sums: groups of devices, messages, and an explanation of long waits.

C++ (xla_ffi/mpi) asks the server of this process, in XLA's threads.
"""

import os
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any, NamedTuple

import jax

from jax_passing import _native, config
from jax_passing._compat import process
from jax_passing.errors import ClosedError, ConfigError, PassingError
from jax_passing.for_jax import environment, groups
from jax_passing.for_jax.opening import Opening
from jax_passing.for_jax.shared import Shared, rank_and_world_size
from jax_passing.for_jax.use_for_jax import watch_xla
from jax_passing.for_jax.waits import Wait
from jax_passing.host.executions import wait_for_arrays, wait_for_executions
from jax_passing.host.session import current


class Split(NamedTuple):
    """A group as C++ has it (`MpiGroup`)."""

    id: int
    name: str
    hosts: tuple[int, ...]
    collective: Any
    deadline_s: float


class Server:
    """One process has one, as long as it lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening = Opening(Shared)
        self._splits: Counter[tuple[int, tuple[int, ...]]] = Counter()  # by a device's key and all devices of its group
        # As long as XLA's communicators: it keeps one for each group, and frees none before its client ends.
        self._groups: dict[int, groups.DeviceGroup] = {}

    def begin(self) -> tuple[int, int]:
        """Returns this process's rank, and how many there are. JAX has no devices yet. Raises ConfigError."""
        watch_xla()
        _have_threads_for_all_devices()
        rank, world_size = rank_and_world_size()
        self._opening.listen(rank, world_size)
        return rank, world_size

    # Groups.

    def split(self, color: int, key: int, devices: tuple[int, ...]) -> Split:
        """Returns the group of a device (`MpiServer.split`). Waits for the session and for all hosts of the group.

        Raises PassingError.
        """
        shared = self._opening.get()
        if current() is not shared.session:
            raise ClosedError("The session that JAX's collectives began with is over. Start the program again.")
        if shared.session.error is not None:
            raise shared.session.error
        if not devices:
            raise PassingError("This jaxlib didn't tell which devices make a collective. Try another version of it.")
        with self._lock:
            number = self._splits[key, devices]
            self._splits[key, devices] += 1
        made = groups.group(number, devices, shared.host_of)
        self._groups[made.id] = made
        collective = shared.collective(made.host_set)
        return Split(made.id, made.name, made.hosts, collective, shared.session.settings.deadline_s)

    # Messages.

    def send(self, group: int, own_index: int, to_index: int, tag: int, data: memoryview, request: Any) -> None:
        channels = self._opening.get().channels
        channels.send(self._groups[group], own_index, to_index, tag, data, request)

    def receive(self, group: int, own_index: int, from_index: int, tag: int, buffer: memoryview, request: Any) -> None:
        channels = self._opening.get().channels
        channels.receive(self._groups[group], own_index, from_index, tag, buffer, request)

    # Waits.

    def moved_bytes(self) -> int:
        return self._opening.get().channels.moved_bytes

    def stalled(self, group: int, own_index: int, number: int, what: str, still_s: float) -> tuple[str, str] | None:
        """Returns why a call waits in vain, if that is known (`MpiServer.stalled`)."""
        shared = self._opening.get()
        wait = Wait(group, number, what)
        failure = shared.failure or shared.waits.stalled(self._groups[group], own_index, wait, still_s)
        if failure is None:
            return None
        shared.fail(failure)
        return failure.kind, failure.message

    def end(self) -> None:
        """Waits, as JAX and Python end, until all executions that the program has dispatched are over: nothing reaches
        this server afterwards. A session that is open sees to that itself; but the first collective may be on its way
        to open one, here or in another process."""
        self._opening.end(_wait_for_dispatched)
        session = current()
        if session is not None:  # it may have been opened too late to be told of the end
            session.at_exit()


def _have_threads_for_all_devices() -> None:
    """Has XLA make enough threads, as it is about to make its pool."""
    asked = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    needed = environment.threads_needed(asked if asked >= 0 else environment.cpu_devices(os.environ))
    if needed > len(os.sched_getaffinity(0)):  # XLA makes this number by itself
        os.environ.setdefault(environment.THREADS, str(needed))


def _wait_for_dispatched() -> None:
    if process.backend_exists():
        with suppress(ConfigError):  # then collectives have failed at once
            settings, _ = config.resolve({}, process_in_cluster=process.in_cluster)
            limit_s = 3 * settings.join_deadline_s
            wait_for_arrays(time.monotonic() + limit_s, lambda: False)
            wait_for_executions(limit_s)


_native.serve_mpi(Server())
