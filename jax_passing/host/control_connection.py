"""A host's end of the control connection: blocking, one message a line, safe to send on from several threads."""

import logging
import select
import socket
import ssl
import threading
import time
from contextlib import suppress

import msgspec

from jax_passing.config import address_text
from jax_passing.errors import AuthenticationError, JoinError, SwitchUnreachableError
from jax_passing.host.tls_socket import TlsSocket
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.framing import Lines
from jax_passing.protocol.keys import HOW_TO_GET_A_KEY
from jax_passing.protocol.secure_channel import Channel

log = logging.getLogger("jax_passing")

CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.25


class ControlConnection:
    """Raises OSError (TimeoutError, ConnectionError) and msgspec.DecodeError when it is of no use any more."""

    def __init__(self, connected: socket.socket):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: socket.socket | TlsSocket = connected
        self._lines = Lines()
        self._send_lock = threading.Lock()
        self.switch_host: str = connected.getpeername()[0]
        self.own_host: str = connected.getsockname()[0]

    def secure(self, key: bytes, job: str, until: float) -> bool:
        """Encrypts the connection if both know the job's key. Raises ssl.SSLError if the switch doesn't know it.
        Returns False if the switch answers in plain text, which is then received."""
        assert isinstance(self._socket, socket.socket)
        secured = TlsSocket(self._socket, Channel.caller(job, key), until - time.monotonic())
        if secured.in_clear:
            self._lines.add(secured.in_clear)
            return False
        self._socket = secured
        return True

    def set_timeout(self, timeout_s: float) -> None:
        """Limits how long a send or receive takes. The switch echoes heartbeats, so a live one is never silent long."""
        self._socket.settimeout(timeout_s)

    def send(self, message: messages.Message) -> None:
        line = messages.encode(message)
        with self._send_lock:
            self._socket.sendall(line)

    def receive(self, until: float | None = None) -> messages.FromSwitch:
        """The next message. Raises TimeoutError at `until` (monotonic), even if messages or pieces of one come all the
        time. The time that is left then becomes the timeout."""
        self._expect_until(until)
        while (line := self._lines.next(messages.RELAY_LINE_BYTES_MAX)) is None:
            piece = self._socket.recv(65536)
            if not piece:
                raise ConnectionError("the connection was closed")
            self._lines.add(piece)
            self._expect_until(until)
        return messages.decode_from_switch(line)

    def _expect_until(self, until: float | None) -> None:
        if until is not None:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left_s)

    def wait(self, fileno: int) -> bool:
        """Waits until this file descriptor or the connection can be read. Whether it is this, and not the connection.

        Raises TimeoutError after the timeout of a receive.
        """
        if self._lines.has_line or (isinstance(self._socket, TlsSocket) and self._socket.has_more):
            return False
        timeout_s = self._socket.gettimeout()
        poll = select.poll()
        for one in (self._socket.fileno(), fileno):
            poll.register(one, select.POLLIN)
        readable = poll.poll(None if timeout_s is None else timeout_s * 1000)
        if not readable:
            raise TimeoutError("timed out")
        return all(ready == fileno for ready, _ in readable)

    def hang_up(self) -> None:
        """Tells the switch, even if a forked child holds the descriptor too, and wakes a thread that receives."""
        with suppress(OSError):  # not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the descriptor; no thread may use it now. In a forked child it leaves the parent's connection alone."""
        self._socket.close()


def _connect_once(
    address: tuple[str, int], timeout_s: float, key: bytes | None, job: str
) -> tuple[ControlConnection, messages.Hello]:
    until = time.monotonic() + timeout_s
    try:
        connected = socket.create_connection(address, timeout=timeout_s)
    except socket.gaierror as error:
        raise OSError(f"the name {address[0]!r} can't be resolved: {error.strerror}") from error
    try:
        connection = ControlConnection(connected)
        is_secured = key is not None and _is_secured(connection, key, address_text(*address), job, until)
        hello = connection.receive(until)
        if isinstance(hello, messages.Refused):
            # Who says so hasn't proved anything, and a switch has room again soon: the caller tries again.
            raise ConnectionRefusedError(f"it says: {hello.message}")
        if not isinstance(hello, messages.Hello):
            raise msgspec.DecodeError("no greeting")
        if not is_secured:
            _check_plain(connection, hello, key, address_text(*address), job, until)
    except BaseException:
        connected.close()
        raise
    return connection, hello


