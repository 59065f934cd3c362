"""A host is a member of a job at its switches: it joins, hears and tells, fails, and leaves. This does no I/O."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from jax_passing import config
from jax_passing.errors import (
    ConfigError,
    DeadlineExceededError,
    Failure,
    JoinError,
    PassingError,
    SwitchLostError,
    failure_of,
)
from jax_passing.host import programs, stalls
from jax_passing.host.outside import HostOutside, Transport
from jax_passing.host.shard import Shard
from jax_passing.protocol import alike, keys
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Timer

if TYPE_CHECKING:
    from jax_passing._native import ProgramInfo, Stall

log = logging.getLogger("jax_passing")

ANSWER_S = 1.0  # to a question; a switch has less patience with the others that it asks


class MembershipOwner(Protocol):
    """The owner hears how the membership goes, unless that is closed first."""

    def joined(self, membership: "Membership") -> None: ...

    def not_joined(self, error: PassingError) -> None:
        """The membership is closed."""

    def failed(self, membership: "Membership", failure: Failure) -> None:
        """Is called once, and not before `joined`."""

    def all_left(self, membership: "Membership") -> None:
        """All ranks have left, as this one."""


def _agree(what: str, shards: Sequence[Shard], values: Sequence[int]) -> int:
    """Returns what every shard can do."""
    if len(set(values)) > 1:
        offers = ", ".join(f"{value} at {shard.name}" for shard, value in zip(shards, values, strict=True))
        log.warning("the switches differ in %s (%s): taking the least", what, offers)
    return min(values)


class Membership:
    """A membership begins by calling the switches; `owner` hears what comes of it.

    The job's positions are spread over its switches, the shards. The first one is more: it relays rank 0's order.

    Attributes:
      shards: at the job's switches, in their order.
      epoch: incarnation of the job, at the first switch.
      link_gbit: the slowest host's link, None if no host knows its own. The same on all hosts.
      switch_link_gbit: the slowest of the switches' links, None if they have a port for each host. The same on all
        hosts.
      transport: its sums.
    """

    transport: Transport
    epoch: int
    link_gbit: float | None
    switch_link_gbit: float | None

    def __init__(
        self,
        outside: HostOutside,
        settings: config.Settings,
        owner: MembershipOwner,
        device_count: int,
        key: bytes | None,
    ):
        """`device_count`: of this host; all hosts must have as many. 0: it isn't compared. `key`: the job's, if it has
        one."""
        assert settings.switch is not None
        self._outside, self._settings, self._owner, self._key = outside, settings, owner, key
        self._device_count = device_count
        self._until = outside.now() + settings.join_deadline_s
        self._has_begun = self._is_closed = False
        self._failure: Failure | None = None
        self._unread: list[tuple[Shard, messages.FromSwitch]] = []  # what came before all shards were joined
        self._asked: tuple[Stall, float] | None = None  # the stall that its switch is asked about
        self._answer_timer: Timer | None = None
        self._ledger = programs.Ledger(settings.rank)
        self.shards = [Shard(outside, address, self, settings, key) for address in settings.switch]

    # Joining.

    def greeted(self, shard: Shard) -> None:
        """Joins all at once when all are there: had one to be joined before the next, two orders of the list would wait
        for each other."""
        try:
            self._check_distinct()
            if any(each.hello is None for each in self.shards):
                return
            for each in self.shards:
                each.open_socket()
        except PassingError as error:
            self.not_joined(error)
            return
        for each in self.shards:
            each.join(self._join(each))

    def _check_distinct(self) -> None:
        by_instance: dict[str, Shard] = {}
        for shard in self.shards:
            if shard.hello is not None and (other := by_instance.setdefault(shard.hello.instance, shard)) is not shard:
                raise ConfigError(f"{other.name} and {shard.name} are one switch. List each of a job's switches once.")

    def _join(self, shard: Shard) -> messages.Join:
        settings = self._settings
        assert settings.job is not None  # there is a switch
        return messages.Join(
            protocol_version=messages.PROTOCOL_VERSION,
            job=settings.job,
            rank=settings.rank,
            world_size=settings.world_size,
            switches=tuple(each.hello.instance for each in self.shards if each.hello is not None),
            udp_port=shard.socket.port,
            instance=self._outside.instance,
            join_deadline_s=max(0.1, self._until - self._outside.now()),
            link_gbit=settings.link_gbit or shard.link_gbit,
            alike=alike.facts(settings, self._device_count),
        )

    def welcomed(self, shard: Shard) -> None:
        if all(each.is_welcomed for each in self.shards):
            self._begin()

    def not_joined(self, error: PassingError, source: Shard | None = None) -> None:
        """`source`: the switch that said so."""
        if not self._is_closed:
            self._tell(failure_of(error), source)
            self.close()
            self._owner.not_joined(error)

    def _begin(self) -> None:
        settings, welcomes = self._settings, [shard.welcome for shard in self.shards]
        self.epoch = welcomes[0].epoch
        self.link_gbit = min((gbit for welcome in welcomes if (gbit := welcome.link_gbit)), default=None)
        self.switch_link_gbit = min((gbit for welcome in welcomes if (gbit := welcome.switch_link_gbit)), default=None)
        self._stalls = stalls.StallReporter(
            rank=settings.rank,
            epoch=self.epoch,
            switches=[shard.name for shard in self.shards],
            programs=self._ledger.waiting,
        )
        try:
            self.transport = self._start_transport(welcomes)
        except ValueError as error:
            self.not_joined(JoinError(f"The switch's welcome makes no sense: {error}. Do the versions match?"))
            return
        self._has_begun = True
        log.info("joined job %s: rank %d of %d, epoch %d", settings.job, settings.rank, settings.world_size, self.epoch)
        self._owner.joined(self)
        unread, self._unread = self._unread, []
        for shard, message in unread:
            self._take(shard, message)

    def _start_transport(self, welcomes: Sequence[messages.Welcome]) -> Transport:
        shards, settings = self.shards, self._settings
        slots = _agree("slots of a job", shards, [welcome.slot_count for welcome in welcomes])
        return self._outside.start_transport(
            shards,
            self,
            job=settings.job or "",
            rank=settings.rank,
            world_size=settings.world_size,
            # The window is as wide as that of one switch: it has to cover this host's link, however many share its
            # traffic. A wider one lets hosts drift apart, and their queues fill. A shard's slots are a power of two.
            slots_per_shard=1 << max(0, (slots // len(shards)).bit_length() - 1),
            lanes_per_chunk=_agree("lanes of a chunk", shards, [welcome.lanes_per_chunk for welcome in welcomes]),
            check_key=self._check_key(welcomes),
            seed=settings.seed,
            warn_s=settings.warn_s,
            deadline_s=settings.deadline_s,
        )

    def _check_key(self, welcomes: Sequence[messages.Welcome]) -> bytes | None:
        """Returns None if sums aren't checked. All hosts decide alike, as their welcomes say the same of this."""
        wanted = self._settings.check_sums
        if wanted is None:
            wanted = self._key is not None and any(welcome.packet_keys is None for welcome in welcomes)
        return keys.check_key(self._key, [welcome.nonce for welcome in welcomes]) if wanted else None

    # Switches say this.

    def heard(self, shard: Shard, message: messages.FromSwitch) -> None:
        if self._has_begun:
            self._take(shard, message)
        elif isinstance(message, messages.Failed):
            self.not_joined(Failure(message.kind, message.message, message.ranks).exception(), shard)
        else:
            self._unread.append((shard, message))

    def _take(self, shard: Shard, message: messages.FromSwitch) -> None:
        match message:
            case _ if self._is_closed:
                pass
            case messages.Relay(payload) if shard is self.shards[0]:
                try:
                    self._on_relay(payload)
                except msgspec.DecodeError as error:
                    self.lost(shard, str(error))
            case messages.SlotState() if self._asked is not None and self.shards[self._asked[0].shard] is shard:
                self._on_answer(message)
            case messages.Failed(kind, text, ranks):
                # The host that missed a sum at its deadline doesn't know what this one waits for instead.
                also = self._ledger.waiting() if kind == DeadlineExceededError.__name__ else ""
                self.fail(Failure(kind, f"{text} {also}".rstrip(), ranks), source=shard)
            case messages.Bye():
                shard.is_over = True
                if all(each.is_over for each in self.shards):
                    self._owner.all_left(self)

    def _on_relay(self, payload: bytes) -> None:
        """Takes what rank 0 relays. Raises msgspec.DecodeError."""
        kind, content = payload[:1], payload[1:]
        if kind == messages.RELAYED_ORDER:
            self.transport.deliver_order_message(content)
        elif kind == messages.RELAYED_PROGRAM:
            self._check(self._ledger.rank_0s(programs.decode(content)))
        else:
            raise msgspec.DecodeError(f"rank 0 relays something of the unknown kind {kind!r}")

    def _check(self, failure: Failure | None) -> None:
        if failure is not None:
            self.fail(failure)

    def lost(self, shard: Shard, reason: str) -> None:
        text = (
            f"Rank {self._settings.rank} lost the switch at {shard.name} (job {self._settings.job!r}, epoch "
            f"{shard.welcome.epoch}): {reason}. Look at the switch's log, restart it if it died, then call "
            "jax_passing.init again on every host."
        )
        if self._has_begun:
            self.fail(Failure(SwitchLostError.__name__, text))
        else:
            self.not_joined(SwitchLostError(text))

    # The transport asks this.

    def order(self, payload: bytes) -> None:
        self.shards[0].send(messages.Relay(messages.RELAYED_ORDER + payload))

    def program(self, info: "ProgramInfo") -> None:
        program = programs.bounded(info)
        if self._settings.rank == 0:
            self.shards[0].send(messages.Relay(messages.RELAYED_PROGRAM + programs.encode(program)))
        else:
            self._check(self._ledger.own(program))

    def stalled(self, stall: "Stall", stalled_s: float) -> None:
        if self._asked is None and not self._is_closed:
            self._asked = stall, stalled_s
            self._answer_timer = self._outside.call_later(ANSWER_S, lambda: self._on_answer(None))
            self.shards[stall.shard].send(stalls.question(stall))

    def _on_answer(self, state: messages.SlotState | None) -> None:
        """Takes what the switch says of the stall; None: nothing."""
        assert self._asked is not None
        assert self._answer_timer is not None
        self._answer_timer.cancel()
        (stall, stalled_s), self._asked = self._asked, None
        note, failure = self._stalls.report(stall, stalled_s, state)
        self.transport.note_stall(note)
        self._check(failure)

    def group_lost(self, shard: int) -> None:
        log.warning("results of %s come by multicast no longer; telling it", self.shards[shard].name)
        self.shards[shard].send(messages.GroupLost())

    def transport_failed(self, kind: str, message: str) -> None:
        self.fail(Failure(kind, message))

    # Failing and leaving.

    def fail(self, failure: Failure, *, tell: bool = True, source: Shard | None = None) -> None:
        """Fails all sums; the first failure wins. Tells the switches, which tell the other hosts.

        `source`: the switch that said so. The others are told as well: they see us hang up, and would name us.
        """
        if self._failure is not None or self._is_closed:
            return
        self._failure = failure
        if tell:
            self._tell(failure, source)
        self.transport.fail(failure.kind, failure.message)
        self._owner.failed(self, failure)

    def _tell(self, failure: Failure, source: Shard | None) -> None:
        """Tells the switches before anybody here learns of it, and hangs up: else the others would only hear of a lost
        host. (Seeds 495 and 4259 of the simulator.)"""
        for shard in self.shards:
            if shard is not source and shard.is_welcomed:
                shard.send(messages.Fail(failure.kind, failure.message[: 8 * 1024], failure.ranks))

    @property
    def failure(self) -> Failure | None:
        """Returns why sums fail from now on, if so. May be asked on any thread."""
        if self._failure is not None or self._is_closed or not self._has_begun:
            return self._failure
        noticed = self.transport.failure()  # its event may not have come yet
        return self._failure or (Failure(*noticed) if noticed else None)

    def leave(self) -> None:
        """Tells the switches that there will be no more sums."""
        for shard in self.shards:
            if shard.is_welcomed:
                shard.send(messages.Leave())

    def close(self) -> None:
        """Fails what is pending. Bounded in time."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._answer_timer is not None:
            self._answer_timer.cancel()
        for shard in self.shards:
            shard.close()
        if self._has_begun:
            self.transport.close()
