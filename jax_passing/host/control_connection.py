"""A control connection blocks its thread, for callers that speak with a switch without a session."""

import queue
import time
from collections.abc import Callable

from jax_passing.config import address_text
from jax_passing.errors import PassingError, SwitchUnreachableError
from jax_passing.host.contact import CONNECT_TIMEOUT_S, Contact, Redial
from jax_passing.host.loop import Loop
from jax_passing.protocol import control_messages as messages


class ControlConnection:
    """The connection is made by calling the switch: once or, with a deadline, until it greets. Raises what ends a join.

    Attributes:
      hello: the greeting.
    """

    hello: messages.Hello

    def __init__(self, address: tuple[str, int], *, key: bytes | None, job: str, deadline_s: float | None = None):
        self._address, self._key, self._job = address, key, job
        self._received: queue.SimpleQueue[messages.FromSwitch | Exception] = queue.SimpleQueue()
        self._is_once = deadline_s is None
        self._loop = Loop()
        try:
            self.hello = self._loop.wait(lambda *outcomes: self._begin(deadline_s or CONNECT_TIMEOUT_S, *outcomes))
        except BaseException:
            self._loop.close()
            raise

    def _begin(
        self, deadline_s: float, greeted: Callable[[messages.Hello], None], failed: Callable[[Exception], None]
    ) -> None:
        self._greeted, self._failed = greeted, failed
        self._redial = Redial(self._loop, address_text(*self._address), deadline_s, self._call)
        self._redial.call()

    def _call(self, timeout_s: float) -> None:
        self._contact = Contact(self._loop, self._address, self, key=self._key, job=self._job, timeout_s=timeout_s)

    # The contact tells this.

    def greeted(self, hello: messages.Hello) -> None:
        self._greeted(hello)

    def heard(self, message: messages.FromSwitch) -> None:
        self._received.put(message)

    def lost(self, error: Exception) -> None:
        if self._contact.has_greeted:
            self._received.put(error)
        elif self._is_once and not isinstance(error, PassingError):
            self._failed(SwitchUnreachableError(f"No switch answered at {self._contact.name} ({error})."))
        elif (problem := self._redial.failed(error)) is not None:
            self._failed(problem)

    # For the thread that blocks.

    @property
    def switch_host(self) -> str:
        return self._contact.switch_host

    @property
    def own_host(self) -> str:
        return self._contact.own_host

    def send(self, message: messages.Message) -> None:
        self._loop.call(self._contact.send, message)

    def receive(self, until: float) -> messages.FromSwitch:
        """Returns the next message. Raises TimeoutError at `until` (monotonic), or OSError (ConnectionError) or
        msgspec.DecodeError if the connection is of no use any more."""
        left_s = until - time.monotonic()
        try:
            received = self._received.get(timeout=left_s)
        except (queue.Empty, ValueError):  # even if messages come all the time
            raise TimeoutError("timed out") from None
        if isinstance(received, Exception):
            self._received.put(received)
            raise received
        return received

    def hang_up(self) -> None:
        """Hangs up after what was sent."""
        self._loop.call(self._contact.close)

    def close(self) -> None:
        self.hang_up()
        self._loop.close()
