"""A rack's switch as a member of its parent: one connection for each epoch of a job."""

import asyncio
import logging
import time

import msgspec

from jax_passing import _native
from jax_passing.config import address_text, unicast_address
from jax_passing.errors import is_kind
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.link_rate import link_gbit
from jax_passing.protocol.stream_connection import StreamConnection, read_line
from jax_passing.switch.admission import least
from jax_passing.switch.background import keep
from jax_passing.switch.data_plane import DataPlane
from jax_passing.switch.epochs import Epoch, Member, ParentListener, State
from jax_passing.switch.questions import Questions

log = logging.getLogger("jax_passing.switch")

CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.25


class Uplink:
    """Made for one epoch; `run` lasts until that is over. While the epoch forms, a parent that is away may come back.

    Attributes:
      name: the parent's address, for people.
      data_address: where its data plane listens; once connected.
      socket: how our data plane speaks to it; None if by its own data port.
    """

    def __init__(
        self,
        parent: tuple[str, int],
        epoch: Epoch,
        listener: ParentListener,
        questions: Questions,
        data_plane: DataPlane,
        secret: str,
    ):
        """`secret`: our switch's instance, as only the parent may know it."""
        self._parent = parent
        self._epoch = epoch
        self._listener = listener
        self._questions = questions
        self._data_plane = data_plane
        self._secret = secret
        self.name = address_text(*parent)
        self.data_address = ("", 0)
        self.socket: _native.UdpSocket | None = None
        self._connection: StreamConnection | None = None  # None until the parent has greeted
        self._link_gbit: float | None = None  # of our link to it
        self._problem = "it hasn't answered yet"
        self._is_multicast = False  # how results of a running epoch come
        self._group_fd = -1  # watched, while the parent probes
        self._tasks: set[asyncio.Task[None]] = set()

    def _is_over(self) -> bool:
        return self._epoch.state is State.OVER

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def send(self, message: messages.Message) -> bool:
        """Never waits. False if the parent has stopped reading. Without a connection it is told later, by `run`."""
        return self._connection is None or self._connection.send(message)

    def tell_of(self, member: Member, rank: int) -> None:
        """A rank of ours is here."""
        join = member.ranks[rank]
        wait_s = max(0.01, member.join_until[rank] - time.monotonic())
        self.send(msgspec.structs.replace(join, wait_s=wait_s, link_gbit=least(join.link_gbit, self._link_gbit)))

    def explain(self, text: str) -> str:
        """Why hosts wait in vain: `text` says for what."""
        if not self.is_connected:
            return (
                f"The switch at {self._epoch.own_name} can't reach its parent, the switch at {self.name} "
                f"({self._problem}): {text}. Is that switch running, and is --parent its address?"
            )
        return f"The switch at {self.name}, parent of the one at {self._epoch.own_name}, doesn't answer: {text}."

    def close(self) -> None:
        """After what was sent."""
        self._disconnect()

    def _disconnect(self) -> None:
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.socket = None

    async def run(self) -> None:
        epoch = self._epoch
        while not self._is_over():
            try:
                await self._converse()
                self._problem = "it closed the connection"
            except TimeoutError:
                self._problem = "it was silent for too long"
            except (OSError, ValueError, msgspec.DecodeError) as error:
                self._problem = str(error)
            self._disconnect()
            if self._is_over():
                return
            log.info("%s: parent at %s: %s", epoch, self.name, self._problem)
            self._listener.parent_lost(epoch, self._problem)
            await asyncio.sleep(RETRY_S)

    async def _converse(self) -> None:
        opening = asyncio.open_connection(*self._parent, limit=messages.RELAY_LINE_BYTES_MAX)
        reader, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
        connection = StreamConnection(writer)
        try:
            hello = await self._receive(reader, CONNECT_TIMEOUT_S)
            if not isinstance(hello, messages.Hello):
                raise msgspec.DecodeError("what answers there is no jax_passing switch")
            if self._is_over():
                return
            if hello.protocol_version != messages.PROTOCOL_VERSION:
                own = f"the switch at {self._epoch.own_name}"
                text = protocol_difference(
                    self.name, hello.protocol_version, own, messages.PROTOCOL_VERSION, "that switch"
                )
                self._listener.refuse_all(self._epoch, text)
                return
            self._join(connection, hello)
            lease_s: float | None = None
            while not self._is_over():
                message = await self._receive(reader, lease_s)
                if message is None:
                    return
                if isinstance(message, messages.Welcome):
                    lease_s = message.lease_s
                self._on_message(message)
        finally:
            connection.close()

    async def _receive(self, reader: asyncio.StreamReader, timeout_s: float | None) -> messages.FromParent | None:
        line = await asyncio.wait_for(read_line(reader), timeout_s)
        return None if line is None else messages.decode_from_parent(line)

    def _join(self, connection: StreamConnection, hello: messages.Hello) -> None:
        host = unicast_address(hello.data_host) if hello.data_host else connection.host
        self.data_address = host, hello.data_port
        self.socket = self._data_plane.socket_to(*self.data_address)
        own = self._data_plane
        connection.send(
            messages.RackJoin(
                protocol_version=messages.PROTOCOL_VERSION,
                job=self._epoch.job.name,
                instance=self._secret,
                name=self._epoch.own_name,
                udp_port=own.port if self.socket is None else self.socket.port,
                data_host=own.host if self.socket is None else "",
            )
        )
        self._connection = connection
        self._link_gbit = link_gbit(connection.own_host)
        for member in self._epoch.members:
            for rank in member.ranks:
                self.tell_of(member, rank)

    def _on_message(self, message: messages.FromParent) -> None:
        epoch, listener = self._epoch, self._listener
        match message:
            case messages.GroupOffer():
                self._join_group(message)
            case messages.Prepare() if message.slot_count & (message.slot_count - 1) == 0:
                listener.prepare(epoch, message)
            case messages.Welcome() if epoch.state is not State.RUNNING:
                self._stop_listening()
                self._is_multicast = message.multicast
                if self.socket is not None and not message.multicast:
                    self.socket.leave_group()
                listener.welcome(epoch, message)
                keep(self._tasks, self._beat(message.lease_s / messages.HEARTBEATS_PER_LEASE))
            case messages.Refused(kind, text, rank) if is_kind(kind):
                if rank is None:
                    listener.refuse_all(epoch, text, kind)
                else:
                    listener.refuse(epoch, message)
            case messages.Relay():
                listener.relay(epoch, message, self)
            case messages.Left(ranks):
                listener.leave(epoch, ranks, self)
            case messages.Ask() if epoch.state is State.RUNNING:
                keep(self._tasks, self._answer(message))
            case messages.Answer():
                self._questions.on_answer(self, message)
            case messages.Failed(kind) if is_kind(kind):
                listener.fail(epoch, message, reporter=self)
            case messages.Bye():
                listener.finish(epoch)
            case messages.Heartbeat() | messages.Ask():
                pass
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} from the parent")

    async def _beat(self, period_s: float) -> None:
        while self._epoch.state is State.RUNNING:
            await asyncio.sleep(period_s)
            self.send(messages.Heartbeat())

    async def _answer(self, ask: messages.Ask) -> None:
        self.send(await self._questions.answer(self._epoch, ask, self))

    # The parent's multicast.

    def _join_group(self, offer: messages.GroupOffer) -> None:
        """As a host does: joins the group, says so, and listens until it has been heard."""
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
        self._group_fd = self.socket.group_fileno()
        asyncio.get_running_loop().add_reader(self._group_fd, self._on_probe, offer.nonce)

    def _on_probe(self, nonce: int) -> None:
        if self.socket is not None and self.socket.hears_group():
            self._stop_listening()
            self.send(messages.GroupHeard(nonce))

    def check_group(self, is_heard: bool) -> None:
        """While the epoch runs. The parent then sends each of its members its own results."""
        if self._is_multicast and not is_heard:
            self._is_multicast = False
            log.warning("%s: results of %s come by multicast no longer; telling it", self._epoch, self.name)
            self.send(messages.GroupLost())

    def _stop_listening(self) -> None:
        if self._group_fd >= 0:
            asyncio.get_running_loop().remove_reader(self._group_fd)
            self._group_fd = -1
