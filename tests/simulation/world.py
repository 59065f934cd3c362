"""The clock, chance, machines with processes, and connections between these; packets are C++ (_simulation)."""

import heapq
import itertools
import ssl
from collections import deque
from collections.abc import Callable
from ipaddress import IPv4Address
from random import Random
from types import SimpleNamespace

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import LANES_AT_MTU_1500
from jax_passing.switch.server.member_conversation import MemberConversation

LINE_DELAY_S = 0.002
STUCK_S = 5.0
EPHEMERAL_PORTS = range(40_000, 60_000)
CONNECTIONS_FROM = 30_000  # their ports


class ViolationError(AssertionError):
    """Something doesn't hold that must hold whatever happens."""


class OtherKeyError(ssl.SSLCertVerificationError):
    reason = "the other has another key"


class World:
    """`packets`: also the clock. `line_delay_s`: of a line on a connection, at most. `stuck`: share of lines that take
    seconds.

    Attributes:
      packets: of the data planes and hosts.
      listeners: by address, the switch that takes connections there.
      trace: what was said on connections, if anybody wants to know.
    """

    def __init__(
        self, seed: int, packets, *, line_delay_s: float = LINE_DELAY_S, stuck: float = 0.0, is_traced: bool = False
    ):
        self.random = Random(f"world {seed}")
        self.packets = packets
        self.line_delay_s = line_delay_s
        self.listeners = {}
        self.trace = []
        self.is_traced = is_traced
        self.on_event: dict[int, Callable] = {}  # by host or socket of `packets`: who hears what happens there
        self.lines = 0
        self.stuck = stuck
        self._numbers = itertools.count()
        self._queue = []

    @property
    def now_us(self) -> int:
        return self.packets.now_us

    def now(self) -> float:
        return self.packets.now_us / 1e6

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def call_later(self, delay_s: float, callback: Callable[[], None], process: "Process | None" = None) -> "Timer":
        """`process`: whose it is; nothing happens if that is gone by then, and later if it is paused."""
        timer = Timer(callback, process)
        self._push(self.now_us + max(0, round(delay_s * 1e6)), next(self._numbers), timer)
        return timer

    def _push(self, at_us, number, timer):
        heapq.heappush(self._queue, (at_us, number, timer))

    def run(self, is_over: Callable[[], bool], until_s: float) -> bool:
        """Returns whether it is over; else it is `until_s`."""
        until_us = round(until_s * 1e6)
        while not is_over():
            due_us = min(self._queue[0][0], until_us) if self._queue else until_us
            if self.now_us < due_us:
                for event in self.packets.run(due_us):
                    self._hear(*event)
            elif self._queue and self._queue[0][0] <= due_us:
                self._ring(*heapq.heappop(self._queue))
            else:
                return False
        return True

    def _ring(self, at_us, number, timer):
        resumes_us = 0 if timer.process is None else timer.process.machine.paused_until_us
        if resumes_us > self.now_us:
            self._push(resumes_us, number, timer)
        else:
            timer.ring()

    def _hear(self, kind, who, *what):
        if self.is_traced:
            self.note(f"host or socket {who}", kind, what)
        if kind == "violation":
            raise ViolationError(f"host {who}: {what[0]}")
        if who in self.on_event:
            self.on_event[who](kind, *what)

    def note(self, *what):
        self.trace.append((self.now(), *what))

    def connect(self, caller: "Process", address: tuple[str, int], timeout_s: float, conversation, job, key) -> None:
        switch = self.listeners.get(address)
        callee = None if switch is None else switch.machine
        delay_s = self.random.uniform(0, self.line_delay_s)
        if callee is not None:
            blocked_us = max(caller.machine.blocked_us(callee), callee.blocked_us(caller.machine))
            blocked_us = max(blocked_us, callee.paused_until_us)
            delay_s += max(0, blocked_us - self.now_us) / 1e6
        if delay_s >= timeout_s:
            late = TimeoutError("timed out")
            self.call_later(timeout_s, lambda: conversation.closed(late), caller)
            return

        def call():
            switch = self.listeners.get(address)
            if switch is None:
                conversation.closed(ConnectionRefusedError(f"nobody listens on {address}"))
                return
            own = Stream(self, caller, (caller.machine.host, CONNECTIONS_FROM + next(self._numbers) % 10_000))
            other = Stream(self, switch, address)
            own.other, other.other = other, own
            own.listener, other.listener = conversation, MemberConversation(switch.plane)
            other.listener.opened(other)
            conversation.opened(own)
            if key is not None:
                own.secure(job, key)

        self.call_later(delay_s, call, caller)


class Timer:
    __slots__ = ("_callback", "process")

    def __init__(self, callback, process):
        self._callback = callback
        self.process = process
        if process is not None:
            process.timers.add(self)

    def ring(self):
        callback = self._callback
        self.cancel()
        if callback is not None:
            callback()

    def cancel(self):
        self._callback = None
        if self.process is not None:
            self.process.timers.discard(self)


