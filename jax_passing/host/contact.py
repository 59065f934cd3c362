"""A host calls a switch, by the job's key if there is one, and hears its greeting. This does no I/O."""

import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from jax_passing.config import address_text
from jax_passing.errors import AuthenticationError, ConfigError, JoinError, PassingError, SwitchUnreachableError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.keys import HOW_TO_GET_A_KEY
from jax_passing.protocol.lease import Lease
from jax_passing.protocol.outside import Connection, Outside, Timer

log = logging.getLogger("jax_passing")

CONNECT_TIMEOUT_S = 5.0  # from the call to the greeting
RETRY_S = 0.25
DEADLINE_GRACE_S = 5.0  # the switch keeps the deadlines, and knows who is missing


class Listener(Protocol):
    def greeted(self, hello: messages.Hello) -> None:
        """Is called first, unless the call failed. The switch may be of another version."""

    def heard(self, message: messages.FromSwitch) -> None: ...

    def lost(self, error: Exception) -> None:
        """Is called at most once, and last: with an OSError (TimeoutError if it was silent), a msgspec.DecodeError if
        what came is no message, an AuthenticationError, or a ConfigError. It isn't called after `close`."""


class Contact:
    """One connection to a switch is made by calling it. This is a Conversation (protocol/outside.py).

    Attributes:
      has_greeted: the switch's greeting is here.
      lease_s: how long either end may be silent, once the switch has greeted.
    """

    line_bytes_max = messages.RELAY_LINE_BYTES_MAX

    def __init__(
        self,
        outside: Outside,
        address: tuple[str, int],
        listener: Listener,
        *,
        key: bytes | None,
        job: str,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ):
        """Calls the switch. `key`: of the job, if this host has it. `timeout_s`: until the greeting is to be here."""
        self._outside, self._address, self._listener = outside, address, listener
        self._key, self._job = key, job
        self._connection: Connection | None = None
        self.has_greeted = self._is_secured = self._is_over = False
        self._lease: Lease | None = None  # from `keep_alive` on
        self.lease_s = 0.0
        self._timer: Timer = outside.call_later(timeout_s, self._on_late)
        try:
            outside.connect(address, timeout_s, self, job, key)
        except ConfigError as error:
            self._timer.cancel()
            self._timer = outside.call_later(0, partial(self._end, error))

    @property
    def name(self) -> str:
        """Returns the switch's address, for people."""
        return address_text(*self._address)

    @property
    def switch_host(self) -> str:
        assert self._connection is not None
        return self._connection.host

    @property
    def own_host(self) -> str:
        assert self._connection is not None
        return self._connection.own_host

    @property
    def link_gbit(self) -> float | None:
        assert self._connection is not None
        return self._connection.link_gbit

    def send(self, message: messages.Message) -> None:
        if self._connection is not None and not self._is_over:
            self._connection.send(message)

    def keep_alive(self) -> None:
        """Says from now on that this host lives, which the switch echoes, and takes the switch for lost if it is silent
        for its lease. May be called again."""
        if self._lease is None and not self._is_over:
            self._lease = Lease(self._outside, self.lease_s, self._on_silence, self._beat)

    def _beat(self) -> None:
        self.send(messages.Heartbeat())

    def _on_silence(self) -> None:
        self._end(TimeoutError(f"it was silent for {self.lease_s:g} s"))

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
        if self._lease is not None:
            self._lease.stop()
            self._lease = None  # it leads back here

    def _end(self, error: Exception) -> None:
        if not self._is_over:
            self._stop()
            if self._connection is not None:
                self._connection.give_up()
            self._listener.lost(error)

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
        try:
            message = messages.decode_from_switch(line)
            if self._lease is not None and isinstance(message, messages.Heartbeat):
                return
            if self.has_greeted:
                self._listener.heard(message)
            else:
                self._on_greeting(message)
        except (msgspec.DecodeError, OSError, AuthenticationError) as error:
            self._end(error)

    def _on_greeting(self, message: messages.FromSwitch) -> None:
        in_the_clear = self._key is not None and not self._is_secured
        if in_the_clear and isinstance(message, messages.Refused):
            # The sender hasn't proved anything, and a switch has room again soon: it is called again.
            raise ConnectionRefusedError(f"it says: {message.message}")
        if not isinstance(message, messages.Hello):
            raise msgspec.DecodeError("no greeting")
        if message.protocol_version == messages.PROTOCOL_VERSION:
            self._check_wanted(message)
        elif in_the_clear:  # it may be somebody in between who says so; else a join tells both sides what is wrong
            raise messages.ForeignVersionError(message.protocol_version)
        if not in_the_clear:
            self.has_greeted = True
            self._timer.cancel()
            self.lease_s = message.lease_s
            self._listener.greeted(message)

    def _check_wanted(self, hello: messages.Hello) -> None:
        """A host with a key doesn't join without it: somebody in between may have said that the switch wants none."""
        if hello.secured and self._key is None:
            raise AuthenticationError(
                f"The switch at {self.name} wants the key of job {self._job!r}. {HOW_TO_GET_A_KEY}"
            )
        if self._key is not None and not hello.secured:
            raise AuthenticationError(
                f"This host has a key for job {self._job!r}, but the switch at {self.name} wants none. Either it was "
                "started without --key-file, or somebody in between says so. Start it with its key, or run this job "
                "without JAX_PASSING_KEY_FILE if you trust the network."
            )

    def secured(self) -> None:
        self._is_secured = True

    def closed(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLCertVerificationError):  # other errors of TLS may pass, as when it was stopped
            self._end(
                AuthenticationError(
                    f"The switch at {self.name} doesn't have the key of job {self._job!r} that this host has, or isn't "
                    f"that switch ({error.reason or error}). {HOW_TO_GET_A_KEY}"
                )
            )
        elif isinstance(error, socket.gaierror):
            self._end(OSError(f"the name {self._address[0]!r} can't be resolved: {error.strerror}"))
        elif isinstance(error, OSError | msgspec.DecodeError):
            self._end(error)
        else:
            self._end(ConnectionError(str(error or "the connection was closed")))


