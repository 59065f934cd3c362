"""A control connection blocks its thread, for callers that speak with a switch without a session."""

import queue
import time
from collections.abc import Callable
from typing import cast

from jax_passing.errors import PassingError, SwitchUnreachableError
from jax_passing.host.control.contact import Redial
from jax_passing.host.control.loop import Loop
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CONNECT_TIMEOUT_S, CallEvent, Greeted, Heard, Lost


class ControlConnection:
    """The connection is made by calling the switch: once or, with a deadline, until it greets. Raises what ends a join.

    Attributes:
      hello: the greeting.
    """

    hello: messages.Hello

    def __init__(self, address: tuple[str, int], *, key: bytes | None, job: str, deadline_s: float | None = None):
        self._received: queue.SimpleQueue[messages.FromSwitch | Exception] = queue.SimpleQueue()
        self._is_once = deadline_s is None
        self._loop = Loop()
        deadline_s = deadline_s or CONNECT_TIMEOUT_S
        self._calls = Redial(self._loop, address, self._on_event, job=job, key=key, deadline_s=deadline_s)
        try:
            self.hello = self._loop.wait(self._begin)
        except BaseException:
            self._loop.close()
            raise

    def _begin(self, greeted: Callable[[messages.Hello], None], failed: Callable[[Exception], None]) -> None:
        self._greeted, self._failed = greeted, failed
        self._calls.call()

    def _on_event(self, event: CallEvent) -> None:
        match event:
            case Greeted(hello):
                self._greeted(hello)
            case Heard(message):
                self._received.put(cast(messages.FromSwitch, message))  # a Contact decodes no other
            case Lost(error) if self._calls.contact.has_greeted:
                self._received.put(error)
            case Lost(error) if self._is_once and not isinstance(error, PassingError):
                switch = self._calls.contact.name
                advice = "Is one running, is the address right, and does a firewall let TCP pass?"
                self._failed(SwitchUnreachableError(f"No switch answered at {switch} ({error}). {advice}"))
            case Lost(error):
                if (problem := self._calls.failed(error)) is not None:
                    self._failed(problem)

    # For the thread that blocks.

    @property
    def switch_host(self) -> str:
        return self._calls.contact.connection.host

    @property
    def own_host(self) -> str:
        return self._calls.contact.connection.own_host

    def send(self, message: messages.Message) -> None:
        self._loop.call(self._calls.contact.send, message)

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
        self._loop.call(self._calls.close)

    def close(self) -> None:
        self.hang_up()
        self._loop.close()