class Machine:
    def __init__(self, world: World, host: str):
        self.world = world
        self.host = host
        self.number = int(IPv4Address(host))
        self.paused_until_us = 0
        # Lanes of a packet that its network card sends, and whether the network passes these.
        self.lanes_that_fit, self.passes_what_fits = LANES_AT_MTU_1500, True
        self._blocked_until_us = {}  # by the other machine's number: of what goes there
        self._ports_used = set()
        self._ports_freed = deque(maxlen=16)

    def pause(self, for_s):
        # One that stands still already does so to the end of both.
        self.paused_until_us = max(self.paused_until_us, self.world.now_us + round(for_s * 1e6))
        self.world.packets.pause(self.number, self.paused_until_us)

    def block(self, to, for_s):
        until_us = self.world.now_us + round(for_s * 1e6)
        self._blocked_until_us[to.number] = until_us
        self.world.packets.block(self.number, to.number, until_us)

    def blocked_us(self, to):
        """Until when nothing goes there."""
        return self._blocked_until_us.get(to.number, 0)

    def take_port(self):
        """Any that is free: perhaps one that an earlier process had."""
        port = next(port for port in iter(self._draw_port, None) if port not in self._ports_used)
        self._ports_used.add(port)
        return port

    def _draw_port(self):
        is_earlier = self._ports_freed and self.world.random.random() < 0.5
        return self.world.random.choice(self._ports_freed if is_earlier else EPHEMERAL_PORTS)

    def free_port(self, port):
        self._ports_used.discard(port)
        self._ports_freed.append(port)


class Process:
    """Something that runs on a machine until it ends."""

    host_name = ""

    def __init__(self, world: World, machine: Machine):
        self.world = world
        self.machine = machine
        self.timers = set()
        self.is_alive = True
        self.streams = {}  # in the order in which they were opened

    def now(self):
        return self.world.now()

    def call_later(self, delay_s, callback):
        return self.world.call_later(delay_s, callback, self)

    def lifeline(self, address, token, period_s):
        """A simulated process has no interpreter that something could hold."""
        return SimpleNamespace(close=lambda: None)

    def end(self, *, is_noticed=True):
        """`is_noticed`: whoever spoke to it hears of it at once; else when `reset` is called."""
        self.is_alive = False
        for timer in list(self.timers):
            timer.cancel()
        for stream in self.streams:
            stream.listener = Deaf()
        if is_noticed:
            self.reset()

    def reset(self):
        """The machine is back, and knows nothing of the connections that it had."""
        for stream in self.streams:
            stream.break_off()
        self.streams.clear()


class Deaf:
    """A process that is gone answers nothing."""

    def opened(self, connection): ...

    def heard(self, line): ...

    def handshake_begins(self):
        return False

    def secured(self): ...

    def closed(self, error): ...


class Stream:
    """One end of a connection. Lines arrive late, but in order, and the end after all of them."""

    link_gbit = None

    def __init__(self, world, process, address):
        self._world = world
        self.process = process
        self.own_host, self.own_port = address
        self.own_name = f"{address[0]}:{address[1]}"
        self._arrival_us = 0  # of what was sent last
        self._is_closed = self.has_ended = False
        self._is_halfway = False  # in a handshake
        process.streams[self] = None

    @property
    def host(self):
        return self.other.own_host

    @property
    def name(self):
        return self.other.own_name

    def _deliver(self, callback):
        world, source, destination = self._world, self.process.machine, self.other.process.machine
        delay_us = int(world.random.random() * world.line_delay_s * 1e6)
        blocked_us = source.blocked_us(destination) - world.now_us
        if blocked_us > 0:  # what was lost is sent again after a while
            delay_us += blocked_us + round(world.random.uniform(0, blocked_us))
        if world.happens(world.stuck):
            delay_us += round(world.random.uniform(0, STUCK_S) * 1e6)
        self._arrival_us = max(self._arrival_us, world.now_us + delay_us)
        world.call_later((self._arrival_us - world.now_us) / 1e6, callback, self.other.process)

    def send(self, message):
        if not self._is_closed and not self._is_halfway:
            line = message if isinstance(message, bytes) else messages.encode(message)
            self._deliver(lambda: self.other.hear(line))
        return True

    def secure(self, job, key):
        """Begins the handshake. An answer in plain text, instead of the other's proof, is heard."""
        self._is_halfway = True
        self._deliver(lambda: self.other.shake_hands(job, key))

    def shake_hands(self, job, key):
        if self.has_ended or not self.listener.handshake_begins():
            return
        if self.listener.key_of(job) == key:
            self._deliver(self.other.prove)
            self.listener.secured()
        else:
            self._deliver(lambda: self.other.end(OtherKeyError()))
            self.end(ssl.SSLError(OtherKeyError.reason))

    def prove(self):
        if not self.has_ended:
            self._is_halfway = False
            self.listener.secured()

    def hear(self, line):
        if not self.has_ended:
            self._world.lines += 1
            if self._world.is_traced:
                self._world.note(self.name, self.own_name, line)
            self.listener.heard(line)

    def close(self):
        if not self._is_closed and self.process.is_alive:
            self._is_closed = True
            self._deliver(lambda: self.other.end(None))
            self._world.call_later(self._world.line_delay_s, lambda: self.end(None), self.process)

    def give_up(self):
        if not self.process.is_alive:
            return
        self.break_off()
        self._world.call_later(0, lambda: self.end(None), self.process)

    def break_off(self):
        self._is_closed = True
        self._deliver(lambda: self.other.end(ConnectionResetError("reset by peer")))

    def end(self, error):
        if not self.has_ended:
            self.has_ended = self._is_closed = True
            self.process.streams.pop(self, None)
            self.listener.closed(error)
