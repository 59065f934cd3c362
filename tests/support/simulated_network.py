"""Time, chance and the streams between control planes and hosts, all from one seed."""

import heapq
import itertools
from random import Random

from jax_passing.protocol import control_messages as messages

DELAY_MAX_S = 0.2
STUCK_MAX_S = 10.0


class SimulatedWorld:
    """The clock, chance, and who listens where.

    Attributes:
      faults: how many there are, 1 for many and 0 for none.
      trace: everything that was heard.
      has_been_silent: somebody may have been given up who was only slow, or went without a trace.
    """

    def __init__(self, seed, faults=0.0):
        self.faults = faults
        self.random = Random(seed)
        self.trace = []
        self.has_been_silent = False
        self.listeners = {}  # by address: the switch
        self._now = 1000.0
        self._numbers = itertools.count()
        self._queue = []

    def now(self):
        return self._now

    def call_later(self, delay_s, callback):
        timer = SimulatedTimer(callback)
        heapq.heappush(self._queue, (self._now + delay_s, next(self._numbers), timer))
        return timer

    def random_bits(self, count):
        return self.random.getrandbits(count)

    def happens(self, probability):
        """Whether a fault does."""
        return self.random.random() < probability * self.faults

    def run(self, is_over, limit_s):
        """Until then, or for so long. Returns whether it is over."""
        end = self._now + limit_s
        while not is_over():
            if not self._queue or self._queue[0][0] > end:
                return False
            self._now, _, timer = heapq.heappop(self._queue)
            timer.ring()
        return True

    def connect(self, caller, address, conversation):
        """`caller`: its IP address."""

        def call():
            switch = self.listeners.get(address)
            if switch is None:
                conversation.closed(ConnectionRefusedError(f"nobody listens on {address}"))
                return
            own, other = Stream(self, (caller, 50000 + next(self._numbers) % 9999)), Stream(self, address)
            own.other, other.other = other, own
            accepted = switch.plane.accept()
            own.listener, other.listener = conversation, accepted
            switch.streams.append(other)
            other.open()
            own.open()

        self.call_later(self.random.uniform(0, DELAY_MAX_S), call)

    def note(self, *what):
        self.trace.append((self._now, *what))


class SimulatedTimer:
    def __init__(self, callback):
        self._callback = callback

    def ring(self):
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def cancel(self):
        self._callback = None


class Stream:
    """One end of a connection. Lines arrive late, but in order, and the end after all of them."""

    link_gbit = None

    def __init__(self, world, address):
        self._world = world
        self.own_host, self.own_name = address[0], f"{address[0]}:{address[1]}"
        self._arrival = world.now()  # of what was sent last
        self._is_closed = self._has_ended = False

    @property
    def host(self):
        return self.other.own_host

    @property
    def name(self):
        return self.other.own_name

    def open(self):
        self.listener.opened(self)

    def _deliver(self, callback):
        delay_s = self._world.random.uniform(0, DELAY_MAX_S)
        if self._world.happens(0.002):  # the network is stuck for a while
            delay_s += self._world.random.uniform(0, STUCK_MAX_S)
            self._world.has_been_silent = True
        self._arrival = max(self._arrival, self._world.now() + delay_s)
        self._world.call_later(self._arrival - self._world.now(), callback)

    def send(self, message):
        if not self._is_closed:
            line = message if isinstance(message, bytes) else messages.encode(message)
            self._deliver(lambda: self.other.hear(line))
        return True

    def hear(self, line):
        if not self._has_ended:
            self._world.note(self.name, self.own_name, line)
            self.listener.heard(line)

    def close(self):
        if not self._is_closed:
            self._is_closed = True
            self._deliver(lambda: self.other.end(None))
            self._deliver(lambda: self.end(None))

    def give_up(self):
        self._is_closed = True
        self._world.call_later(0, lambda: self.end(None))
        self._deliver(lambda: self.other.end(ConnectionResetError("reset by peer")))

    def end(self, error):
        if not self._has_ended:
            self._has_ended = self._is_closed = True
            self.listener.closed(error)
