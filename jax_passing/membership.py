"""A host's membership in a job at a switch: joining, what the two threads do meanwhile, failing, leaving."""

import ctypes
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec

from jax_passing import _native, config
from jax_passing import control_messages as messages
from jax_passing.control_connection import ControlConnection, connect
from jax_passing.errors import Failure, JoinError, SwitchLostError, SwitchUnreachableError
from jax_passing.link_rate import link_gbit
from jax_passing.stalls import StallReporter

log = logging.getLogger("jax_passing")

SLICE_S = 0.2  # waits in C++ can't be interrupted: Ctrl-C is seen between two of them
HEARTBEATS_PER_LEASE = 6
_INSTANCE = uuid.uuid4().hex


def _open_udp(host: str, port: int) -> _native.UdpSocket:
    try:
        return _native.UdpSocket(host, port)
    except OSError as error:
        raise SwitchUnreachableError(f"Can't open a UDP socket to the switch's {host}:{port}: {error}.") from error


def _answer_offer(control: ControlConnection, udp: _native.UdpSocket, offer: messages.GroupOffer) -> None:
    """Joins the group, and listens to it until it has been heard or the switch says something else."""
    try:
        udp.join_group(offer.address, offer.port, job=offer.job_id, epoch=offer.epoch, nonce=offer.nonce)
    except (OSError, ValueError) as error:
        control.send(messages.GroupReady(offer.nonce, str(error)))
        return
    control.send(messages.GroupReady(offer.nonce))
    while control.wait(udp.group_fileno()):
        if udp.hears_group():
            control.send(messages.GroupHeard(offer.nonce))
            return


def _await_welcome(control: ControlConnection, udp: _native.UdpSocket, join: messages.Join) -> messages.Welcome:
    try:
        control.send(join)
        while isinstance(answer := control.receive(), messages.GroupOffer):
            _answer_offer(control, udp, answer)
    except (OSError, msgspec.DecodeError) as error:
        raise JoinError(
            f"The switch ended the connection while rank {join.rank} waited to join job {join.job!r}: {error}. "
            "Look at the switch's log."
        ) from error
    if isinstance(answer, messages.Refused | messages.Failed):
        raise Failure(answer.kind, answer.message).exception()
    if not isinstance(answer, messages.Welcome):
        raise JoinError(f"The switch answered {type(answer).__name__} to a join. Do the versions match?")
    return answer


