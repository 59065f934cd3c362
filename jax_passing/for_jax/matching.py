"""Messages meet the receives that are posted for them. This does no I/O, and runs in one thread.

A message meets a receive of the same two ends, of the same group of devices and with the same tag, and both in the
order of their posting. No connection is ever held up by a message that isn't wanted yet, so that no wait for one
message can be a wait for another: a long one stays in its sender's memory until it is wanted, and of short ones a
sender sends no more unwanted than `CREDIT_BYTES`, which their receiver keeps; the next are announced like long ones.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jax_passing.errors import Failure, HostLostError, ProgramMismatchError
from jax_passing.for_jax.frames import SHORT_BYTES, Frame, FrameError, Kind

CREDIT_BYTES = 32 << 20  # for each host that sends to this one
KEPT_BYTES_MAX = 2 * CREDIT_BYTES  # no honest host has more unwanted here: the rest is for what is announced
OVERHEAD_BYTES = 512  # which a message takes besides its bytes


class Request(Protocol):
    def done(self, kind: str = ..., message: str = ...) -> None:
        """Is called exactly once: without arguments, or with the name of an error of ours and its text."""


class Ends(NamedTuple):
    """The two ends of a message are devices, by their indexes in a group, one of them on another host or on this."""

    peer: int  # the other end's rank
    group: int
    source: int
    target: int
    tag: int


@dataclass
class Posted:
    """A receive waits for its message."""

    ends: Ends
    group_name: str
    buffer: memoryview
    request: Request


@dataclass
class Arrived:
    """A message waits for its receive."""

    number: int
    size_bytes: int
    data: memoryview | None  # not here yet
    request: Request | None = None  # of its sender, if that is this host

    @property
    def kept_bytes(self) -> int:
        return OVERHEAD_BYTES + (0 if self.data is None else self.size_bytes)


@dataclass
class Sent:
    """A message was sent or announced, and its receiver hasn't taken it yet."""

    ends: Ends
    group_name: str
    size_bytes: int
    waiting: tuple[memoryview, Request] | None  # None for a short one: its sender needn't wait
    is_granted: bool = False


