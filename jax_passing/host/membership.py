"""A host's membership in a job at its switches: joining, what its threads do meanwhile, failing, leaving."""

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from jax_passing import _native, config
from jax_passing.errors import Failure, JoinError, SwitchLostError
from jax_passing.host import programs
from jax_passing.host.meetings import INSTANCE
from jax_passing.host.shard import Shard, close_all, connect_all, join_all
from jax_passing.host.stalls import StallReporter
from jax_passing.protocol import alike, keys
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.link_rate import link_gbit

log = logging.getLogger("jax_passing")

SLICE_S = 0.2  # waits in C++ can't be interrupted: Ctrl-C is seen between two of them
TELL_S = 5.0  # for a failure to be told, before we hang up


def _agree(what: str, shards: Sequence[Shard], values: Sequence[int]) -> int:
    """What every shard can do."""
    if len(set(values)) > 1:
        offers = ", ".join(f"{value} at {shard.name}" for shard, value in zip(shards, values, strict=True))
        log.warning("the switches differ in %s (%s): taking the least", what, offers)
    return min(values)


class Membership:
    """Made by joining, which waits for all ranks. Raises SwitchUnreachableError, JoinError or ConfigError.

    `device_count`: of this host; all hosts must have as many. 0: it isn't compared. `key`: the job's, if it has one.

    The job's positions are spread over its switches, the shards. The first one is more: it relays rank 0's order.

    Attributes:
      epoch: incarnation of the job, at the first switch.
      link_gbit: the slowest host's link, None if no host knows its own. The same on all hosts.
      switch_link_gbit: the slowest of the switches' links, None if they have a port for each host. The same on all
        hosts.
      transport: its sums.
      on_failed: called once when this membership fails, on any thread.
    """

    def __init__(self, settings: config.Settings, device_count: int = 0, key: bytes | None = None):
        assert settings.switch is not None
        self._settings, self._key = settings, key
        self.on_failed: Callable[[Failure], None] | None = None
        self._failure: Failure | None = None
        self._fail_lock = threading.Lock()
        self._told = threading.Event()  # the failure, to the switches
        self._closing = threading.Event()
        self._over = threading.Event()  # all switches said Bye, or the session failed
        self._threads: list[threading.Thread] = []
        until = time.monotonic() + settings.join_deadline_s
        assert settings.job is not None  # there is a switch
        self._shards = connect_all(settings.switch, until, key, settings.job)
        try:
            join_all(self._shards, lambda shard: self._join(shard, until, device_count), settings.warn_s)
            self.transport = self._make_transport()
        except BaseException:
            close_all(self._shards)
            raise
        welcomes = [shard.welcome for shard in self._shards]
        self.epoch = welcomes[0].epoch
        self.link_gbit = min((gbit for welcome in welcomes if (gbit := welcome.link_gbit)), default=None)
        self.switch_link_gbit = min((gbit for welcome in welcomes if (gbit := welcome.switch_link_gbit)), default=None)
        self._lease_s = min(welcome.lease_s for welcome in welcomes)
        self._ledger = programs.Ledger(settings.rank)
        self._byes_awaited = set(self._shards)
        self._stalls = StallReporter(
            rank=settings.rank,
            epoch=self.epoch,
            switches=[shard.name for shard in self._shards],
            ask=lambda shard, query: self._shards[shard].ask(query),
            programs=self._ledger.waiting,
        )
        log.info("joined job %s: rank %d of %d, epoch %d", settings.job, settings.rank, settings.world_size, self.epoch)

    def _join(self, shard: Shard, until: float, device_count: int) -> messages.Join:
        settings = self._settings
        assert settings.job is not None  # there is a switch
        return messages.Join(
            protocol_version=messages.PROTOCOL_VERSION,
            job=settings.job,
            rank=settings.rank,
            world_size=settings.world_size,
            switches=tuple(each.hello.instance for each in self._shards),
            udp_port=shard.udp.port,
            instance=INSTANCE,
            join_deadline_s=max(0.1, until - time.monotonic()),
            link_gbit=settings.link_gbit or link_gbit(shard.control.own_host),
            alike=alike.facts(settings, device_count),
        )

    def _make_transport(self) -> _native.Transport:
        shards, settings = self._shards, self._settings
        slots = _agree("slots of a job", shards, [shard.welcome.slot_count for shard in shards])
        # The window is as wide as that of one switch: it has to cover this host's link, however many share its traffic.
        # A wider one lets hosts drift apart, and their queues fill.
        slots_per_shard = 1 << max(0, (slots // len(shards)).bit_length() - 1)  # a power of two
        lanes = _agree("lanes of a chunk", shards, [shard.welcome.lanes_per_chunk for shard in shards])
        try:
            return _native.Transport(
                [shard.link() for shard in shards],
                job=settings.job or "",
                rank=settings.rank,
                world_size=settings.world_size,
                slots_per_shard=slots_per_shard,
                lanes_per_chunk=lanes,
                check_key=self._check_key(),
                warn_s=settings.warn_s,
                deadline_s=settings.deadline_s,
            )
        except ValueError as error:
            raise JoinError(f"The switch's welcome makes no sense: {error}. Do the versions match?") from error

    def _check_key(self) -> bytes | None:
        """Returns None if sums aren't checked. All hosts decide alike, as their welcomes say the same of this."""
        welcomes = [shard.welcome for shard in self._shards]
        wanted = self._settings.check_sums
        if wanted is None:
            wanted = self._key is not None and any(welcome.packet_keys is None for welcome in welcomes)
        return keys.check_key(self._key, [welcome.nonce for welcome in welcomes]) if wanted else None

    def start(self) -> None:
        """A thread for each control connection, and one for the transport."""
        self._threads.append(threading.Thread(target=self._serve_transport, name="jax_passing-transport", daemon=True))
        for shard in self._shards:
            serve = partial(self._serve_control, shard)
            self._threads.append(threading.Thread(target=serve, name="jax_passing-control", daemon=True))
        for thread in self._threads:
            thread.start()

    def _serve_control(self, shard: Shard) -> None:
        try:
            while True:
                match shard.control.receive():
                    case messages.Relay(payload) if shard is self._shards[0]:
                        self._on_relay(payload)
                    case messages.SlotState() as state:
                        shard.on_answer(state)
                    case messages.Failed(kind, message, ranks):
                        self.fail(Failure(kind, message, ranks), source=shard)
                        return
                    case messages.Bye():
                        self._on_bye(shard)
                        return
                    case _:
                        pass  # a heartbeat's echo: the socket's timeout starts anew
        except (OSError, ValueError, msgspec.DecodeError) as error:  # ValueError: closed by shutdown
            if not self._closing.is_set():
                self.fail(self._lost(shard, error))

    def _on_relay(self, payload: bytes) -> None:
        """Rank 0's. Raises msgspec.DecodeError."""
        kind, content = payload[:1], payload[1:]
        if kind == messages.RELAYED_ORDER:
            self.transport.deliver_order_message(content)
        elif kind == messages.RELAYED_PROGRAM:
            self._check(self._ledger.rank_0s(programs.decode(content)))
        else:
            raise msgspec.DecodeError(f"rank 0 relays something of the unknown kind {kind!r}")

    def _on_program(self, info: _native.ProgramInfo) -> None:
        """One of ours runs for the first time."""
        program = programs.bounded(info)
        if self._settings.rank == 0:
            self._shards[0].send(messages.Relay(messages.RELAYED_PROGRAM + programs.encode(program)))
        else:
            self._check(self._ledger.own(program))

    def _check(self, failure: Failure | None) -> None:
        if failure is not None:
            self.fail(failure)

    def _lost(self, shard: Shard, error: Exception) -> Failure:
        reason = f"it was silent for {shard.welcome.lease_s:g} s" if isinstance(error, TimeoutError) else str(error)
        return Failure(
            SwitchLostError.__name__,
            f"Rank {self._settings.rank} lost the switch at {shard.name} (job {self._settings.job!r}, epoch "
            f"{shard.welcome.epoch}): {reason}. Look at the switch's log, restart it if it died, then call "
            "jax_passing.init again on every host.",
        )

    def _on_bye(self, shard: Shard) -> None:
        with self._fail_lock:
            self._byes_awaited.discard(shard)
            if not self._byes_awaited:
                self._over.set()

    def _serve_transport(self) -> None:
        beat_s = self._lease_s / messages.HEARTBEATS_PER_LEASE
        next_beat = time.monotonic() + beat_s
        while not self._closing.is_set():
            event = self.transport.wait_event(max(0.0, next_beat - time.monotonic()))
            if time.monotonic() >= next_beat:
                self._tell_all(messages.Heartbeat())
                next_beat = time.monotonic() + beat_s
            match event:
                case _native.OrderMessage():
                    self._shards[0].send(messages.Relay(messages.RELAYED_ORDER + event.payload))
                case _native.ProgramInfo():
                    self._on_program(event)
                case _native.Stalled():
                    note, failure = self._stalls.report(event.stall, event.stalled_s)
                    self.transport.note_stall(note)
                    if failure is not None:
                        self.fail(failure)
                case _native.GroupLost():
                    shard = self._shards[event.shard]
                    log.warning("results of %s come by multicast no longer; telling it", shard.name)
                    shard.send(messages.GroupLost())
                case _native.Failure():
                    self.fail(Failure(event.kind, event.message))
                    return

    def _tell_all(self, message: messages.Message) -> None:
        for shard in self._shards:
            shard.send(message)

    def fail(self, failure: Failure, *, tell: bool = True, source: Shard | None = None) -> None:
        """Fails all sums; the first failure wins. Tells the switches, which tell the other hosts.

        `source`: the switch that said so. The others are told as well: they see us hang up, and would name us.
        """
        with self._fail_lock:
            if self._failure is not None:
                return
            self._failure = failure
        # Not under the lock: a switch that doesn't read holds up nobody but us.
        if tell:  # before anybody here learns of it, and hangs up: else the others would only hear of a lost host
            for shard in self._shards:
                if shard is not source:
                    shard.send(messages.Fail(failure.kind, failure.message[: 8 * 1024], failure.ranks))
        self._told.set()
        self.transport.fail(failure.kind, failure.message)
        self._over.set()
        if self.on_failed is not None:
            self.on_failed(failure)

    @property
    def failure(self) -> Failure | None:
        """Why sums fail from now on, if so."""
        if self._failure is not None or self._closing.is_set():
            return self._failure
        noticed = self.transport.failure()  # our thread may not have got its event yet
        return self._failure or (Failure(*noticed) if noticed else None)

    def drain(self, until: float) -> bool:
        """False if sums are still pending at `until` (monotonic), or have failed."""
        while not self.transport.drain(SLICE_S):
            if self.failure is not None or time.monotonic() >= until:
                return False
        return self.failure is None

    def leave(self) -> None:
        """Tells the switches that there will be no more sums."""
        self._tell_all(messages.Leave())

    def await_others(self, until: float) -> None:
        """After `leave`: waits for the other ranks to leave."""
        while not self._over.wait(SLICE_S) and time.monotonic() < until:
            pass
        if not self._over.is_set():
            log.info("left job %s before the other hosts did", self._settings.job)

    def close(self) -> None:
        """Fails what is pending. Bounded in time."""
        self._closing.set()
        with self._fail_lock:
            failure = self._failure
        if failure is not None:  # it is told first, perhaps by another thread
            self._told.wait(TELL_S)
        self.transport.close()
        for shard in self._shards:
            shard.hang_up()
        for thread in self._threads:
            # All return at once, but nothing may hang the end of the process.
            if thread is not threading.current_thread():
                thread.join(5.0)
        for shard in self._shards:
            shard.close()

    def forget_in_child(self) -> None:
        """After a fork: the threads exist only in the parent, and the connections are the parent's."""
        for shard in self._shards:
            shard.close()
        # Its destructor would join a thread that isn't here.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.transport))