class Membership:
    """Made by joining, which waits for all ranks. Raises SwitchUnreachableError or JoinError.

    `devices`: how many devices of each host join beside it (strategy "flat").

    Attributes:
      epoch: incarnation of the job.
      link_gbit: the slowest host's link, None if no host knows its own. The same on all hosts.
      switch_link_gbit: the one link of the switch, None if it has a port for each host. The same on all hosts.
      transport: its sums.
      on_failed: called once when this membership fails, on any thread.
    """

    def __init__(self, settings: config.Settings, address: tuple[str, int], devices: int = 0):
        self._settings = settings
        self.on_failed: Callable[[Failure], None] | None = None
        self._address = address
        self._failed: Failure | None = None
        self._fail_lock = threading.Lock()
        self._closing = threading.Event()
        self._over = threading.Event()  # the switch said Bye, or the session failed
        self._threads: list[threading.Thread] = []
        self._slot_states: queue.SimpleQueue[messages.SlotState] = queue.SimpleQueue()
        until = time.monotonic() + settings.join_deadline_s
        self._control, hello = connect(address, settings.join_deadline_s)
        try:
            udp = _open_udp(hello.data_host or self._control.switch_host, hello.data_port)
            left_s = max(0.1, until - time.monotonic())
            self._control.set_timeout(left_s + 5.0)  # the switch keeps the deadline, and knows who is missing
            join = messages.Join(
                protocol_version=messages.PROTOCOL_VERSION,
                job=settings.job,
                rank=settings.rank,
                world_size=settings.world_size,
                udp_port=udp.port,
                instance=_INSTANCE,
                join_deadline_s=left_s,
                link_gbit=settings.link_gbit or link_gbit(self._control.own_host),
                strategy=settings.strategy,
                devices=devices,
            )
            welcome = _await_welcome(self._control, udp, join)
            if not welcome.multicast:
                udp.leave_group()
            self.transport = _native.Transport(
                [
                    _native.ShardLink(
                        udp,
                        job=welcome.job_id,
                        epoch=welcome.epoch,
                        slot_first=welcome.slot_first,
                        name="{}:{}".format(*address),
                    )
                ],
                rank=settings.rank,
                world_size=settings.world_size,
                slots_per_shard=welcome.slot_count,
                lanes_per_chunk=welcome.lanes_per_chunk,
                warn_s=settings.warn_s,
                deadline_s=settings.deadline_s,
            )
        except BaseException as error:
            self._control.hang_up()
            self._control.close()
            if isinstance(error, ValueError):  # of the transport
                raise JoinError(f"The switch's welcome makes no sense: {error}. Do the versions match?") from error
            raise
        self.epoch = welcome.epoch
        self.link_gbit, self.switch_link_gbit = welcome.link_gbit, welcome.switch_link_gbit
        self._lease_s = welcome.lease_s
        self._control.set_timeout(welcome.lease_s)
        self._stalls = StallReporter(rank=settings.rank, epoch=self.epoch, ask=self._ask)
        log.info("joined job %s: rank %d of %d, epoch %d", settings.job, settings.rank, settings.world_size, self.epoch)

    def start(self) -> None:
        """Two threads: one for the control connection, one for the transport."""
        for name, target in (("control", self._serve_control), ("transport", self._serve_transport)):
            thread = threading.Thread(target=target, name=f"jax_passing-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve_control(self) -> None:
        try:
            while True:
                match self._control.receive():
                    case messages.Relay(payload):
                        self.transport.deliver_order_message(payload)
                    case messages.SlotState() as state:
                        self._slot_states.put(state)
                    case messages.Failed(kind, message, ranks):
                        self.fail(Failure(kind, message, ranks), tell=False)
                        return
                    case messages.Bye():
                        self._over.set()
                        return
                    case _:
                        pass  # a heartbeat's echo: the socket's timeout starts anew
        except (OSError, ValueError, msgspec.DecodeError) as error:  # ValueError: closed by shutdown
            if not self._closing.is_set():
                address = "{}:{}".format(*self._address)
                reason = f"it was silent for {self._lease_s:g} s" if isinstance(error, TimeoutError) else str(error)
                self.fail(
                    Failure(
                        SwitchLostError.__name__,
                        f"Rank {self._settings.rank} lost the switch at {address} (job {self._settings.job!r}, epoch "
                        f"{self.epoch}): {reason}. Look at the switch's log, restart it if it died, then call "
                        "jax_passing.init again on every host.",
                    ),
                    tell=False,
                )

    def _serve_transport(self) -> None:
        beat_s = self._lease_s / HEARTBEATS_PER_LEASE
        next_beat = time.monotonic() + beat_s
        while not self._closing.is_set():
            event = self.transport.wait_event(max(0.0, next_beat - time.monotonic()))
            if time.monotonic() >= next_beat:
                self._send(messages.Heartbeat())
                next_beat = time.monotonic() + beat_s
            if event is None:
                continue
            if event.kind == "order_message":
                self._send(messages.Relay(event.order_message))
            elif event.kind == "stall" and event.stall is not None:
                note, failure = self._stalls.report(event.stall, event.stalled_s)
                self.transport.note_stall(note)
                if failure is not None:
                    self.fail(failure)
            elif event.kind == "group_lost":
                log.warning("results come by multicast no longer; telling the switch")
                self._send(messages.GroupLost())
            elif event.kind == "failed" and event.failure is not None:
                self.fail(Failure(*event.failure))
                return

    def _send(self, message: messages.Message) -> None:
        with suppress(OSError):  # the receiving thread notices, and knows more
            self._control.send(message)

    def _ask(self, query: messages.Query) -> messages.SlotState | None:
        """Asks the switch; None if it doesn't answer."""
        with suppress(queue.Empty):
            while True:  # late answers to an earlier question
                self._slot_states.get_nowait()
        self._send(query)
        try:
            return self._slot_states.get(timeout=1.0)
        except queue.Empty:
            return None

    def fail(self, failure: Failure, *, tell: bool = True) -> None:
        """Fails all sums; the first failure wins. Tells the switch, which tells the other hosts."""
        with self._fail_lock:
            if self._failed is not None:
                return
            self._failed = failure
        self.transport.fail(failure.kind, failure.message)
        if tell:
            self._send(messages.Fail(failure.kind, failure.message[: 8 * 1024], failure.ranks))
        self._over.set()
        if self.on_failed is not None:
            self.on_failed(failure)

    @property
    def failed(self) -> Failure | None:
        """Why sums fail from now on, if so."""
        if self._failed is not None or self._closing.is_set():
            return self._failed
        noticed = self.transport.failure()  # our thread may not have got its event yet
        return self._failed or (Failure(*noticed) if noticed else None)

    def drain(self, until: float) -> bool:
        """False if sums are still pending at `until` (monotonic), or have failed."""
        while not self.transport.drain(SLICE_S):
            if self.failed is not None or time.monotonic() >= until:
                return False
        return self.failed is None

    def leave(self) -> None:
        """Tells the switch that there will be no more sums."""
        self._send(messages.Leave())

    def await_others(self, until: float) -> None:
        """After `leave`: waits for the other ranks to leave."""
        while not self._over.wait(SLICE_S) and time.monotonic() < until:
            pass
        if not self._over.is_set():
            log.info("left job %s before the other hosts did", self._settings.job)

    def close(self) -> None:
        """Fails what is pending. Bounded in time."""
        self._closing.set()
        self.transport.close()
        self._control.hang_up()
        for thread in self._threads:
            # Both return at once, but nothing may hang the end of the process.
            if thread is not threading.current_thread():
                thread.join(5.0)
        self._control.close()

    def forget_in_child(self) -> None:
        """After a fork: the threads exist in the parent alone, and the connection is the parent's."""
        self._control.close()
        # Its destructor would join a thread that isn't here.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.transport))
