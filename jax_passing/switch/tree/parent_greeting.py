"""A rack's switch finds out first on each connection to its parent who answers there, of which version, with which
key."""

import ssl
from collections.abc import Callable

import msgspec

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.outside import Connection, Outside, Timer
from jax_passing.protocol.packet import PORT
from jax_passing.switch.jobs.admission import RefusalError

CONNECT_TIMEOUT_S = 5.0
GREETING_TIMEOUT_S = 5.0


class ParentGreeting:
    """A greeting lasts from the opening of the connection until the parent has greeted us, or the connection ends.

    Attributes:
      is_secured: whether the parent has proved that it has our key.
    """

    def __init__(
        self,
        connection: Connection,
        parent: str,
        own_name: str,
        job: str,
        key: bytes | None,
        outside: Outside,
        closed: Callable[[Exception | None], None],
    ):
        """`parent`, `own_name`: the addresses of both switches, for people. `key`: the job's, if this switch has one.
        `closed`: the conversation's, which is called with a TimeoutError when the parent says nothing for too long."""
        self._connection = connection
        self._parent, self._own_name = parent, own_name
        self._job, self._key = job, key
        self._outside = outside
        self._closed = closed
        self.is_secured = False
        self._silence: Timer | None = None
        self._expect_more()

    def _expect_more(self) -> None:
        self.end()
        self._silence = self._outside.call_later(GREETING_TIMEOUT_S, lambda: self._closed(TimeoutError()))

    def end(self) -> None:
        """Ends the wait for the parent to say more."""
        if self._silence is not None:
            self._silence.cancel()

    def secured(self) -> None:
        self.is_secured = True

    def heard(self, line: bytes) -> messages.Hello | None:
        """Returns the parent's greeting, if this line is the one that counts. Where we have a key, it comes from
        whoever has proved to have the same.

        Raises:
          RefusalError: the two switches don't suit each other, however often we try.
          OSError: the parent sends us away. Before it has proved who it is that may be anybody's word, so we try again.
          msgspec.DecodeError: no switch of ours answers there.
        """
        self._expect_more()
        try:
            message = messages.decode_from_parent(line)
        except messages.ForeignVersionError as error:
            raise self._other_version(error.version) from error
        match message:
            case messages.Hello(version) if version != messages.PROTOCOL_VERSION:
                raise self._other_version(version)
            case messages.Hello() if self.is_secured or (self._key is None and not message.secured):
                self.end()
                return message
            case messages.Hello(secured=True) if self._key is not None:
                pass  # it hadn't heard our handshake yet, and closes the connection; or it says first that it is full
            case messages.Hello(secured=secured):
                one, other = (self._parent, f"the one at {self._own_name}")[:: 1 if secured else -1]
                raise RefusalError(
                    f"Of the switches, {one} has a key, and {other} has none: start both with the same --key-file."
                )
            case messages.Refused(_, text):
                raise ConnectionRefusedError(f"it says: {text}")
            case _:
                raise msgspec.DecodeError("what answers there is no jax_passing switch")
        return None

    def _other_version(self, version: int) -> RefusalError:
        # So that its log has it, too. Nobody has proved to be the parent: our secret instance isn't said.
        instance = f"{self._outside.random_bits(128):032x}"
        own_version = messages.PROTOCOL_VERSION
        self._connection.send(messages.RackJoin(own_version, self._job, instance, self._own_name, PORT))
        own = f"the switch at {self._own_name}"
        return RefusalError(protocol_difference(self._parent, version, own, own_version, "that switch"))


def problem_of(error: Exception | None, greeting: ParentGreeting | None) -> str:
    """Says, for people, with what a connection to a parent has ended. `greeting`: if it was open."""
    if isinstance(error, ssl.SSLError) and greeting is not None and not greeting.is_secured:
        return f"it doesn't have the same key: start all switches of a tree with the same --key-file ({error})"
    if error is None:
        return "it closed the connection"
    if isinstance(error, TimeoutError):
        return "it was silent for too long"
    return str(error)