def no_answer(switches: str, how_long: str, error: Exception) -> SwitchUnreachableError:
    """Makes what the user is told when nothing answers. `switches`: their addresses. `how_long`: this host tried."""
    return SwitchUnreachableError(
        f"No switch answered at {switches} {how_long} ({error}). Is it running (`jax-passing switch --listen "
        "HOST:PORT`), is the address right, and does a firewall let TCP and UDP pass?"
    )


class Redial:
    """Calls a switch, which may still be starting, again and again until a deadline."""

    def __init__(self, outside: Outside, switch: str, deadline_s: float, call: Callable[[float], None]):
        """`switch`: its address, for people. `call`: calls once, within so many seconds."""
        self._outside, self._switch, self._deadline_s, self._call = outside, switch, deadline_s, call
        self._until = outside.now() + deadline_s
        self._timer: Timer | None = None
        self._has_warned = False

    def call(self) -> None:
        self._call(max(0.01, min(CONNECT_TIMEOUT_S, self._left_s)))

    def failed(self, error: Exception) -> PassingError | None:
        """Is called if a call has failed. Returns what to tell the user of it, unless the switch is called again."""
        match error:
            case AuthenticationError() | ConfigError():
                return error
            case messages.ForeignVersionError(version=version):
                versions = version, "this host", messages.PROTOCOL_VERSION
                return JoinError(protocol_difference(self._switch, *versions, "this host"))
            case msgspec.DecodeError():
                return SwitchUnreachableError(
                    f"Something answers at {self._switch}, but it is no jax_passing switch ({error}). Check the "
                    "address, and that switch and hosts run the same version."
                )
        if self._left_s <= RETRY_S:
            return no_answer(self._switch, f"for {self._deadline_s:.1f} s", error)
        if not self._has_warned:
            self._has_warned = True
            log.warning("no switch at %s yet (%s); trying for %.0f s", self._switch, error, self._left_s)
        self._timer = self._outside.call_later(RETRY_S, self.call)
        return None

    @property
    def _left_s(self) -> float:
        return self._until - self._outside.now()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
