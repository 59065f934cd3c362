"""A host calls one of a job's switches, joins the job there, and converses from then on. This does no I/O."""

from functools import partial
from typing import Protocol

from jax_passing.config import Settings, address_text
from jax_passing.errors import (
    Failure,
    JoinError,
    PassingError,
    SwitchLostError,
    SwitchUnreachableError,
)
from jax_passing.host.contact import DEADLINE_GRACE_S, Contact, Redial
from jax_passing.host.outside import HostOutside, PacketSocket
from jax_passing.host.stalls import Wait
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.outside import Timer

LATE_S = 1.0  # for a timer
CONNECTED_S = 5.0  # a switch hangs up on a host that says nothing for 10 s


class ShardOwner(Protocol):
    """The owner, a membership, hears how a shard goes."""

    def greeted(self, shard: "Shard") -> None:
        """Is called when the shard may be joined, and again if it was connected anew."""

    def welcomed(self, shard: "Shard") -> None: ...

    def not_joined(self, error: PassingError) -> None: ...

    def heard(self, shard: "Shard", message: messages.FromSwitch) -> None:
        """Is called once it is welcomed."""

    def lost(self, shard: "Shard", reason: str) -> None:
        """Is called if it was welcomed, and isn't over."""


class Shard:
    """This host's share of a job at one switch begins by calling that switch.

    Attributes:
      name: the switch's address, for people.
      hello: its greeting; None as long as there is no connection.
      socket: for packets; from `open_socket` on.
      welcome: what the switch settled; None until then.
      is_over: the switch has said Bye.
    """

    socket: PacketSocket

    def __init__(
        self, outside: HostOutside, address: tuple[str, int], owner: ShardOwner, settings: Settings, key: bytes | None
    ):
        """`key`: the job's, if this host has one."""
        self._outside, self._address, self._owner = outside, address, owner
        self._settings, self._key = settings, key
        self.name = address_text(*address)
        self.hello: messages.Hello | None = None
        self._welcome: messages.Welcome | None = None
        self.is_over = False
        self._join: messages.Join | None = None
        self._wait: Wait | None = None
        self._timer: Timer | None = None  # of what is waited for now
        self._has_socket = False
        self._redial = Redial(outside, self.name, settings.join_deadline_s, self._call)
        self._redial.call()

    @property
    def welcome(self) -> messages.Welcome:
        assert self._welcome is not None
        return self._welcome

    @property
    def is_welcomed(self) -> bool:
        return self._welcome is not None

    @property
    def link_gbit(self) -> float | None:
        """Returns the rate of this host's link to it; None if it isn't known."""
        return self._contact.link_gbit

    @property
    def own_host(self) -> str:
        """Returns this host's address on the way to it."""
        return self._contact.own_host

    # The call.

    def _call(self, timeout_s: float) -> None:
        job = self._settings.job or ""
        self._contact = Contact(self._outside, self._address, self, key=self._key, job=job, timeout_s=timeout_s)

    def greeted(self, hello: messages.Hello) -> None:
        self.hello = hello
        self._timer = self._outside.call_later(CONNECTED_S, self._call_anew)
        self._owner.greeted(self)

    def _call_anew(self) -> None:
        """Calls again, as another of the job's switches was started late, and this one would lose patience with us."""
        self._contact.close()
        self.hello = None
        self._redial.call()

    def open_socket(self) -> None:
        """Raises SwitchUnreachableError."""
        assert self.hello is not None
        host, port = self.hello.data_host or self._contact.switch_host, self.hello.data_port
        try:
            self.socket = self._outside.open_socket(host, port)
        except OSError as error:
            raise SwitchUnreachableError(
                f"Can't open a UDP socket to the switch's {address_text(host, port)}: {error}."
            ) from error
        self._has_socket = True

    # The join.

    def join(self, join: messages.Join) -> None:
        """Waits for all ranks, and logs for whom after `warn_s`."""
        who = f"Rank {join.rank} of job {join.job!r}"
        self._stop_waiting()
        self._join = join
        self._expect_answer(join.join_deadline_s + DEADLINE_GRACE_S)
        self._wait = Wait(self._outside, self.send, who, self.name, join.join_deadline_s, self._settings.warn_s)
        self.send(join)
        self._contact.keep_alive()

    def _expect_answer(self, wait_s: float) -> None:
        self._timer = self._outside.call_later(wait_s, partial(self._on_join_deadline, self._outside.now() + wait_s))

    def _on_join_deadline(self, due_s: float) -> None:
        if self._outside.now() > due_s + LATE_S:  # this process stood still, perhaps with the switch
            self._expect_answer(DEADLINE_GRACE_S)
            return
        self._contact.close()
        assert self._join is not None
        self._on_join_failed(TimeoutError(f"it waited {self._join.join_deadline_s + DEADLINE_GRACE_S:.1f} s"))

    def _on_join_failed(self, error: Exception) -> None:
        assert self.hello is not None
        join = self._join
        assert join is not None
        if (version := self.hello.protocol_version) != join.protocol_version:  # it didn't understand us, or we it
            who = f"rank {join.rank} of job {join.job!r}"
            text = protocol_difference(self.name, version, who, join.protocol_version, "that host")
            self._owner.not_joined(JoinError(text))
            return
        if isinstance(error, TimeoutError):
            self._owner.not_joined(
                JoinError(
                    f"The switch at {self.name} said nothing any more while rank {join.rank} waited to join job "
                    f"{join.job!r} ({error}). It is stopped, or the network between is cut. Look at the switch, then "
                    "call jax_passing.init again."
                )
            )
            return
        is_lost = isinstance(error, OSError)
        self._owner.not_joined(
            (SwitchLostError if is_lost else JoinError)(
                f"The switch at {self.name} ended the connection while rank {join.rank} waited to join job "
                f"{join.job!r}: {error}. Look at the switch's log."
            )
        )

    def _on_answer(self, message: messages.FromSwitch) -> None:
        """Is called with what the switch says of the join."""
        match message:
            case messages.SlotState() if self._wait is not None:
                self._wait.warn(message)
            case messages.GroupOffer():
                self._on_offer(message)
            case messages.Welcome():
                self._on_welcome(message)
            case messages.Refused(kind, text):
                self._owner.not_joined(Failure(kind, text).exception())
            case messages.Failed(kind, text, ranks):
                self._owner.not_joined(Failure(kind, text, ranks).exception())
            case _:
                what = type(message).__name__
                self._owner.not_joined(
                    JoinError(f"The switch at {self.name} answered {what} to a join. Do the versions match?")
                )

    def _on_offer(self, offer: messages.GroupOffer) -> None:
        """Listens to the group, until it has been heard or the switch says something else."""
        nonce = offer.nonce
        try:
            self.socket.join_group(offer, lambda: self.send(messages.GroupHeard(nonce)))
        except (OSError, ValueError) as error:
            self.send(messages.GroupReady(nonce, str(error)))
        else:
            self.send(messages.GroupReady(nonce))

    def _on_welcome(self, welcome: messages.Welcome) -> None:
        self._stop_waiting()
        self._welcome = welcome
        if not welcome.multicast:
            self.socket.leave_group()
        self._owner.welcomed(self)

    # The conversation.

    def heard(self, message: messages.FromSwitch) -> None:
        if self._welcome is not None:
            self._owner.heard(self, message)
        elif self._join is not None:
            self._on_answer(message)
        elif isinstance(message, messages.Refused):  # as a connection too many; it may be called again
            raise ConnectionRefusedError(f"it says: {message.message}")

    def lost(self, error: Exception) -> None:
        self._stop_waiting()
        if self._welcome is not None:
            if not self.is_over:
                self._owner.lost(self, str(error))
        elif self._join is not None:
            self._on_join_failed(error)
        else:
            self.hello = None
            if (problem := self._redial.failed(error)) is not None:
                self._owner.not_joined(problem)

    def send(self, message: messages.Message) -> None:
        self._contact.send(message)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._wait is not None:
            self._wait.stop()

    def close(self) -> None:
        """Hangs up, after what was sent."""
        self._stop_waiting()
        self._redial.stop()
        self._contact.close()
        if self._has_socket:
            self.socket.close()
