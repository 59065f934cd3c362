"""A host's share of a job at one of its switches: it calls the switch, joins there, and hears what it says."""

from collections.abc import Callable, Sequence
from functools import partial

from jax_passing.config import address_text
from jax_passing.errors import ConfigError, Failure, JoinError, PassingError, SwitchLostError, SwitchUnreachableError
from jax_passing.host.control.contact import Redial
from jax_passing.host.control.context import HostContext
from jax_passing.host.control.outside import PacketSocket
from jax_passing.host.control.stalls import Wait
from jax_passing.protocol import alike
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CallEvent, Greeted, Heard, Lost
from jax_passing.protocol.outside import Timer
from jax_passing.protocol.path_probe import PathProbe
from jax_passing.threads import default_threads

CONNECTED_S = 5.0  # a switch hangs up on a host that says nothing for 10 s


class Shard:
    """This host's share of a job at one switch begins by calling that switch.

    Attributes:
      name: the switch's address, for people.
      calls: of the switch; the last one counts.
      hello: its greeting; None as long as there is no connection.
      socket: for packets; from `open_socket` on.
      lanes: how many a packet on the way there may have; None as long as `find_path` hasn't found it out.
      welcome: what the switch settled, once `is_welcomed`.
      is_over: the switch has said Bye.
    """

    socket: PacketSocket

    def __init__(self, context: HostContext, address: tuple[str, int], report: Callable[["Shard", CallEvent], None]):
        """`report`: takes what happens at the call, and asks `receive` what it means."""
        self._context, self._outside, self._settings = context, context.outside, context.settings
        self.name = address_text(*address)
        self.hello: messages.Hello | None = None
        self._welcome: messages.Welcome | None = None
        self.is_over = False
        self._join: messages.Join | None = None
        self._wait: Wait | None = None
        self._patience: Timer | None = None  # the switch's with us, who haven't joined
        self._has_socket = False
        self.lanes: int | None = None
        self._path: PathProbe | None = None
        deadline_s = self._settings.join_deadline_s
        self.calls = Redial(
            self._outside, address, partial(report, self), job=context.job, key=context.key, deadline_s=deadline_s
        )
        self.calls.call()

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
        return self.calls.contact.connection.link_gbit

    @property
    def own_host(self) -> str:
        """Returns this host's address on the way to it."""
        return self.calls.contact.connection.own_host

    def receive(self, event: CallEvent) -> Greeted | messages.Welcome | Heard | Lost | PassingError | None:
        """Returns what an event of the call means for the job.

        Greeted: the shard may be joined; it comes again if the switch was called anew. Welcome: it is joined. Heard,
        Lost: the switch has said this, or is lost, when the shard was joined. PassingError: it can't be joined. None:
        nothing. Raises ConnectionRefusedError if the switch is to be called again.
        """
        match event:
            case Greeted(hello):
                self.hello = hello
                self._patience = self._outside.call_later(CONNECTED_S, self._call_anew)
                return event
            case Heard() if self.is_welcomed:
                return event
            case Heard(message) if self._join is not None:
                return self._on_answer(message)
            case Heard(messages.Refused(_, text)):  # as a connection too many; it may be called again
                raise ConnectionRefusedError(f"it says: {text}")
            case Lost(error):
                self._stop_waiting()
                if self.is_welcomed:
                    return None if self.is_over else event
                if self._join is not None:
                    return self.why_not_joined(error)
                self.hello = None
                return self.calls.failed(error)
        return None

    def _call_anew(self) -> None:
        """Calls again, as another of the job's switches was started late, and this one would lose patience with us."""
        self.calls.contact.close()
        self.hello = None
        self.calls.call()

    @property
    def data_address(self) -> tuple[str, int]:
        """Returns where packets to its first plane go."""
        assert self.hello is not None
        return self.hello.data_host or self.calls.contact.connection.host, self.hello.data_port

    def open_socket(self, planes: int) -> None:
        """Opens it, anew if the switch was called anew. `planes`: how many of the switch. Raises
        SwitchUnreachableError."""
        self._close_socket()
        self.lanes = None
        host, port = self.data_address
        try:
            self.socket = self._outside.open_socket(host, port, planes)
        except OSError as error:
            raise SwitchUnreachableError(
                f"Can't open a UDP socket to the switch's {address_text(host, port)}: {error}."
            ) from error
        self._has_socket = True

    def find_path(self, on_known: Callable[[], None]) -> None:
        """Finds out how long packets may be. `on_known` is called then, perhaps at once."""
        assert self.hello is not None

        def take(lanes: int) -> None:
            self.lanes = lanes
            on_known()

        self._path = PathProbe(self._outside, self.socket, self.hello, self.name, take)

    def _close_socket(self) -> None:
        if self._path is not None:
            self._path.stop()
        if self._has_socket:
            self.socket.close()
            self._has_socket = False

    # The join.

    def join(self, switches: tuple[str, ...], planes: int, lanes: int, deadline_s: float, nonce: bytes) -> None:
        """Waits for all ranks, and logs for whom after `warn_s`.

        Args:
          switches: instances of all the job's switches.
          planes: the least of these.
          lanes: the most that a packet on the ways to all of them may have.
          nonce: this host's randomness, where sums are confidential.
        """
        context, settings = self._context, self._settings
        self._stop_waiting()
        self._join = join = messages.Join(
            protocol_version=messages.PROTOCOL_VERSION,
            job=context.job,
            rank=settings.rank,
            world_size=settings.world_size,
            switches=switches,
            udp_port=self.socket.port,
            instance=self._outside.instance,
            join_deadline_s=deadline_s,
            link_gbit=settings.link_gbit or self.link_gbit,
            lease_s=settings.lease,
            alike=alike.facts(settings, context.device_count, context.hosts_key),
            started_as=context.started_as,
            host_name=self._outside.host_name,
            host_nonce=nonce,
            planes=planes,
            threads=settings.threads or default_threads(),
            lanes=lanes,
        )
        who = f"Rank {join.rank} of job {join.job!r}"
        self._wait = Wait(self._outside, self.send, who, self.name, deadline_s, settings.warn_s)
        self.send(join)
        self.calls.contact.keep_alive(join.lease_s)

    def why_not_joined(self, error: Exception, silent: type[PassingError] = SwitchLostError) -> PassingError:
        """Returns what to tell the user if the call has ended so while this host waited for the others. `silent`: what
        it is if the switch said nothing; hosts that meet do so again if it is lost."""
        join, hello = self._join, self.hello
        assert join is not None
        assert hello is not None
        if (version := hello.protocol_version) != join.protocol_version:  # it didn't understand us, or we it
            who = f"rank {join.rank} of job {join.job!r}"
            return JoinError(alike.protocol_difference(self.name, version, who, join.protocol_version, "that host"))
        if isinstance(error, TimeoutError):
            return silent(
                f"The switch at {self.name} said nothing any more while rank {join.rank} waited to join job "
                f"{join.job!r} ({error}). It is stopped, or the network between is cut. Look at the switch, then call "
                "jax_passing.init again."
            )
        return (SwitchLostError if isinstance(error, OSError) else JoinError)(
            f"The switch at {self.name} ended the connection while rank {join.rank} waited to join job {join.job!r}: "
            f"{error}. Look at the switch's log."
        )

    def why_lost(self, reason: str) -> str:
        """Returns what to tell the user if the switch is lost once this host has joined."""
        return (
            f"Rank {self._settings.rank} lost the switch at {self.name} (job {self._settings.job!r}, epoch "
            f"{self.welcome.epoch}): {reason}. Look at the switch's log, restart it if it died, then call "
            "jax_passing.init again on every host."
        )

    def _on_answer(self, message: messages.FromParent) -> messages.Welcome | PassingError | None:
        """Takes what the switch says of the join."""
        match message:
            case messages.SlotState():
                assert self._wait is not None
                self._wait.warn(message)
            case messages.GroupOffer():
                self._on_offer(message)
            case messages.Welcome():
                self._stop_waiting()
                self._welcome = message
                if not message.multicast:
                    self.socket.leave_group()
                return message
            case messages.Refused(kind, text):
                return Failure(kind, text).exception()
            case messages.Failed(kind, text, ranks):
                return Failure(kind, text, ranks).exception()
            case _:
                what = type(message).__name__
                return JoinError(f"The switch at {self.name} answered {what} to a join. Do the versions match?")
        return None

    def _on_offer(self, offer: messages.GroupOffer) -> None:
        """Listens to the group, until it has been heard or the switch says something else."""
        nonce = offer.nonce
        try:
            self.socket.join_group(offer, lambda: self.send(messages.GroupHeard(nonce)))
        except (OSError, ValueError) as error:
            self.send(messages.GroupReady(nonce, str(error)))
        else:
            self.send(messages.GroupReady(nonce))

    # The conversation.

    def send(self, message: messages.Message) -> None:
        self.calls.contact.send(message)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._wait is not None:
            self._wait.stop()

    def close(self) -> None:
        """Hangs up, after what was sent."""
        self._stop_waiting()
        self.calls.close()
        self._close_socket()


