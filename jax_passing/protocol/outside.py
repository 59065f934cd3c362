"""What the control plane needs of the world: time, chance and connections.

The control plane itself does no I/O. `control_server.py` runs it in an event loop; a simulator of the tests runs whole
trees of switches from a seed.
"""

from collections.abc import Callable
from typing import Protocol

from jax_passing.protocol import control_messages as messages


class UnreadError(OSError):
    """The other doesn't read what it is sent."""

    def __init__(self) -> None:
        super().__init__("stopped reading")


class Connection(Protocol):
    """Our end of a stream to a host or to another switch."""

    @property
    def host(self) -> str:
        """The other's IP address."""

    @property
    def name(self) -> str:
        """The same with the port, for people."""

    @property
    def own_host(self) -> str:
        """Ours, as the other knows it."""

    @property
    def own_name(self) -> str:
        """Ours with the port, for people."""

    @property
    def link_gbit(self) -> float | None:
        """Rate of our network card; None if it isn't known."""

    def send(self, message: messages.Message) -> bool:
        """Never waits. False if the other has stopped reading: then the connection is given up. Nothing is sent between
        `secure` and `secured`: it would go in the clear, and nobody could know whose word it is."""

    def secure(self, key: bytes) -> None:
        """From the next line that is heard on, what goes either way is encrypted, and both have proved that they know
        the key: the conversation then hears `secured`, or it is closed with an ssl.SSLError."""

    def give_up(self) -> None:
        """Closes at once: what wasn't sent yet is lost."""

    def close(self) -> None:
        """After what was sent."""


class Conversation(Protocol):
    """Our part in what is said over one connection."""

    @property
    def line_bytes_max(self) -> int:
        """How long a line may be by now; a longer one ends the connection."""

    def opened(self, connection: Connection) -> None:
        """Called first, unless the other couldn't be reached."""

    def heard(self, line: bytes) -> None:
        """The other said this. Lines may still come after we have closed the connection."""

    def secured(self) -> None:
        """What was asked of the connection's `secure` is done."""

    def closed(self, error: Exception | None) -> None:
        """Called once and last, whoever closed the connection.

        `error` is None if it ended well, a msgspec.DecodeError if what came was no line, an OSError (a TimeoutError
        among them) if the connection broke or was never there, UnreadError if too much of what we sent was unread,
        and a ValueError if there can't be such an address.
        """


class Timer(Protocol):
    def cancel(self) -> None:
        """Once it has rung this does nothing."""


class Outside(Protocol):
    def now(self) -> float:
        """In seconds, since any moment. Never goes back."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...

    def random_bits(self, count: int) -> int:
        """That nobody can guess."""

    def connect(self, address: tuple[str, int], timeout_s: float, conversation: Conversation) -> None:
        """Tells the conversation how it went, later."""
