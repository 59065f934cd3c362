"""What a rack's switch and its parent say to each other over one connection, about one epoch of a job."""

import logging
from collections.abc import Callable

import msgspec

from jax_passing import _native
from jax_passing.config import unicast_address
from jax_passing.errors import is_kind
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Connection, Outside, Timer
from jax_passing.switch.data_planes.data_plane import DataPlane, is_power_of_two
from jax_passing.switch.jobs.admission import RefusalError
from jax_passing.switch.jobs.epoch_states import State
from jax_passing.switch.jobs.epochs import Epoch, Inquiry, ParentConnection, ParentListener
from jax_passing.switch.tree.parent_greeting import ParentGreeting, problem_of
from jax_passing.switch.tree.questions import Questions

log = logging.getLogger("jax_passing.switch")

GROUP_TICK_S = 0.01


class ParentConversation:
    """
    Attributes:
      data_address: where the parent's data plane listens; once joined.
      socket: how our data plane speaks to it; None if by its own data port.
      link_gbit: rate of our link to it, if known; once joined.
    """

    def __init__(
        self,
        uplink: ParentConnection,
        epoch: Epoch,
        listener: ParentListener,
        questions: Questions,
        data_plane: DataPlane,
        outside: Outside,
        secret: str,
        key: bytes | None,
        on_lost: Callable[[str], None],
    ):
        """`uplink`: who says what the parent says. `key`: the job's, if this switch has one. `on_lost`: hears what went
        wrong, unless we ended it ourselves."""
        self._uplink = uplink
        self._epoch = epoch
        self._listener = listener
        self._questions = questions
        self._data_plane = data_plane
        self._outside = outside
        self._secret = secret
        self._key = key
        self._on_lost = on_lost
        self.data_address = ("", 0)
        self.socket: _native.UdpSocket | None = None
        self.link_gbit: float | None = None
        self.is_joined = False
        self._connection: Connection | None = None
        self._is_over = False
        self._greeting: ParentGreeting | None = None  # once connected
        self._patience_s: float | None = None  # with a parent that says nothing; while the epoch runs
        self._silence: Timer | None = None
        self._beat: Timer | None = None
        self._group: Timer | None = None  # while we listen to what the parent sends to its group
        self._is_multicast = False  # how results of a running epoch come
        self._inquiries: set[Inquiry] = set()

    line_bytes_max = messages.RELAY_LINE_BYTES_MAX

    # Its course.

    def opened(self, connection: Connection) -> None:
        if self._is_over:
            connection.close()
            return
        self._connection = connection
        name, epoch = self._uplink.name, self._epoch
        self._greeting = ParentGreeting(
            connection, name, epoch.own_name, epoch.job.name, self._key, self._outside, self.closed
        )

    def heard(self, line: bytes) -> None:
        if self._is_over:
            return
        assert self._greeting is not None
        try:
            if self.is_joined:
                self._expect_more()
                self._on_message(messages.decode_from_parent(line))
            elif (hello := self._greeting.heard(line)) is not None:
                self._join(hello)
        except RefusalError as refusal:
            self._listener.refuse_all(self._epoch, str(refusal))
        except (OSError, ValueError, msgspec.DecodeError) as error:
            self._lose(str(error))

    def secured(self) -> None:
        if self._greeting is not None:
            self._greeting.secured()

    def closed(self, error: Exception | None) -> None:
        self._lose(problem_of(error, self._greeting))

    def send(self, message: messages.Message) -> bool:
        """False if the parent has stopped reading. Before we have joined, and afterwards, it is told nothing."""
        return self._connection is None or not self.is_joined or self._connection.send(message)

    def end(self) -> None:
        """After what was sent."""
        self._is_over, self.is_joined = True, False
        if self._greeting is not None:
            self._greeting.end()
        for timer in (self._silence, self._beat, self._group):
            if timer is not None:
                timer.cancel()
        for inquiry in list(self._inquiries):
            inquiry.cancel()
        self.socket = None  # closed now, not when the garbage is collected, unless a job has taken it over
        if self._connection is not None:
            self._connection.close()

    def _lose(self, problem: str) -> None:
        if not self._is_over:
            self.end()
            self._on_lost(problem)

    def _expect_more(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        if self._patience_s is not None:
            self._silence = self._outside.call_later(self._patience_s, lambda: self.closed(TimeoutError()))

    def _join(self, hello: messages.Hello) -> None:
        assert self._connection is not None
        host = unicast_address(hello.data_host) if hello.data_host else self._connection.host
        self.data_address = host, hello.data_port
        self.socket = self._data_plane.socket_to(*self.data_address)
        self.link_gbit = self._connection.link_gbit
        own_plane, epoch = self._data_plane, self._epoch
        self._connection.send(
            messages.RackJoin(
                protocol_version=messages.PROTOCOL_VERSION,
                job=epoch.job.name,
                instance=self._secret,
                name=epoch.own_name,
                udp_port=own_plane.port if self.socket is None else self.socket.port,
                data_host=own_plane.host if self.socket is None else "",
            )
        )
        self.is_joined = True  # until all ranks are here, it may have nothing to say
        for member in epoch.members:
            for rank in member.ranks:
                self._uplink.tell_of(member, rank)

    def _on_message(self, message: messages.FromParent) -> None:
        epoch, listener, is_running = self._epoch, self._listener, self._epoch.state is State.RUNNING
        match message:
            case messages.GroupOffer():
                self._join_group(message)
            case messages.Prepare() if is_power_of_two(message.slot_count):
                listener.prepare(epoch, message)
            case messages.Welcome() if not is_running:
                self._on_welcome(message)
            case messages.Refused(kind, text, rank) if is_kind(kind) and not is_running:
                if rank is None:
                    listener.refuse_all(epoch, text, kind)
                else:
                    listener.refuse(epoch, message)
            case messages.Relay():
                listener.relay(epoch, message, self._uplink)
            case messages.Left(ranks) if is_running:
                listener.leave(epoch, ranks, self._uplink)
            case messages.Ask() if is_running:
                self._questions.answer(epoch, message, self._uplink, self._inquiries, self.send)
            case messages.Answer():
                self._questions.on_answer(self._uplink, message)
            case messages.Failed(kind) if is_kind(kind):
                listener.fail(epoch, message, reporter=self._uplink)
            case messages.Bye() if is_running:
                listener.finish(epoch)
            case messages.Heartbeat() | messages.Ask() | messages.Left():
                pass
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} from the parent, {epoch.state.value}")

    def _on_welcome(self, welcome: messages.Welcome) -> None:
        self._stop_listening()
        self._is_multicast = welcome.multicast
        if self.socket is not None and not welcome.multicast:
            self.socket.leave_group()
        self._listener.welcome(self._epoch, welcome)
        if not self._is_over:
            self._patience_s = welcome.lease_s
            self._expect_more()
            self._beat_later(welcome.lease_s / messages.HEARTBEATS_PER_LEASE)

    def _beat_later(self, period_s: float) -> None:
        def beat() -> None:
            self.send(messages.Heartbeat())
            self._beat_later(period_s)

        self._beat = self._outside.call_later(period_s, beat)

    # The parent's multicast.

    def _join_group(self, offer: messages.GroupOffer) -> None:
        """As a host does: joins the group, says so, and listens until it has heard the probes."""
        self._stop_listening()
        if self.socket is None:
            problem = "this data plane takes results that are addressed to it alone"
            self.send(messages.GroupReady(offer.nonce, problem))
            return
        try:
            self.socket.join_group(offer.address, offer.port, job=offer.job_id, epoch=offer.epoch, nonce=offer.nonce)
        except (OSError, ValueError) as error:
            self.send(messages.GroupReady(offer.nonce, str(error)))
            return
        self.send(messages.GroupReady(offer.nonce))
        self._listen(offer.nonce)

    def _listen(self, nonce: int) -> None:
        if self.socket is not None and self.socket.hears_group():
            self._stop_listening()
            self.send(messages.GroupHeard(nonce))
        else:
            self._group = self._outside.call_later(GROUP_TICK_S, lambda: self._listen(nonce))

    def _stop_listening(self) -> None:
        if self._group is not None:
            self._group.cancel()
            self._group = None

    def check_group(self, is_heard: bool) -> None:
        """Where results come by multicast no longer, the parent then sends each of its members its own."""
        if self._is_multicast and not is_heard:
            self._is_multicast = False
            log.warning("%s: results of %s come by multicast no longer; telling it", self._epoch, self._uplink.name)
            self.send(messages.GroupLost())