def open_paths(shards: Sequence[Shard], on_known: Callable[[], None]) -> None:
    """Opens the sockets of all once all have answered, and finds out how long packets on their ways may be. `on_known`
    is called when that is known of one of them. Raises PassingError."""
    check_distinct(shards)
    if any(shard.hello is None for shard in shards):
        return
    for shard in shards:
        shard.open_socket(least_planes(shards))
    for shard in shards:
        shard.find_path(on_known)


def least_planes(shards: Sequence[Shard]) -> int:
    """Returns how many planes each of these has, which have answered."""
    return min(shard.hello.planes for shard in shards if shard.hello is not None)


def least_lanes(shards: Sequence[Shard]) -> int | None:
    """Returns how many lanes a packet to any of them may have; None as long as that isn't known of all."""
    known = [shard.lanes for shard in shards if shard.lanes is not None and shard.hello is not None]
    return min(known) if len(known) == len(shards) else None


def check_distinct(shards: Sequence[Shard]) -> None:
    """Raises ConfigError if two of those that have answered are at one switch."""
    by_instance: dict[str, Shard] = {}
    for shard in shards:
        if shard.hello is not None and (other := by_instance.setdefault(shard.hello.instance, shard)) is not shard:
            raise ConfigError(f"{other.name} and {shard.name} are one switch. List each of a job's switches once.")
