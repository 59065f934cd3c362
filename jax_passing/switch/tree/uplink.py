"""A rack's switch is a member at its parent: this is the way there for one epoch of a job, and what both say."""

import logging

import msgspec

from jax_passing import _native
from jax_passing.config import address_text, unicast_address
from jax_passing.errors import is_kind
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.lease import Lease
from jax_passing.protocol.outside import Connection, Outside, Timer
from jax_passing.switch.data_planes.data_plane import DataPlane, is_power_of_two
from jax_passing.switch.jobs.admission import RefusalError, least
from jax_passing.switch.jobs.epoch_states import State
from jax_passing.switch.jobs.epochs import Epoch, Inquiry, Member
from jax_passing.switch.jobs.jobs import JobTable
from jax_passing.switch.tree.parent_greeting import CONNECT_TIMEOUT_S, ParentGreeting, problem_of
from jax_passing.switch.tree.questions import Questions

log = logging.getLogger("jax_passing.switch")

RETRY_S = 0.25
GROUP_TICK_S = 0.01


class Uplink:
    """An uplink lasts until the epoch is over. While that forms, a parent that is away is called again and again.

    Attributes:
      name: the parent's address, for people.
    """

    def __init__(
        self,
        parent: tuple[str, int],
        epoch: Epoch,
        jobs: JobTable,
        questions: Questions,
        data_plane: DataPlane,
        outside: Outside,
        secret: str,
        key: bytes | None,
    ):
        """`secret`: our switch's instance, as only the parent may know it. `key`: the job's, if this switch has one."""
        self._parent = parent
        self.epoch, self.jobs = epoch, jobs
        self.questions = questions
        self.data_plane = data_plane
        self.outside = outside
        self.secret, self.key = secret, key
        self.name = address_text(*parent)
        self._conversation = _ParentConversation(self)
        self._retry: Timer | None = None
        self._problem = "it hasn't answered yet"

    def start(self) -> None:
        self.outside.connect(self._parent, CONNECT_TIMEOUT_S, self._conversation, self.epoch.job.name, self.key)

    def on_lost(self, problem: str) -> None:
        """Hears why a conversation has ended, unless we ended it ourselves."""
        level = logging.INFO if problem == self._problem else logging.WARNING  # it is called four times a second
        log.log(level, "%s: the parent, the switch at %s, is away: %s", self.epoch, self.name, problem)
        self._problem = problem
        self._conversation = _ParentConversation(self)
        self.jobs.parent_lost(self.epoch, problem)
        if self.epoch.state is not State.OVER:
            self._retry = self.outside.call_later(RETRY_S, self.start)

    def close(self) -> None:
        """Hangs up: the epoch is over, and asks for nothing any more."""
        if self._retry is not None:
            self._retry.cancel()
        self._conversation.end()
        del self._conversation  # it leads back here

    @property
    def is_connected(self) -> bool:
        return self._conversation.is_joined

    @property
    def data_address(self) -> tuple[str, int]:
        return self._conversation.data_address

    @property
    def socket(self) -> _native.UdpSocket | None:
        return self._conversation.socket

    def send(self, message: messages.Message) -> bool:
        """Never waits. False if the parent has stopped reading. Without a connection it is told when there is one."""
        return self._conversation.send(message)

    def tell_of(self, member: Member, rank: int) -> None:
        """Tells the parent that a rank of ours is here."""
        join = member.ranks[rank]
        wait_s = max(0.01, member.join_until[rank] - self.outside.now())
        link_gbit = least(join.link_gbit, self._conversation.link_gbit)
        self.send(msgspec.structs.replace(join, wait_s=wait_s, link_gbit=link_gbit))

    def explain(self, text: str) -> str:
        """Says why hosts wait in vain: `text` says for what."""
        if not self.is_connected:
            return (
                f"The switch at {self.epoch.own_name} can't reach its parent, the switch at {self.name} "
                f"({self._problem}): {text}. Is that switch running, and is --parent its address?"
            )
        return f"The switch at {self.name}, parent of the one at {self.epoch.own_name}, doesn't answer: {text}."

    def check_group(self, is_heard: bool) -> None:
        """Is called while the epoch runs, with whether results come by multicast."""
        self._conversation.check_group(is_heard)