class Matching:
    """The host's end of all messages.

    Attributes:
      failure: why no message is sent or received any more, if so.
    """

    def __init__(
        self,
        rank: int,
        transmit: Callable[[int, Frame, memoryview | None], None],
        on_failure: Callable[[Failure], None],
    ):
        """`transmit`: sends a frame to the host with this rank, a reply by the connection on which that host called.
        `on_failure`: must call `fail`, once no memory of a request is used any more."""
        self._rank, self._transmit, self._on_failure = rank, transmit, on_failure
        self.failure: Failure | None = None
        self._numbers = itertools.count(1)
        self._sent: dict[tuple[int, int], Sent] = {}  # by receiver and number
        self._credit_used: defaultdict[int, int] = defaultdict(int)  # bytes, by receiver
        self._posted: defaultdict[Ends, deque[Posted]] = defaultdict(deque)
        self._arrived: defaultdict[Ends, deque[Arrived]] = defaultdict(deque)
        self._kept: defaultdict[int, int] = defaultdict(int)  # bytes, by sender
        self._granted: dict[tuple[int, int], Posted] = {}  # by sender and number
        self._coming: dict[int, memoryview] = {}  # a short message that is being received, by sender
        self._lost_receivers: dict[int, str] = {}  # hosts to which nothing can be sent any more, and why
        self._lost_senders: dict[int, str] = {}

    # The session's threads ask for this.

    def send(self, ends: Ends, group_name: str, data: memoryview, request: Request) -> None:
        if self.failure is not None:
            request.done(self.failure.kind, self.failure.message)
            return
        if ends.peer == self._rank:
            self._arrive(ends, Arrived(0, len(data), data, request))
            return
        number = next(self._numbers)
        is_short = (
            len(data) <= SHORT_BYTES
            and self._credit_used[ends.peer] + len(data) < CREDIT_BYTES
            and ends.peer not in self._lost_receivers
        )
        sent = Sent(ends, group_name, len(data), None if is_short else (data, request))
        self._sent[ends.peer, number] = sent
        frame = Frame(Kind.SHORT if is_short else Kind.LONG, number, *ends[1:], len(data))
        if is_short:
            self._credit_used[ends.peer] += OVERHEAD_BYTES + len(data)
            self._transmit(ends.peer, frame, memoryview(bytes(data)))
            request.done()
        else:
            self._transmit(ends.peer, frame, None)
        if (why := self._lost_receivers.get(ends.peer)) is not None:
            self.lost_receiver(ends.peer, why)

    def receive(self, ends: Ends, group_name: str, buffer: memoryview, request: Request) -> None:
        if self.failure is not None:
            request.done(self.failure.kind, self.failure.message)
            return
        posted = Posted(ends, group_name, buffer, request)
        waiting = self._arrived.get(ends)
        if waiting:
            arrived = waiting.popleft()
            if not waiting:
                del self._arrived[ends]
            self._kept[ends.peer] -= arrived.kept_bytes
            self._meet(posted, arrived)
        else:
            self._posted[ends].append(posted)
        if (why := self._lost_senders.get(ends.peer)) is not None:
            self.lost_sender(ends.peer, why)

    def fail(self, failure: Failure) -> None:
        """Ends all requests, and those that will come. Frames are no longer heard."""
        if self.failure is not None:
            return
        self.failure = failure
        requests = [sent.waiting[1] for sent in self._sent.values() if sent.waiting is not None]
        requests += [posted.request for queue in self._posted.values() for posted in queue]
        requests += [posted.request for posted in self._granted.values()]
        requests += [each.request for queue in self._arrived.values() for each in queue if each.request is not None]
        for kept in (self._sent, self._posted, self._granted, self._arrived, self._coming):
            kept.clear()
        for request in requests:
            request.done(failure.kind, failure.message)

    # A message and its receive.

    def _arrive(self, ends: Ends, arrived: Arrived) -> None:
        queue = self._posted.get(ends)
        if queue:
            posted = queue.popleft()
            if not queue:
                del self._posted[ends]
            self._meet(posted, arrived)
        else:
            self._arrived[ends].append(arrived)
            self._kept[ends.peer] += arrived.kept_bytes

    def _meet(self, posted: Posted, arrived: Arrived) -> None:
        peer = posted.ends.peer
        if len(posted.buffer) != arrived.size_bytes:
            self._posted[posted.ends].appendleft(posted)  # their requests fail with all others
            if arrived.request is not None:
                self._arrived[posted.ends].appendleft(arrived)
            else:
                self._transmit(peer, Frame(Kind.MISMATCH, arrived.number, size_bytes=len(posted.buffer)), None)
            self._mismatch(posted.ends, posted.group_name, peer, self._rank, arrived.size_bytes, len(posted.buffer))
        elif arrived.data is None:
            self._granted[peer, arrived.number] = posted
            self._transmit(peer, Frame(Kind.GRANT, arrived.number), None)
        else:
            posted.buffer[:] = arrived.data
            posted.request.done()
            if arrived.request is not None:
                arrived.request.done()
            else:
                self._transmit(peer, Frame(Kind.TAKEN, arrived.number), None)

    def _mismatch(self, ends: Ends, group_name: str, sender: int, receiver: int, sent: int, wanted: int) -> None:
        self._on_failure(
            Failure(
                ProgramMismatchError.__name__,
                f"Rank {sender} sends {sent} bytes from device {ends.source} to device {ends.target} of {group_name}, "
                f"and rank {receiver} receives {wanted} bytes there. These hosts run programs that differ: run the "
                "same program, with the same shapes, on every host.",
            )
        )

    # The connections tell this.

    def memory_for(self, sender: int, frame: Frame) -> memoryview:
        """Returns memory for what follows this frame. Raises FrameError."""
        if frame.kind is Kind.SHORT:
            self._coming[sender] = memoryview(bytearray(frame.size_bytes))
            return self._coming[sender]
        posted = self._granted.get((sender, frame.number))
        if posted is None or len(posted.buffer) != frame.size_bytes:
            raise FrameError(f"the bytes of message {frame.number} come, which weren't asked for")
        return posted.buffer

    def heard_from_sender(self, sender: int, frame: Frame) -> None:
        """Takes a frame of a host that called this one. Raises FrameError."""
        if self._kept[sender] > KEPT_BYTES_MAX:
            raise FrameError("more comes than is wanted")
        ends = Ends(sender, frame.group, frame.source, frame.target, frame.tag)
        match frame.kind:
            case Kind.SHORT:
                data = self._coming.pop(sender) if frame.size_bytes else memoryview(b"")
                self._arrive(ends, Arrived(frame.number, frame.size_bytes, data))
            case Kind.LONG:
                self._arrive(ends, Arrived(frame.number, frame.size_bytes, None))
            case Kind.DATA if (posted := self._granted.pop((sender, frame.number), None)) is not None:
                self._transmit(sender, Frame(Kind.TAKEN, frame.number), None)
                posted.request.done()
            case _:
                raise FrameError(f"a caller sends {frame.kind.name}")

    def heard_from_receiver(self, receiver: int, frame: Frame) -> None:
        """Takes a reply of a host that this one called. Raises FrameError."""
        sent = self._sent.get((receiver, frame.number))
        if sent is None:
            raise FrameError(f"{frame.kind.name} tells of message {frame.number}, which isn't under way")
        match frame.kind:
            case Kind.GRANT if sent.waiting is not None and not sent.is_granted:
                sent.is_granted = True
                data = Frame(Kind.DATA, frame.number, size_bytes=sent.size_bytes)
                self._transmit(receiver, data, sent.waiting[0])
            case Kind.TAKEN if sent.waiting is None or sent.is_granted:
                del self._sent[receiver, frame.number]
                if sent.waiting is None:
                    self._credit_used[receiver] -= OVERHEAD_BYTES + sent.size_bytes
                else:
                    sent.waiting[1].done()
            case Kind.MISMATCH:
                wanted = frame.size_bytes
                self._mismatch(sent.ends, sent.group_name, self._rank, receiver, sent.size_bytes, wanted)
            case _:
                raise FrameError(f"{frame.kind.name} comes for message {frame.number} at the wrong time")

    def lost_receiver(self, receiver: int, why: str) -> None:
        """Nothing can be sent to this host any more. That is a failure once something is to be sent."""
        self._lost_receivers[receiver] = why
        waiting = [sent for (to, _), sent in self._sent.items() if to == receiver and sent.waiting is not None]
        if waiting:
            ends, name = waiting[-1].ends, waiting[-1].group_name
            self._lost(receiver, f"can't send to device {ends.target} of {name}", why)

    def lost_sender(self, sender: int, why: str) -> None:
        """Nothing comes from this host any more. That is a failure once something is wanted from it."""
        self._lost_senders[sender] = why
        waiting = [each for ends, queue in self._posted.items() if ends.peer == sender for each in queue]
        waiting += [each for (of, _), each in self._granted.items() if of == sender]
        if waiting:
            ends, name = waiting[0].ends, waiting[0].group_name
            self._lost(sender, f"waits for a message of device {ends.source} of {name}", why)

    def _lost(self, peer: int, waits: str, why: str) -> None:
        self._on_failure(
            Failure(
                HostLostError.__name__,
                f"Rank {self._rank} {waits}, and has no connection to rank {peer} ({why}). That host has died or left, "
                "or a firewall stands between the two. Look at its log, then start the program again on every host.",
                (peer,),
            )
        )
