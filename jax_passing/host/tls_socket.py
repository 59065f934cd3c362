"""TLS over a connected socket, for one thread that receives and several that send, all of which block.

An ssl.SSLSocket isn't made for that: its OpenSSL object must not be used by two threads at once, and a thread that
receives is in it until something comes. Here the threads wait in the plain socket, and take turns at the object.
"""

import select
import socket
import threading
import time

from jax_passing.protocol.secure_channel import Channel, is_record

_READ_BYTES = 1 << 16


class TlsSocket:
    """Offers what a control connection needs of a socket. Raises OSError, as which ssl.SSLError counts, too."""

    def __init__(self, connected: socket.socket, channel: Channel, timeout_s: float):
        """Does the handshake, as the caller, within this time.

        Attributes:
          in_clear: what the other says instead, in plain text; empty after a handshake.
        """
        self._socket = connected
        self.settimeout(timeout_s)
        until = self._until()
        self._channel = channel
        self._turn = threading.Lock()  # to use it
        self._sending = threading.Lock()  # so that what several threads encrypt leaves in that order
        self._heard = bytearray()
        self.in_clear = b""
        received = b""
        while not channel.is_open:
            self._socket.sendall(channel.take_outgoing())
            piece = self._receive(until)
            if not piece:
                raise ConnectionResetError("the other end hung up in the handshake")
            if not received and not is_record(piece[0]):
                self.in_clear = piece
                return
            received = piece
            self._heard += channel.receive(received)
        self._socket.sendall(channel.take_outgoing())

    def _until(self) -> float | None:
        """The time at which a call that begins now has lasted too long; None if it may last."""
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _receive(self, until: float | None) -> bytes:
        """Returns what comes, which is encrypted and may be a few bytes of a record. The socket's own timeout begins
        anew with each of them, so it would be no limit."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        if not poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError("timed out")
        return self._socket.recv(_READ_BYTES)

    def recv(self, bytes_max: int) -> bytes:
        """Returns nothing if the other has closed the connection. Raises TimeoutError if nothing comes in time."""
        until = self._until()
        while not self._heard:
            encrypted = self._receive(until)
            if not encrypted:
                return b""
            with self._turn:
                self._heard += self._channel.receive(encrypted)
        heard = bytes(self._heard[:bytes_max])
        del self._heard[:bytes_max]
        return heard

    def sendall(self, data: bytes) -> None:
        with self._sending:
            with self._turn:
                self._channel.send(data)
                encrypted = self._channel.take_outgoing()
            self._socket.sendall(encrypted)

    @property
    def has_more(self) -> bool:
        """Whether something that was received is left, so that `fileno` doesn't tell of it."""
        return bool(self._heard)

    def settimeout(self, timeout_s: float | None) -> None:
        """Each call may take so long, whatever comes meanwhile."""
        self._timeout_s = timeout_s
        self._socket.settimeout(timeout_s)

    def gettimeout(self) -> float | None:
        return self._timeout_s

    def fileno(self) -> int:
        """What can be read there is encrypted, and may be less than a record."""
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()
