"""TLS over a connected socket, for one thread that receives and several that send, all of which block.

An ssl.SSLSocket isn't made for that: its OpenSSL object must not be used by two threads at once, and a thread that
receives is in it until something comes. Here the threads wait in the plain socket, and take turns at the object.
"""

import socket
import ssl
import threading

_READ_BYTES = 1 << 16


class TlsSocket:
    """As much of a socket's interface as a control connection needs. Raises OSError, an ssl.SSLError among them."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext):
        """Does the handshake, as the client."""
        self._socket = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=False)
        self._turn = threading.Lock()  # at the three above
        self._sending = threading.Lock()  # so that what they made leaves in order
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._socket.sendall(self._outgoing.read())
                self._take(self._socket.recv(_READ_BYTES))
        self._socket.sendall(self._outgoing.read())

    def _take(self, encrypted: bytes) -> None:
        if encrypted:
            self._incoming.write(encrypted)
        else:
            self._incoming.write_eof()

    def recv(self, bytes_max: int) -> bytes:
        """Empty if the other has closed the connection."""
        while True:
            with self._turn:
                try:
                    return self._tls.read(bytes_max)
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""
            encrypted = self._socket.recv(_READ_BYTES)
            with self._turn:
                self._take(encrypted)

    def sendall(self, data: bytes) -> None:
        with self._sending:
            with self._turn:
                self._tls.write(data)
                encrypted = self._outgoing.read()
            self._socket.sendall(encrypted)

    def settimeout(self, timeout_s: float | None) -> None:
        self._socket.settimeout(timeout_s)

    def gettimeout(self) -> float | None:
        return self._socket.gettimeout()

    def fileno(self) -> int:
        """What can be read there is encrypted, and may be less than a record."""
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()