def _check_plain(
    connection: ControlConnection, hello: messages.Hello, key: bytes | None, switch: str, job: str, until: float
) -> None:
    """Looks at a greeting in plain text. A host with a key doesn't join without it: somebody in between may have said
    that the switch wants none, or is of another version."""
    if hello.protocol_version != messages.PROTOCOL_VERSION:
        if key is None:
            return  # a join tells both sides what is wrong
        raise messages.ForeignVersionError(hello.protocol_version)
    if key is None and hello.secured:
        raise AuthenticationError(f"The switch at {switch} wants the key of job {job!r}. {HOW_TO_GET_A_KEY}")
    if key is not None and not hello.secured:
        raise AuthenticationError(
            f"This host has a key for job {job!r}, but the switch at {switch} wants none. Either it was started "
            "without --key-file, or somebody in between says so. Start it with its key, or run this job without "
            "JAX_PASSING_KEY_FILE if you trust the network."
        )
    if key is not None:
        # It hadn't heard our handshake yet, and hangs up; or it is full, and says so next.
        refused = connection.receive(until)
        if not isinstance(refused, messages.Refused):
            raise msgspec.DecodeError(f"{type(refused).__name__} instead of a handshake")
        raise ConnectionRefusedError(f"it says: {refused.message}")


def _is_secured(connection: ControlConnection, key: bytes, switch: str, job: str, until: float) -> bool:
    try:
        return connection.secure(key, job, until)
    except ssl.SSLCertVerificationError as error:  # other errors of TLS may pass, as when the switch was stopped
        raise AuthenticationError(
            f"The switch at {switch} doesn't have the key of job {job!r} that this host has, or isn't that switch "
            f"({error.reason or error}). {HOW_TO_GET_A_KEY}"
        ) from error


def connect_now(
    address: tuple[str, int], *, key: bytes | None = None, job: str = ""
) -> tuple[ControlConnection, messages.Hello]:
    """Does what `connect` does, but tries only once. Raises SwitchUnreachableError or AuthenticationError."""
    try:
        return _connect_once(address, CONNECT_TIMEOUT_S, key, job)
    except (OSError, msgspec.DecodeError) as error:
        raise SwitchUnreachableError(f"No switch answered at {address_text(*address)} ({error}).") from error


def connect(
    address: tuple[str, int], deadline_s: float, *, key: bytes | None = None, job: str = ""
) -> tuple[ControlConnection, messages.Hello]:
    """Connects to the switch, which may still be starting: retries until the deadline.

    Args:
      address: of the switch.
      deadline_s: how long to try.
      key: of the job, if this host has one.
      job: its name.

    Raises:
      SwitchUnreachableError: nobody answered, or not a switch of ours.
      AuthenticationError: only one of the two has a key, or they have different ones.
      JoinError: a switch of another version, whose greeting says too little.
    """
    until = time.monotonic() + deadline_s
    text = address_text(*address)
    warned = False
    while True:
        left_s = until - time.monotonic()
        try:
            return _connect_once(address, max(0.01, min(CONNECT_TIMEOUT_S, left_s)), key, job)
        except messages.ForeignVersionError as error:
            versions = error.version, "this host", messages.PROTOCOL_VERSION
            raise JoinError(protocol_difference(text, *versions, "this host")) from error
        except msgspec.DecodeError as error:
            raise SwitchUnreachableError(
                f"Something answers at {text}, but it is no jax_passing switch ({error}). Check the address, and that "
                "switch and hosts run the same version."
            ) from error
        except OSError as error:
            if left_s <= RETRY_S:
                raise SwitchUnreachableError(
                    f"No switch answered at {text} for {deadline_s:.1f} s ({error}). Is it running (`jax-passing "
                    f"switch --listen {text}`), is the address right, and does a firewall let TCP and UDP pass?"
                ) from error
            if not warned:
                log.warning("no switch at %s yet (%s); trying for %.0f s", text, error, left_s)
                warned = True
        time.sleep(RETRY_S)
