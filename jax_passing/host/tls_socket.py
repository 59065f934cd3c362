"""TLS over a connected socket, for one thread that receives and several that send, all of which block.

An ssl.SSLSocket isn't made for that: its OpenSSL object must not be used by two threads at once, and a thread that
receives is in it until something comes. Here the threads wait in the plain socket, and take turns at the object.
"""

import select
import socket
import ssl
import threading
import time

_READ_BYTES = 1 << 16


class TlsSocket:
    """Offers what a control connection needs of a socket. Raises OSError, as which ssl.SSLError counts, too."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, timeout_s: float):
        """Does the handshake, as the client, within this time."""
        self._socket = connected
        self.settimeout(timeout_s)
        until = self._until()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=False)
        self._turn = threading.Lock()  # to use the three above
        self._sending = threading.Lock()  # so that what several threads encrypt leaves in that order
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._socket.sendall(self._outgoing.read())
                self._take(self._receive(until))
        self._socket.sendall(self._outgoing.read())

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

    def _take(self, encrypted: bytes) -> None:
        if encrypted:
            self._incoming.write(encrypted)
        else:
            self._incoming.write_eof()

    def recv(self, bytes_max: int) -> bytes:
        """Returns nothing if the other has closed the connection. Raises TimeoutError if nothing comes in time."""
        until = self._until()
        while True:
            with self._turn:
                try:
                    return self._tls.read(bytes_max)
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""
            encrypted = self._receive(until)
            with self._turn:
                self._take(encrypted)

    def sendall(self, data: bytes) -> None:
        with self._sending:
            with self._turn:
                self._tls.write(data)
                encrypted = self._outgoing.read()
            self._socket.sendall(encrypted)

    @property
    def has_more(self) -> bool:
        """Whether something that was received is left, so that `fileno` doesn't tell of it."""
        with self._turn:
            return self._tls.pending() > 0 or self._incoming.pending > 0

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
