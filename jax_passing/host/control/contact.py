"""A host calls a switch, by the job's key if there is one, and tells its user what is wrong. This does no I/O."""

import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

import msgspec

from jax_passing.errors import AuthenticationError, ConfigError, JoinError, PassingError, SwitchUnreachableError
from jax_passing.host.control.outside import HostOutside, Lifeline
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.caller import CONNECT_TIMEOUT_S, Caller, CallEvent, KeyMismatchError
from jax_passing.protocol.keys import HOW_TO_GET_A_KEY
from jax_passing.protocol.lease import HEARTBEATS_PER_LEASE, INTERPRETER_HELD_S
from jax_passing.protocol.outside import Timer

log = logging.getLogger("jax_passing")

RETRY_S = 0.25
DEADLINE_GRACE_S = 5.0  # the switch keeps the deadlines, and knows who is missing


class Contact(Caller):
    """A host's call of a switch. What it reports as lost is an AuthenticationError or a ConfigError, too, where calling
    again is of no use.

    Code that holds the interpreter's lock, as `pickle.dumps` of a GiB, keeps this host's control side from saying that
    it lives. So where the lease is short a *lifeline* says it, too.
    """

    def __init__(
        self,
        outside: HostOutside,
        address: tuple[str, int],
        report: Callable[[CallEvent], None],
        *,
        job: str,
        key: bytes | None,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ):
        self._host_outside, self._port = outside, address[1]
        self._lifeline: Lifeline | None = None
        super().__init__(outside, address, report, job=job, key=key, timeout_s=timeout_s)

    def keep_alive(self, lease_max_s: float = float("inf")) -> None:
        super().keep_alive(lease_max_s)
        lease_s = min(self.lease_s, lease_max_s)
        if self._lifeline is None and self.is_kept_alive and self.token and lease_s < INTERPRETER_HELD_S:
            address = self.connection.host, self._port
            self._lifeline = self._host_outside.lifeline(address, self.token, lease_s / HEARTBEATS_PER_LEASE)

    def _stop(self) -> None:
        super()._stop()
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

    def decode(self, line: bytes) -> messages.FromSwitch:
        return messages.decode_from_switch(line)

    def worded(self, error: Exception) -> Exception:
        match error:
            case KeyMismatchError(switch_has_key=True):
                return AuthenticationError(
                    f"The switch at {self.name} wants the key of job {self.job!r}. {HOW_TO_GET_A_KEY}"
                )
            case KeyMismatchError():
                return AuthenticationError(
                    f"This host has a key for job {self.job!r}, but the switch at {self.name} wants none. Either it "
                    "was started without --key-file, or somebody in between says so. Start it with its key, or run "
                    "this job without JAX_PASSING_KEY_FILE if you trust the network."
                )
            case ssl.SSLCertVerificationError():  # other errors of TLS may pass, as when it was stopped
                return AuthenticationError(
                    f"The switch at {self.name} doesn't have the key of job {self.job!r} that this host has, or isn't "
                    f"that switch ({error.reason or error}). {HOW_TO_GET_A_KEY}"
                )
            case socket.gaierror():
                return OSError(f"the name {self.name.rpartition(':')[0]!r} can't be resolved: {error.strerror}")
            case ConnectionRefusedError(errno=errno.ECONNREFUSED):  # asyncio's text has two addresses and "call failed"
                return ConnectionRefusedError("connection refused: nothing listens there")
        return error


def no_answer(switches: str, how_long: str, error: Exception) -> SwitchUnreachableError:
    """Makes what the user is told when nothing answers. `switches`: their addresses. `how_long`: this host tried."""
    return SwitchUnreachableError(
        f"No switch answered at {switches} {how_long} ({error}). Is it running (`jax-passing switch --listen "
        "HOST:PORT`), is the address right, and does a firewall let TCP and UDP pass?"
    )


class Redial:
    """A switch, which may still be starting, is called again and again until a deadline.

    Attributes:
      contact: the last call, from `call` on.
    """

    contact: Contact

    def __init__(
        self,
        outside: HostOutside,
        address: tuple[str, int],
        report: Callable[[CallEvent], None],
        *,
        job: str,
        key: bytes | None,
        deadline_s: float,
    ):
        """`report` is that of each call (`Caller`); it tells `failed` of one that is lost."""
        self._outside, self._deadline_s = outside, deadline_s
        self._contact = partial(Contact, outside, address, report, job=job, key=key)
        self._until = outside.now() + deadline_s
        self._timer: Timer | None = None
        self._has_warned = False
        self._before: Exception | None = None  # why the call before the last one failed

    def call(self) -> None:
        self._is_cut = self._left_s < CONNECT_TIMEOUT_S
        self.contact = self._contact(timeout_s=max(0.01, min(CONNECT_TIMEOUT_S, self._left_s)))

    def failed(self, error: Exception) -> PassingError | None:
        """Is called if a call has failed. Returns what to tell the user of it, unless the switch is called again."""
        switch = self.contact.name
        match error:
            case AuthenticationError() | ConfigError():
                return error
            case messages.ForeignVersionError(version=version):
                return JoinError(
                    protocol_difference(switch, version, "this host", messages.PROTOCOL_VERSION, "this host")
                )
            case msgspec.DecodeError():
                return SwitchUnreachableError(
                    f"Something answers at {switch}, but it is no jax_passing switch ({error}). Check the address, and "
                    "that switch and hosts run the same version."
                )
        if self._is_cut and isinstance(error, TimeoutError) and self._before is not None:
            error = self._before  # the deadline cut this call short, so that its timeout says nothing
        self._before = error
        if self._left_s <= RETRY_S:
            return no_answer(switch, f"for {self._deadline_s:.1f} s", error)
        if not self._has_warned:
            self._has_warned = True
            log.warning("no switch at %s yet (%s); trying for %.0f s", switch, error, self._left_s)
        self._timer = self._outside.call_later(RETRY_S, self.call)
        return None

    @property
    def _left_s(self) -> float:
        return self._until - self._outside.now()

    def close(self) -> None:
        """Hangs up, after what was sent, and calls no more."""
        if self._timer is not None:
            self._timer.cancel()
        self.contact.close()
