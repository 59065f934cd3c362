"""A rack's switch is a member at its parent: this is the way there for one epoch of a job, and what both say."""

import logging

import msgspec

from jax_passing.config import LEASE_S, address_text, unicast_address
from jax_passing.errors import is_kind
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CallEvent, Greeted, Heard, Lost
from jax_passing.protocol.outside import Outside, Timer
from jax_passing.protocol.packet import LANES_AT_MTU_1500
from jax_passing.protocol.path_probe import PathProbe
from jax_passing.protocol.plane_sockets import PlaneSockets
from jax_passing.settings_parser import is_power_of_two
from jax_passing.switch.data_planes.data_plane import DataPlane
from jax_passing.switch.jobs.admission import RefusalError, least
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Epoch, Inquiry, Member
from jax_passing.switch.jobs.jobs import JobTable
from jax_passing.switch.tree.parent_call import ParentCall, cant_reach
from jax_passing.switch.tree.questions import Questions

log = logging.getLogger("jax_passing.switch")

RETRY_S = 0.25
GROUP_TICK_S = 0.01


class Uplink:
    """An uplink lasts until the epoch is over. While that forms, a parent that is away is called again and again. It
    tells the jobs of this switch what the parent says.

    Attributes:
      name: the parent's address, for people.
      is_connected: the parent has greeted, and was told of the job.
      data_address: where the parent's data plane listens; once connected.
      socket: how our data plane speaks to it; None if by its own data port.
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
        self._epoch, self._jobs, self._questions = epoch, jobs, questions
        self._data_plane, self._outside = data_plane, outside
        self._secret, self._key = secret, key
        self.name = address_text(*parent)
        self._call: ParentCall | None = None
        self._retry: Timer | None = None
        self._problem = "it hasn't answered yet"
        self.is_connected = False
        self._path: PathProbe | None = None  # to the parent
        self._lanes = LANES_AT_MTU_1500  # that packets to it may have
        self.data_address = ("", 0)
        self.socket: PlaneSockets | None = None
        self._group: Timer | None = None  # while we listen to what the parent sends to its group
        self._is_multicast = False  # how results of a running epoch come
        self._inquiries: set[Inquiry] = set()

    def start(self) -> None:
        own_name, job = self._epoch.own_name, self._epoch.job.name
        self._call = ParentCall(self._outside, self._parent, self._on_event, own_name=own_name, job=job, key=self._key)

    def close(self) -> None:
        """Hangs up: the epoch is over, and asks for nothing any more."""
        if self._retry is not None:
            self._retry.cancel()
        self._hang_up()

    def _hang_up(self) -> None:
        """Ends the connection after what was sent."""
        self.is_connected = self._is_multicast = False
        self._stop_listening()
        if self._path is not None:
            self._path.stop()
        for inquiry in list(self._inquiries):
            inquiry.cancel()
        self.socket = None  # closed now, unless a job has taken it over
        if self._call is not None:
            self._call.close()
            self._call = None

    def send(self, message: messages.Message) -> bool:
        """Never waits. False if the parent has stopped reading. Without a connection it is told when there is one."""
        return self._call is None or not self.is_connected or self._call.send(message)

    def tell_of(self, member: Member, rank: int) -> None:
        """Tells the parent that a rank of ours is here."""
        if self._call is not None and self.is_connected:
            join = member.ranks[rank]
            wait_s = max(0.01, member.join_until[rank] - self._outside.now())
            link_gbit = least(join.link_gbit, self._call.connection.link_gbit)
            lanes = join.lanes_per_chunk if join.whole_chunks else min(join.lanes_per_chunk, self._lanes)
            told = msgspec.structs.replace(join, wait_s=wait_s, link_gbit=link_gbit, lanes_per_chunk=lanes)
            self._call.send(told)

    def explain(self, text: str) -> str:
        """Says why hosts wait in vain: `text` says for what."""
        if not self.is_connected:
            return cant_reach(self._epoch.own_name, self.name, self._problem, f": {text}")
        return f"The switch at {self.name}, parent of the one at {self._epoch.own_name}, doesn't answer: {text}."

    def _on_event(self, event: CallEvent) -> None:
        match event:
            case Greeted(hello):
                self._join(hello)
            case Heard(message):
                self._on_message(message)
            case Lost(RefusalError() as refusal):
                self._jobs.refuse_all(self._epoch, str(refusal))
            case Lost(error):
                self._on_lost(str(error))

    def _on_lost(self, problem: str) -> None:
        level = logging.DEBUG if problem == self._problem else logging.WARNING  # it is called four times a second
        log.log(level, "%s: the parent, the switch at %s, is away: %s", self._epoch, self.name, problem)
        self._problem = problem
        self._hang_up()
        self._jobs.parent_lost(self._epoch, problem)
        if self._epoch.state is not EpochState.OVER:
            self._retry = self._outside.call_later(RETRY_S, self.start)

    def _join(self, hello: messages.Hello) -> None:
        assert self._call is not None
        try:
            host = unicast_address(hello.data_host) if hello.data_host else self._call.connection.host
        except ValueError as error:
            raise ConnectionError(str(error)) from error
        self.data_address = host, hello.data_port
        self.socket = self._data_plane.socket_to(*self.data_address, hello.planes)
        if self.socket is None:
            self._join_with(LANES_AT_MTU_1500)
        else:
            self._path = PathProbe(self._outside, self.socket, hello, self.name, self._join_with)

    def _join_with(self, lanes: int) -> None:
        assert self._call is not None
        self._lanes = lanes
        own_plane, epoch = self._data_plane, self._epoch
        lease_s = min((member.lease_s for member in epoch.members), default=LEASE_S)
        self._call.send(
            messages.RackJoin(
                protocol_version=messages.PROTOCOL_VERSION,
                job=epoch.job.name,
                instance=self._secret,
                name=epoch.own_name,
                udp_port=own_plane.port if self.socket is None else self.socket.port,
                data_host=own_plane.host if self.socket is None else "",
                lease_s=lease_s,
            )
        )
        self.is_connected = True
        self._call.keep_alive(lease_s)
        for member in epoch.members:
            for rank in member.ranks:
                self.tell_of(member, rank)

    def _on_message(self, message: messages.FromParent) -> None:
        epoch, jobs, is_running = self._epoch, self._jobs, self._epoch.state is EpochState.RUNNING
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
                    log.warning("the switch at %s refused rank %d of %s: %s", self.name, rank, epoch, text)
                    jobs.refuse(epoch, message)
            case messages.Relay():
                jobs.relay(epoch, message, self)
            case messages.Left() if is_running:
                jobs.leave(epoch, message, self)
            case messages.Ask() if is_running:
                self._questions.answer(epoch, message, self, self._inquiries, self.send)
            case messages.Answer():
                self._questions.on_answer(self, message)
            case messages.Failed(kind) if is_kind(kind):
                jobs.fail(epoch, message, reporter=self)
            case messages.WriteRecord():
                for member in epoch.members:
                    member.connection.send(message)
            case messages.Bye() if is_running:
                jobs.finish(epoch)
            case messages.Ask() | messages.Left():
                pass
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} from the parent, {epoch.state.value}")

    def _on_welcome(self, welcome: messages.Welcome) -> None:
        self._stop_listening()
        self._is_multicast = welcome.multicast
        if self.socket is not None and not welcome.multicast:
            self.socket.leave_group()
        self._jobs.welcome(self._epoch, welcome)

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
            self._group = self._outside.call_later(GROUP_TICK_S, lambda: self._listen(nonce))

    def _stop_listening(self) -> None:
        if self._group is not None:
            self._group.cancel()
            self._group = None

    def check_group(self, is_heard: bool) -> None:
        """Is called while the epoch runs. Tells the parent if results come by multicast no longer (`is_heard`): it then
        sends each of its members its own."""
        if self._is_multicast and not is_heard:
            self._is_multicast = False
            log.warning("%s: results of %s come by multicast no longer; telling it", self._epoch, self.name)
            self.send(messages.GroupLost())
