"""Both ends of a control connection need this of the world: time, chance and connections.

Neither the control plane of a switch nor the control side of a host does I/O itself. `server/control_server.py` and
`host/control/loop.py` run them in event loops; a simulator of the tests runs whole clusters from a seed.
"""

from collections.abc import Callable
from typing import Protocol

from jax_passing.protocol import control_messages as messages


class UnreadError(OSError):
    """The other end doesn't read."""

    def __init__(self) -> None:
        super().__init__("stopped reading")


class Connection(Protocol):
    """This is our end of a stream to a host or to another switch."""

    @property
    def host(self) -> str:
        """Returns the other's IP address."""

    @property
    def name(self) -> str:
        """Returns the same with the port, for people."""

    @property
    def own_host(self) -> str:
        """Returns our IP address, as the other knows it."""

    @property
    def own_name(self) -> str:
        """Returns ours with the port, for people."""

    @property
    def link_gbit(self) -> float | None:
        """Returns the rate of our network card; None if it isn't known."""

    def send(self, message: messages.Message) -> bool:
        """Sends it, and never waits. Returns False if the other has stopped reading: then the connection is given up.
        Nothing is sent amid a handshake: it would go in the clear, and nobody could know whose word it is."""

    def give_up(self) -> None:
        """Closes at once: unsent bytes are lost."""

    def close(self) -> None:
        """Closes after what was sent."""


class Conversation(Protocol):
    """This is our part in what is said over one connection."""

    @property
    def line_bytes_max(self) -> int:
        """Says how long a line may be by now; a longer one ends the connection."""

    def opened(self, connection: Connection) -> None:
        """Called first, unless the other couldn't be reached."""

    def heard(self, line: bytes) -> None:
        """Hears what the other said. Lines may still come after we have closed the connection."""

    def secured(self) -> None:
        """Is called when both have proved that they know the job's key, and both directions are encrypted. What was
        heard before came in the clear."""

    def closed(self, error: Exception | None) -> None:
        """Called once and last, whichever end closed the connection.

        `error` is None if it ended well, a msgspec.DecodeError if the bytes were no line, an OSError (a TimeoutError
        among them) if the connection broke or was never there, UnreadError if too many of our bytes were unread,
        and a ValueError if there can't be such an address.
        """


class Callee(Conversation, Protocol):
    """This is the part of the called end, which finds out by the first byte that comes whether the caller speaks
    TLS."""

    def handshake_begins(self) -> bool:
        """Is called when the caller speaks TLS. Says whether it may; if not, the connection is over."""

    def key_of(self, job: str) -> bytes | None:
        """The caller wants to prove that it knows the key of this job, which is returned. The connection is closed with
        an ssl.SSLError if it doesn't, or if there is none."""


class Timer(Protocol):
    def cancel(self) -> None:
        """Keeps it from ringing; once it has rung this does nothing."""


class Outside(Protocol):
    def now(self) -> float:
        """Returns seconds since any moment, and never goes back."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...

    def random_bits(self, count: int) -> int:
        """Returns bits that nobody can guess."""

    def connect(
        self, address: tuple[str, int], timeout_s: float, conversation: Conversation, job: str, key: bytes | None
    ) -> None:
        """Tells the conversation how it went, later. With the key of the job the connection is by TLS. If the other
        answers in the clear all the same, the conversation hears it, and nothing more is sent.

        Raises:
          ConfigError: the job's name is too long to have a key.
        """
