"""All groups of devices of a process share its session, its channels, and what sums over each set of hosts."""

import hashlib
import threading
from typing import Any

import jax

from jax_passing import _native
from jax_passing._compat import process
from jax_passing.config import Settings
from jax_passing.errors import ClosedError, ConfigError, Failure, JoinError, PassingError, failure_of
from jax_passing.for_jax.channels import Channels
from jax_passing.for_jax.opening import Once
from jax_passing.for_jax.waits import Waits
from jax_passing.host.control.loop import Loop
from jax_passing.host.init import init_for_jax
from jax_passing.host.processes import told


class Shared:
    """One process has one.

    Attributes:
      host_of: by the id of a device of any process, the rank of its host.
    """

    def __init__(self) -> None:
        """Opens the session, unless one is open, and waits for all processes to do so. Raises PassingError."""
        self.session = init_for_jax(_check)
        session, settings = self.session, self.session.settings
        self.host_of = {device.id: device.process_index for device in jax.devices("cpu")}
        self._lock = threading.Lock()
        self._transports: dict[tuple[int, ...], Once[Any]] = {}
        self._control = session.control
        self._loop = Loop() if self._control is None else self._control[0].loop
        # The switch knows the job's key, and may be a router on the way between hosts.
        key = None if self._control is None else self._control[0].hosts_key or self._control[0].key
        own_host = "127.0.0.1" if self._control is None else self._control[1].host.shards[0].own_host
        job = settings.job or ""
        world_size, deadline_s = session.world_size, settings.join_deadline_s
        self.channels = Channels(self._loop, session.rank, world_size, job, key, deadline_s, self.fail)
        session.closers.append(self._close)
        try:
            address, run = self.channels.start(own_host), ""
            if world_size > 1:
                what = "their first collective (jax_passing.use_for_jax)"
                addresses = told(what, address, range(world_size), JoinError, deadline_s)
                self.channels.set_peers(addresses)
                run = hashlib.sha256(repr(sorted(addresses.items())).encode()).hexdigest()
            self.waits = Waits(session.rank, job, settings.warn_s, key, run)
        except BaseException as error:
            cause = session.error or error  # the missing host may have told why
            self.fail(_failure_of_any(cause))
            raise cause from None

    def collective(self, hosts: tuple[int, ...]) -> Any:
        """Returns the transport that sums over these hosts, which include this one. Waits for them the first time."""
        if len(hosts) == 1:
            return _native.LocalCollective()
        with self._lock:
            transport = self._transports.setdefault(hosts, Once(lambda: self._join(hosts)))
        return transport.get()

    def _join(self, hosts: tuple[int, ...]) -> Any:
        if self._control is None:
            raise ClosedError("The session is shut down.")
        control, ranks = self._control
        try:
            return control.join_hosts(ranks, hosts)
        except BaseException as error:
            self.fail(_failure_of_any(error))  # hosts that wait for this one elsewhere need not wait for the deadline
            raise

    @property
    def failure(self) -> Failure | None:
        error = self.session.error
        return None if error is None else failure_of(error)

    def fail(self, failure: Failure) -> None:
        """Fails the session: where a call or a message can't go on, nothing can."""
        self.channels.fail(failure)
        if self._control is not None:
            control, ranks = self._control
            control.fail(ranks, failure)

    def _close(self) -> None:
        self.channels.close()
        if self._control is None:
            self._loop.close()


def _failure_of_any(error: BaseException) -> Failure:
    if isinstance(error, PassingError):
        return failure_of(error)
    return Failure(PassingError.__name__, f"{type(error).__name__}: {error}")  # of the system, as of too many files


def rank_and_world_size() -> tuple[int, int]:
    """Returns what `jax_passing.init` would find, too: those of jax.distributed, or of a single process."""
    found = process.in_cluster()
    return (0, 1) if found is None else found[:2]


def _check(settings: Settings) -> None:
    """Raises ConfigError if JAX's collectives can't go over a session with these settings."""
    rank, world_size = rank_and_world_size()
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
