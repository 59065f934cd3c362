"""A job at one of its switches, from the host's side: the control connection, the socket for packets, the join."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from jax_passing import _native
from jax_passing.config import address_text
from jax_passing.errors import ConfigError, Failure, JoinError, SwitchLostError, SwitchUnreachableError
from jax_passing.host.control_connection import connect
from jax_passing.host.stalls import Wait
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference

log = logging.getLogger("jax_passing")

CONNECTED_S = 5.0  # a switch hangs up on a host that says nothing for 10 s
JOIN_GRACE_S = 5.0  # the switch keeps the deadline of a join, and knows who is missing
ANSWER_S = 1.0  # to a question; a switch has less patience with the others that it asks
HUNG_UP_S = 5.0  # who waits for a switch hears at once that the connection is closed


class Shard:
    """Made by connecting. Raises SwitchUnreachableError.

    Attributes:
      name: the switch's address, for people.
      welcome: what the switch settled; from `join` on.
    """

    welcome: messages.Welcome

    def __init__(self, address: tuple[str, int], until: float, *, key: bytes | None = None, job: str = ""):
        """`until` (monotonic): how long to try. `key`: the job's, if this host has one."""
        self.name = address_text(*address)
        self.control, self.hello = connect(address, max(0.1, until - time.monotonic()), key=key, job=job)
        host, port = self.hello.data_host or self.control.switch_host, self.hello.data_port
        try:
            self.udp = _native.UdpSocket(host, port)
        except OSError as error:
            self.close()
            raise SwitchUnreachableError(
                f"Can't open a UDP socket to the switch's {address_text(host, port)}: {error}."
            ) from error
        self._slot_states: queue.SimpleQueue[messages.SlotState] = queue.SimpleQueue()

    def join(self, join: messages.Join, warn_s: float) -> None:
        """Waits for all ranks, and logs for whom after `warn_s`. Raises JoinError, SwitchLostError, or what the switch
        says."""
        until = time.monotonic() + join.join_deadline_s + JOIN_GRACE_S
        wait = Wait(f"Rank {join.rank} of job {join.job!r}", self.name, join.join_deadline_s, warn_s)
        try:
            with suppress(OSError):  # it may have refused us already, and then it has said why
                self.control.send(join)
            while True:
                answer = self._receive(wait, until)
                if not isinstance(answer, messages.GroupOffer):
                    break
                self.control.set_timeout(max(0.1, until - time.monotonic()))
                self._answer(answer)
        except (OSError, msgspec.DecodeError) as error:
            if (version := self.hello.protocol_version) != join.protocol_version:  # it didn't understand us, or we it
                who = f"rank {join.rank} of job {join.job!r}"
                text = protocol_difference(self.name, version, who, join.protocol_version, "that host")
                raise JoinError(text) from error
            is_lost = isinstance(error, OSError) and not isinstance(error, TimeoutError)
            raise (SwitchLostError if is_lost else JoinError)(
                f"The switch at {self.name} ended the connection while rank {join.rank} waited to join job "
                f"{join.job!r}: {error}. Look at the switch's log."
            ) from error
        if isinstance(answer, messages.Refused | messages.Failed):
            raise Failure(answer.kind, answer.message).exception()
        if not isinstance(answer, messages.Welcome):
            raise JoinError(
                f"The switch at {self.name} answered {type(answer).__name__} to a join. Do the versions match?"
            )
        self.welcome = answer
        self.control.set_timeout(answer.lease_s)
        if not answer.multicast:
            self.udp.leave_group()

    def _receive(self, wait: Wait, until: float) -> messages.FromSwitch:
        """The next thing that the switch says, other than whom it waits for."""
        while True:
            try:
                answer = self.control.receive(min(until, wait.next_question))
            except TimeoutError:
                if time.monotonic() >= until:
                    raise
                wait.ask(self.control)
                continue
            if not isinstance(answer, messages.SlotState):
                return answer
            wait.warn(answer)

    def _answer(self, offer: messages.GroupOffer) -> None:
        """Joins the group, and listens to it until it has been heard or the switch says something else."""
        udp, control = self.udp, self.control
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

    def link(self) -> _native.ShardLink:
        """For the transport, which takes the UDP socket."""
        welcome = self.welcome
        return _native.ShardLink(
            self.udp,
            job=welcome.job_id,
            epoch=welcome.epoch,
            slot_first=welcome.slot_first,
            worker=welcome.worker,
            whole_lanes=welcome.lanes_per_chunk if welcome.whole_chunks else 0,
            name=self.name,
            keys=welcome.packet_keys,
        )

    def send(self, message: messages.Message) -> None:
        with suppress(OSError):  # the receiving thread notices, and knows more
            self.control.send(message)

    def ask(self, query: messages.Query) -> messages.SlotState | None:
        """Asks the switch; None if it doesn't answer."""
        with suppress(queue.Empty):
            while True:  # late answers to an earlier question
                self._slot_states.get_nowait()
        self.send(query)
        try:
            return self._slot_states.get(timeout=ANSWER_S)
        except queue.Empty:
            return None

    def on_answer(self, state: messages.SlotState) -> None:
        """The receiving thread's: what `ask` waits for."""
        self._slot_states.put(state)

    def hang_up(self) -> None:
        self.control.hang_up()

    def close(self) -> None:
        """Frees the connection; no thread may use it now."""
        self.control.close()


def connect_all(addresses: Sequence[tuple[str, int]], until: float, key: bytes | None, job: str) -> list[Shard]:
    """Connects to all switches, in their order.

    Raises:
      SwitchUnreachableError: one didn't answer.
      AuthenticationError: only one of us has a key, or we have different ones.
      ConfigError: two addresses are the same switch's.
    """
    while True:
        shards: list[Shard] = []
        connected: list[float] = []
        try:
            for address in addresses:
                shards.append(Shard(address, until, key=key, job=job))
                connected.append(time.monotonic())
                _check_distinct(shards)
        except BaseException:
            close_all(shards)
            raise
        if connected[-1] - connected[0] < CONNECTED_S or connected[-1] >= until:
            return shards
        close_all(shards)  # one was started late, and the first may have lost patience with us


def close_all(shards: Sequence[Shard]) -> None:
    for shard in shards:
        shard.hang_up()
        shard.close()


def _check_distinct(shards: Sequence[Shard]) -> None:
    *others, last = shards
    for other in others:
        if other.hello.instance == last.hello.instance:
            raise ConfigError(f"{other.name} and {last.name} are one switch. List each of a job's switches once.")


def join_all(shards: Sequence[Shard], join_for: Callable[[Shard], messages.Join], warn_s: float) -> None:
    """Joins all at once: had one to be joined before the next, two orders of the list would wait for each other.

    Raises what the first one to fail raises, having hung up on all switches: the caller closes the shards.
    """
    outcomes: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def join(shard: Shard) -> None:
        try:
            shard.join(join_for(shard), warn_s)
            outcomes.put(None)
        except Exception as error:
            outcomes.put(error)

    threads = [threading.Thread(target=join, args=(shard,), name="jax_passing-join", daemon=True) for shard in shards]
    for thread in threads:
        thread.start()
    for _ in shards:
        if (error := outcomes.get()) is not None:
            for shard in shards:
                shard.hang_up()
            for thread in threads:  # one that outlived the interpreter would keep the extension's objects
                thread.join(HUNG_UP_S)
            raise error
