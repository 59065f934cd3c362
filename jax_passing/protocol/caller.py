"""Hosts call their switches by this, and a rack's switch its parent: the caller dials, hears the greeting, proves the
job's key, and notices when the other end falls silent. This does no I/O."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from jax_passing.config import address_text
from jax_passing.errors import ConfigError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.lease import Lease
from jax_passing.protocol.outside import Connection, Outside, Timer

CONNECT_TIMEOUT_S = 5.0  # from the call to the greeting


@dataclass(frozen=True)
class Greeted:
    """The switch has greeted. This comes first, unless the call failed."""

    hello: messages.Hello


@dataclass(frozen=True)
class Heard:
    """The switch has said this."""

    message: messages.FromParent


@dataclass(frozen=True)
class Alive:
    """The switch has answered after `prove`."""


@dataclass(frozen=True)
class Lost:
    """The call has failed or ended. This comes at most once, and last, and not after `close`.

    Attributes:
      error: an OSError (TimeoutError if the switch was silent), a msgspec.DecodeError if what came is no message, or
        what the caller's `worded` makes of it.
    """

    error: Exception


CallEvent = Greeted | Heard | Alive | Lost


class KeyMismatchError(Exception):
    """One of caller and switch has a key, and the other has none."""

    def __init__(self, *, switch_has_key: bool):
        super().__init__("only one of both ends has a key")
        self.switch_has_key = switch_has_key


def _nobody(event: CallEvent) -> None: ...


class Caller(ABC):
    """A caller makes one connection to a switch by calling it. This is a Conversation (protocol/outside.py).

    Attributes:
      name: the switch's address, for people.
      job: whose key is proved, if there is one.
      has_greeted: the switch's greeting is here.
      has_answered: the switch has said something since `keep_alive`.
      is_secured: the switch has proved that it has our key.
      lease_s: how long either end may be silent, once the switch has greeted.
      token: the switch's name for this connection, from then on.
    """

    line_bytes_max = messages.RELAY_LINE_BYTES_MAX

    def __init__(
        self,
        outside: Outside,
        address: tuple[str, int],
        report: Callable[[CallEvent], None],
        *,
        job: str,
        key: bytes | None,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ):
        """Calls the switch.

        Args:
          report: takes what happens. It raises OSError or msgspec.DecodeError if the connection is of no use any more.
          key: the job's, if the caller has it.
          timeout_s: until the greeting is to be here.
        """
        self._outside, self._report, self.job, self._key = outside, report, job, key
        self.name = address_text(*address)
        self._connection: Connection | None = None
        self.has_greeted = self.has_answered = self.is_secured = self._is_over = False
        self._lease: Lease | None = None  # from `keep_alive` on
        self._proof: Lease | None = None  # from `prove` on, until it answers
        self.lease_s, self.token = 0.0, ""
        self._timer: Timer = outside.call_later(timeout_s, self._on_late)
        try:
            outside.connect(address, timeout_s, self, job, key)
        except ConfigError as error:
            self._timer.cancel()
            self._timer = outside.call_later(0, partial(self._end, error))

    @abstractmethod
    def decode(self, line: bytes) -> messages.FromParent:
        """Raises msgspec.DecodeError."""

    @abstractmethod
    def worded(self, error: Exception) -> Exception:
        """Returns what is reported in place of an error: how it is worded depends on who calls. A KeyMismatchError and
        a ForeignVersionError may be among them."""

    def to_foreign(self) -> messages.Message | None:
        """Returns what is said to a switch of another version, which is lost then. None: such a switch greets as any
        other, unless there is a key."""
        return None

    @property
    def connection(self) -> Connection:
        """Returns the connection, once the switch has greeted."""
        assert self._connection is not None
        return self._connection

    def send(self, message: messages.Message) -> bool:
        """Never waits. Returns False if the switch has stopped reading."""
        return self._connection is None or self._is_over or self._connection.send(message)

    def keep_alive(self, lease_max_s: float = float("inf")) -> None:
        """Says from now on that this end lives, which the switch echoes, and takes the switch for lost if it is silent
        for its lease, or for `lease_max_s`. May be called again."""
        if self._lease is None and not self._is_over:
            self._lease = Lease(self._outside, min(self.lease_s, lease_max_s), self._on_silence, self._beat)

    def prove(self, within_s: float) -> None:
        """Asks the switch for a sign of life: reports Alive, or that it is lost if it says nothing within this time, in
        which this process is awake. To be called after `keep_alive`."""
        if self._proof is None and not self._is_over:
            self._proof = Lease(self._outside, within_s, self._on_no_proof)
            self.send(messages.Heartbeat())

    def _on_no_proof(self) -> None:
        assert self._proof is not None
        self._end(TimeoutError(f"it didn't answer within {self._proof.lease_s:g} s"))

    @property
    def is_kept_alive(self) -> bool:
        return self._lease is not None

    def _beat(self) -> None:
        self.send(messages.Heartbeat())

    def _on_silence(self) -> None:
        assert self._lease is not None
        self._end(TimeoutError(f"it was silent for {self._lease.lease_s:g} s"))

    def _on_late(self) -> None:
        self._end(TimeoutError("timed out"))

    def close(self) -> None:
        """Hangs up, after what was sent."""
        self._stop()
        if self._connection is not None:
            self._connection.close()

    def _stop(self) -> None:
        self._is_over = True
        self._timer.cancel()
        for lease in (self._lease, self._proof):
            if lease is not None:
                lease.stop()
        self._lease = self._proof = None  # they lead back here
        self._report = _nobody  # that leads back here as well

    def _end(self, error: Exception) -> None:
        if self._is_over:
            return
        if isinstance(error, messages.ForeignVersionError) and (said := self.to_foreign()) is not None:
            self.send(said)
        report = self._report
        self._stop()
        if self._connection is not None:
            self._connection.give_up()
        report(Lost(self.worded(error)))

    # `outside` tells this of the connection.

    def opened(self, connection: Connection) -> None:
        if self._is_over:
            connection.give_up()
        else:
            self._connection = connection

    def heard(self, line: bytes) -> None:
        if self._is_over:
            return
        if self._lease is not None:
            self._lease.heard()
            self.has_answered = True
        try:
            message = self.decode(line)
            if self._proof is not None:
                self._proof.stop()
                self._proof = None
                self._report(Alive())
            if self._lease is not None and isinstance(message, messages.Heartbeat):
                return
            if self.has_greeted:
                self._report(Heard(message))
            else:
                self._on_greeting(message)
        except (msgspec.DecodeError, OSError, KeyMismatchError) as error:
            self._end(error)

    def _on_greeting(self, message: messages.FromParent) -> None:
        """Takes the first message, and what follows a greeting in the clear where there is a key: of that nothing
        counts, as its sender hasn't proved anything."""
        in_the_clear = self._key is not None and not self.is_secured
        if isinstance(message, messages.Refused):  # a switch has room again soon: it is called again
            raise ConnectionRefusedError(f"it says: {message.message}")
        if not isinstance(message, messages.Hello):
            raise msgspec.DecodeError("no greeting")
        if message.protocol_version == messages.PROTOCOL_VERSION:
            # Whoever has a key doesn't join without: somebody in between may have said that the switch wants none.
            if message.secured != (self._key is not None):
                raise KeyMismatchError(switch_has_key=message.secured)
        elif in_the_clear or self.to_foreign() is not None:  # else a join tells both sides what is wrong
            raise messages.ForeignVersionError(message.protocol_version)
        if not in_the_clear:
            self.has_greeted = True
            self._timer.cancel()
            self.lease_s, self.token = message.lease_s, message.token
            self._report(Greeted(message))

    def secured(self) -> None:
        self.is_secured = True

    def closed(self, error: Exception | None) -> None:
        is_told = isinstance(error, OSError | msgspec.DecodeError)
        self._end(error if error is not None and is_told else ConnectionError(error or "the connection was closed"))