class _ParentConversation:
    """One connection to the parent, for one epoch. It tells the jobs of this switch what the parent says.

    Attributes:
      data_address: where the parent's data plane listens; once joined.
      socket: how our data plane speaks to it; None if by its own data port.
      link_gbit: rate of our link to it, if known; once joined.
    """

    def __init__(self, uplink: "Uplink"):
        self._uplink = uplink
        self._epoch = uplink.epoch
        self.data_address = ("", 0)
        self.socket: _native.UdpSocket | None = None
        self.link_gbit: float | None = None
        self.is_joined = False
        self._connection: Connection | None = None
        self._is_over = False
        self._greeting: ParentGreeting | None = None  # once connected
        self._lease: Lease | None = None  # once joined
        self._group: Timer | None = None  # while we listen to what the parent sends to its group
        self._is_multicast = False  # how results of a running epoch come
        self._inquiries: set[Inquiry] = set()

    line_bytes_max = messages.RELAY_LINE_BYTES_MAX

    def opened(self, connection: Connection) -> None:
        if self._is_over:
            connection.close()
            return
        self._connection = connection
        uplink, epoch = self._uplink, self._epoch
        self._greeting = ParentGreeting(
            connection, uplink.name, epoch.own_name, epoch.job.name, uplink.key, uplink.outside, self.closed
        )

    def heard(self, line: bytes) -> None:
        if self._is_over:
            return
        assert self._greeting is not None
        try:
            if self._lease is not None:
                self._lease.heard()
                self._on_message(messages.decode_from_parent(line))
            elif (hello := self._greeting.heard(line)) is not None:
                self._join(hello)
        except RefusalError as refusal:
            self._uplink.jobs.refuse_all(self._epoch, str(refusal))
        except (OSError, ValueError, msgspec.DecodeError) as error:
            self._lose(str(error))

    def secured(self) -> None:
        if self._greeting is not None:
            self._greeting.secured()

    def closed(self, error: Exception | None) -> None:
        self._lose(problem_of(error, self._greeting))

    def send(self, message: messages.Message) -> bool:
        """Sends it to the parent. Returns False if that has stopped reading. Before we have joined, and afterwards, it
        is told nothing."""
        return self._connection is None or not self.is_joined or self._connection.send(message)

    def end(self) -> None:
        """Ends the connection after what was sent."""
        self._is_over, self.is_joined = True, False
        if self._greeting is not None:
            self._greeting.end()
            self._greeting = None  # it leads back here
        self._stop_listening()
        if self._lease is not None:
            self._lease.stop()
            self._lease = None  # it leads back here
        for inquiry in list(self._inquiries):
            inquiry.cancel()
        self.socket = None  # closed now, unless a job has taken it over
        if self._connection is not None:
            self._connection.close()

    def _lose(self, problem: str) -> None:
        if not self._is_over:
            self.end()
            self._uplink.on_lost(problem)

    def _join(self, hello: messages.Hello) -> None:
        assert self._connection is not None
        host = unicast_address(hello.data_host) if hello.data_host else self._connection.host
        self.data_address = host, hello.data_port
        self.socket = self._uplink.data_plane.socket_to(*self.data_address)
        self.link_gbit = self._connection.link_gbit
        own_plane, epoch = self._uplink.data_plane, self._epoch
        self._connection.send(
            messages.RackJoin(
                protocol_version=messages.PROTOCOL_VERSION,
                job=epoch.job.name,
                instance=self._uplink.secret,
                name=epoch.own_name,
                udp_port=own_plane.port if self.socket is None else self.socket.port,
                data_host=own_plane.host if self.socket is None else "",
            )
        )
        self.is_joined = True
        self._lease = Lease(self._uplink.outside, hello.lease_s, self._on_silence, self._beat)
        for member in epoch.members:
            for rank in member.ranks:
                self._uplink.tell_of(member, rank)

    def _beat(self) -> None:
        self.send(messages.Heartbeat())

    def _on_silence(self) -> None:
        self.closed(TimeoutError())

    def _on_message(self, message: messages.FromParent) -> None:
        epoch, jobs, is_running = self._epoch, self._uplink.jobs, self._epoch.state is State.RUNNING
        match message:
            case messages.GroupOffer():
                self._join_group(message)
            case messages.Prepare() if is_power_of_two(message.slot_count):
                jobs.prepare(epoch, message)
            case messages.Welcome() if not is_running:
                self._on_welcome(message)
            case messages.Refused(kind, text, rank) if is_kind(kind) and not is_running:
                if rank is None:
                    jobs.refuse_all(epoch, text, kind)
                else:
                    log.warning("the switch at %s refused rank %d of %s: %s", self._uplink.name, rank, epoch, text)
                    jobs.refuse(epoch, message)
            case messages.Relay():
                jobs.relay(epoch, message, self._uplink)
            case messages.Left(ranks) if is_running:
                jobs.leave(epoch, ranks, self._uplink)
            case messages.Ask() if is_running:
                self._uplink.questions.answer(epoch, message, self._uplink, self._inquiries, self.send)
            case messages.Answer():
                self._uplink.questions.on_answer(self._uplink, message)
            case messages.Failed(kind) if is_kind(kind):
                jobs.fail(epoch, message, reporter=self._uplink)
            case messages.Bye() if is_running:
                jobs.finish(epoch)
            case messages.Heartbeat() | messages.Ask() | messages.Left():
                pass
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} from the parent, {epoch.state.value}")

    def _on_welcome(self, welcome: messages.Welcome) -> None:
        self._stop_listening()
        self._is_multicast = welcome.multicast
        if self.socket is not None and not welcome.multicast:
            self.socket.leave_group()
        self._uplink.jobs.welcome(self._epoch, welcome)

    # The parent's multicast.

    def _join_group(self, offer: messages.GroupOffer) -> None:
        """Joins the group as a host does, says so, and listens until it has heard the probes."""
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
            self._group = self._uplink.outside.call_later(GROUP_TICK_S, lambda: self._listen(nonce))

    def _stop_listening(self) -> None:
        if self._group is not None:
            self._group.cancel()
            self._group = None

    def check_group(self, is_heard: bool) -> None:
        """Tells the parent if results come by multicast no longer. It then sends each of its members its own."""
        if self._is_multicast and not is_heard:
            self._is_multicast = False
            log.warning("%s: results of %s come by multicast no longer; telling it", self._epoch, self._uplink.name)
            self.send(messages.GroupLost())
