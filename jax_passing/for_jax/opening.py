"""All processes open the session together, when the first collective of any of them comes.

XLA lets a program run on a part of the processes: the others don't call us, and may be about to end. So a thread of
each process listens, by the coordinator of jax.distributed, whether one of them opens the session.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import jax

from jax_passing._compat.process import coordinator
from jax_passing.errors import PassingError
from jax_passing.host.processes import DEADLINE_S

log = logging.getLogger("jax_passing")

_OPENS = "jax_passing/for_jax/opens"
_ENDED = "jax_passing/for_jax/ended/"
_LOOK_MS = 500  # a thread that listens looks so often whether it is still to do so

T = TypeVar("T")


class Once(Generic[T]):
    """The first caller makes a value, for which the others wait. If it can't be made, all get the exception."""

    def __init__(self, make: Callable[[], T]):
        self._make, self._lock = make, threading.Lock()
        self._outcome: Future[T] = Future()

    def get(self) -> T:
        if self._lock.acquire(blocking=False):  # for good
            try:
                self._outcome.set_result(self._make())
            except BaseException as error:
                self._outcome.set_exception(error)
        return self._outcome.result()

    @property
    def is_begun(self) -> bool:
        return self._lock.locked()


class Opening(Generic[T]):
    """One process has one. `open_session` opens the session, and is called once; it returns what goes with it, too."""

    def __init__(self, open_session: Callable[[], T]):
        self._session = Once(open_session)
        self._listener: threading.Thread | None = None
        self._is_over = threading.Event()
        self._rank, self._world_size = 0, 1
        self._client: Any = None

    def listen(self, rank: int, world_size: int) -> None:
        """Has this process open the session as soon as another one does. Call it before JAX has
        devices, also when jax.distributed was initialized anew."""
        self._rank, self._world_size, self._client = rank, world_size, coordinator()
        if world_size > 1 and self._listener is None and not self._session.is_begun:
            self._listener = threading.Thread(target=self._listen, name="jax_passing-opening", daemon=True)
            self._listener.start()

    def get(self) -> T:
        """Returns what `open_session` does, and tells the others to open theirs. Each collective calls this."""
        if not self._session.is_begun and (client := self._coordinator()) is not None:
            client.key_value_set(_OPENS, "", allow_overwrite=True)
        return self._session.get()

    def _listen(self) -> None:
        while not self._is_over.is_set() and not self._session.is_begun:
            if self._is_told(_OPENS):
                with contextlib.suppress(PassingError):  # a collective of this process raises it
                    self._session.get()

    def _coordinator(self) -> Any:
        """Returns None if jax.distributed is shut down, or about to start anew: a process that asks a coordinator that
        isn't connected yet is killed by it."""
        client = coordinator()
        return client if client is self._client else None

    def _is_told(self, key: str) -> bool:
        """Returns whether a process has set this key; it waits a moment for that."""
        client = self._coordinator()
        try:
            if client is not None:
                client.blocking_key_value_get_bytes(key, _LOOK_MS)  # others may have written it, no text even
                return True
        except jax.errors.JaxRuntimeError as error:  # none has, or the coordinator is gone
            log.debug("%s isn't told yet: %s", key, error)
        self._is_over.wait(0.05)
        return False

    def end(self, wait_for_own: Callable[[], None]) -> None:
        """Keeps this process, which ends, until nobody can open the session any more: neither what this process has
        dispatched, for which `wait_for_own` waits, nor another one. If that is interrupted, the others don't wait for
        this process either."""
        try:
            if not self._session.is_begun:
                wait_for_own()
            if not (self._listener is None or self._is_over.is_set() or self._session.is_begun):
                self._await_others(time.monotonic() + DEADLINE_S)
        except BaseException:  # Ctrl-C
            self._tell_end()
            raise
        finally:
            self._is_over.set()
            if self._listener is not None:
                self._listener.join(DEADLINE_S)  # opening has deadlines of its own

    def _await_others(self, until: float) -> None:
        """The last process tells the one before it that it ends, and so on; the first one tells all."""
        if self._rank + 1 < self._world_size and not self._await(f"{_ENDED}{self._rank + 1}", until):
            return
        if self._tell_end():
            self._await(f"{_ENDED}0", until)

    def _tell_end(self) -> bool:
        client = self._coordinator()
        try:
            if client is not None:
                client.key_value_set(f"{_ENDED}{self._rank}", "", allow_overwrite=True)
                return True
        except jax.errors.JaxRuntimeError as error:
            log.debug("nobody is left to be told: %s", error)
        return False

    def _await(self, key: str, until: float) -> bool:
        while not self._is_told(key):
            if self._session.is_begun or self._coordinator() is None or time.monotonic() > until:
                return False
        return True
