"""A TCP connection of the control plane's event loop: to a host, to a rack's switch, or to the parent."""

import asyncio
import ipaddress

import msgspec

from jax_passing.config import address_text
from jax_passing.protocol import control_messages as messages

# A peer that doesn't read: relays pile up in our memory.
UNSENT_BYTES_MAX = 8 * messages.RELAY_BYTES_MAX


def _plain(host: str) -> str:
    """IPv4 as such, though a dual-stack socket reports ::ffff:10.0.0.1."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or host)


class StreamConnection:
    """Its sending end; see epochs.Connection.

    Attributes:
      gave_up: the peer asks and doesn't read the answers, or has nothing to say.
    """

    def __init__(self, writer: asyncio.StreamWriter):
        self.writer = writer
        self.gave_up = False
        # No name: gone before we looked.
        peer = writer.get_extra_info("peername") or ("0.0.0.0", 0)
        own = writer.get_extra_info("sockname") or ("0.0.0.0", 0)
        self.host, self.own_host = _plain(peer[0]), _plain(own[0])
        self.name, self.own_name = address_text(self.host, peer[1]), address_text(self.own_host, own[1])

    def send(self, message: messages.Message) -> bool:
        if self.writer.is_closing():
            return True
        self.writer.write(messages.encode(message))
        return self.writer.transport.get_write_buffer_size() <= UNSENT_BYTES_MAX

    def answer(self, message: messages.Message) -> None:
        """Sends what the peer has asked for. Gives up one that doesn't read it."""
        if not self.send(message):
            self.give_up()

    def give_up(self) -> None:
        """Closes at once: what wasn't sent yet is lost."""
        self.gave_up = True
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


async def read_line(reader: asyncio.StreamReader) -> bytes | None:
    """None at the end. The reader's limit is RELAY_LINE_BYTES_MAX. Raises msgspec.DecodeError."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise msgspec.DecodeError("the connection ended inside a line") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise msgspec.DecodeError("a line is too long") from error
