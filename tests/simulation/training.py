"""Hosts of an elastic session that train, in a simulated network with faults, all from one seed.

A sum is complete when all members of an epoch have given their part; each of them hears of it at another time, or of a
failure before. What a host has computed is a chain of hashes: equal only if the same steps were taken by as many hosts.
"""

from collections import Counter

from jax_passing.config import Settings
from jax_passing.host.control_connection import CONNECT_TIMEOUT_S
from jax_passing.host.meetings import RETRY_S, Meetings, is_aside
from jax_passing.protocol import control_messages as messages
from simulation.packetless import packetless_switch, packetless_world
from simulation.runner import what_was_raised
from simulation.switches import LEASE_S
from simulation.world import Deaf, Machine, Process, ViolationError

STEPS = 12
STRAGGLES_MAX_S = 30.0
DEADLINE_S = 60.0
LIMIT_S = 1200.0


class Conversation:
    """Of a host with a switch: tells the host, as long as it cares."""

    def __init__(self, host, place):
        self.host, self.place, self.stream, self.is_open = host, place, None, True
        host.world.connect(host.process, host.training.switches[place].address, CONNECT_TIMEOUT_S, self)

    def opened(self, stream):
        self.stream = stream
        if self.is_open and not self.host.is_cut_from(self.place):
            self.host.training.streams.append((self, stream))
        else:
            stream.listener = Deaf()
            stream.give_up()
            self.closed(None)

    def send(self, message):
        if self.stream is not None and self.is_open:
            self.stream.send(message)

    def drop(self):
        """Its end, however: the switch sees that the connection is closed."""
        self.is_open = False
        if self.stream is not None:
            self.stream.listener = Deaf()
            self.stream.give_up()

    def heard(self, line):
        if self.is_open:
            self.on(messages.decode_from_switch(line))

    def closed(self, error):
        if self.is_open:
            self.is_open = False
            self.on_lost()


class Seat(Conversation):
    told = None  # whether it waits aside

    def on(self, message):
        match message:
            case messages.Hello():
                self.host.reached[self.place] = True
                self.host.tell_places()
            case messages.Met():
                self.host.on_met(self, message)
            case messages.Refused(_, text):
                self.drop()
                self.host.on_refused_seat(self, text)

    def on_lost(self):
        host = self.host
        host.seats.pop(self.place, None)
        host.reached[self.place] = False
        if host.phase == "meeting" and host.world.now() >= host.until:
            host.on_refused_seat(self, "unreachable")
        elif host.phase == "meeting":
            host.tell_places()
            host.later(RETRY_S, lambda: host.phase == "meeting" and host.sit(self.place))


class Control(Conversation):
    def on(self, message):
        host = self.host
        match message:
            case messages.Hello(instance=instance):
                self.switch = instance
                self.send(
                    messages.Join(
                        protocol_version=messages.PROTOCOL_VERSION,
                        job="training",
                        rank=host.rank,
                        world_size=host.met.world_size,
                        switches=(instance,),
                        udp_port=1000 + host.number,
                        instance=host.name,
                        join_deadline_s=DEADLINE_S,
                    )
                )
            case messages.GroupOffer(nonce=nonce):
                self.send(messages.GroupReady(nonce, "no such device"))
            case messages.Welcome(epoch=epoch):
                host.on_welcome(self, epoch)
            case messages.Refused(kind, text):
                self.drop()
                if kind == "HostLostError":
                    host.meet()
                else:
                    host.end = f"refused: {text}"
                    host.leave()
            case messages.Failed(kind, _, ranks):
                host.on_failed(kind, ranks)

    def on_lost(self):
        self.host.on_failed("SwitchLostError", ())


class Host:
    """One process. `end`: why it is over; None until then."""

    def __init__(self, training, number, rank):
        self.training, self.world, self.number = training, training.world, number
        self.process, self.name = Process(self.world, Machine(self.world, f"10.1.0.{number}")), f"process {number}"
        first, *standby = (switch.address for switch in training.switches)
        settings = Settings(
            switch=(first,),
            standby=tuple(standby),
            job="training",
            rank=rank,
            world_size=training.wanted,
            world_size_min=training.least,
        )
        self.meetings, self.rank, self.lost = Meetings(settings, instance=self.name), rank, ()
        self.step, self.value, self.before = None, None, None
        self.seats, self.reached, self.control = {}, {}, None
        self.phase, self.end, self.epoch = "new", None, None
        self.meet()

    @property
    def met(self):
        """What was agreed on at the last meeting; None before the first."""
        return self.meetings.last

    # Time.

    def later(self, delay_s, callback):
        self.process.call_later(delay_s, callback)

    def stop(self, for_s):
        self.process.machine.pause(for_s)

    def die(self):
        if self.end is None:
            self.end = "died"
            self.leave()

    def leave(self):
        for conversation in (*self.seats.values(), self.control):
            if conversation is not None:
                conversation.drop()
        self.seats, self.control, self.phase = {}, None, "over"
        self.process.end()

    def is_cut_from(self, place):
        return place in self.training.cuts.get(self.number, ())

    # Meeting.

    def meet(self):
        self.phase, self.epoch, self.refusals = "meeting", None, []
        self.until = self.world.now() + DEADLINE_S
        for place in range(len(self.training.switches)):
            if place in self.seats:
                self.seats[place].told = None
            else:
                self.reached.pop(place, None)
                self.sit(place)
        self.tell_places()

    def sit(self, place):
        if place not in self.seats:
            self.seats[place] = Seat(self, place)

    def tell_places(self):
        if self.phase != "meeting":
            return
        for place, seat in list(self.seats.items()):
            aside = is_aside(place, range(place), self.reached)
            if not self.reached.get(place) or aside is None or seat.told == aside:
                continue
            seat.told = aside
            left_s = self.until - self.world.now()
            seat.send(self.meetings.message(place, self.step, self.lost, left_s, aside))

    def on_refused_seat(self, seat, text):
        self.seats.pop(seat.place, None)
        self.refusals.append(text)
        if self.phase == "meeting" and len(self.refusals) == len(self.training.switches):
            self.end = f"refused: {text}"
            self.leave()

    def on_met(self, seat, met):
        if self.phase != "meeting":
            return
        for place, other in list(self.seats.items()):
            if other is not seat:
                del self.seats[place]
                other.drop()
        if self.control is not None:
            self.control.drop()
        self.phase = "joining"
        self.meetings.last, self.rank, self.lost = met, met.rank, ()
        assert met.world_size >= self.training.least
        if met.rank < met.survivors:
            assert met.step <= self.step <= met.step + 1, "more than one step is lost"
        else:
            self.step = None
        self.control = Control(self, seat.place)

    # Training.

    def on_welcome(self, control, number):
        self.phase = "running"
        if self.step is not None and self.step != self.met.step:
            self.step, self.value = self.before  # it was one step ahead
        self.epoch = (control.switch, number)
        self.beat(control)
        if self.met.survivors < self.met.world_size:
            state = (0, 0) if self.step is None else (self.step, self.value)
            self.training.give(self, "share", state, self.on_share)
        else:
            self.compute()

    def beat(self, control):
        if control.is_open and self.control is control:
            control.send(messages.Heartbeat())
            self.later(LEASE_S / messages.HEARTBEATS_PER_LEASE, lambda: self.beat(control))

    def on_share(self, parts):
        self.step, self.value = parts[0]
        assert self.met.step in (None, self.step)
        self.compute()

    def compute(self):
        delay_s = self.world.random.expovariate(1 / 0.3)
        if self.world.random.random() < self.training.straggling:
            delay_s = self.world.random.uniform(0.01, STRAGGLES_MAX_S)
        epoch = self.epoch
        self.later(delay_s, lambda: self.epoch == epoch and self.phase == "running" and self.sum())

    def sum(self):
        self.training.give(self, self.step, (self.step, self.value), self.on_sum)

    def on_sum(self, parts):
        assert len({*parts.values()}) == 1, f"hosts of one epoch differ: {parts}"
        self.before = self.step, self.value
        self.step, self.value = self.step + 1, hash((self.value, len(parts)))
        if self.step == STEPS:
            self.end = "done"
            self.control.send(messages.Leave())
            self.leave()
        else:
            self.compute()

    def on_failed(self, kind, ranks):
        if self.phase not in ("running", "joining"):
            return
        self.training.failures.append((self.world.now(), kind))
        self.lost = ranks if kind == "HostLostError" else ()
        self.phase = "failed"
        # The thread that trains notices when it next sums.
        self.later(self.world.random.expovariate(1 / 0.3), lambda: self.phase == "failed" and self.meet())


class Training:
    """
    Attributes:
      hosts: all processes that there ever were.
      failures: (when, kind), as a host has heard.
    """

    def __init__(self, seed, *, hosts, least=1, standby=False, straggling=0.0):
        """`straggling`: how often a host computes for up to 30 s."""
        self.world = packetless_world(seed)
        self.wanted, self.least, self.straggling = hosts, least, straggling
        self.switches = [packetless_switch(self.world, number) for number in range(2 if standby else 1)]
        self.streams, self.cuts, self.failures, self._sums = [], {}, [], {}
        self.hosts = []
        self._next = 1
        for rank in range(hosts):
            self.world.call_later(self.world.random.uniform(0, 1), lambda rank=rank: self.start(rank))

    def start(self, rank):
        self.hosts.append(Host(self, self._next, rank))
        self._next += 1

    def give(self, host, step, part, done):
        """A host's part of one sum of its epoch."""
        members = self._sums.setdefault((host.epoch, step), {})
        members[host.rank] = (host, part, done)
        if len(members) < host.met.world_size:
            return
        parts = {rank: given for rank, (_, given, _) in sorted(members.items())}
        for one, _, then in members.values():
            self._hear(one, host.epoch, parts, then)

    def _hear(self, host, epoch, parts, then):
        still = lambda: host.epoch == epoch and host.phase == "running"  # noqa: E731
        host.later(self.world.random.uniform(0, 0.2), lambda: still() and then(parts))

    def cut(self, host, place, for_s):
        """The network between a host and a switch breaks."""
        self.cuts.setdefault(host.number, set()).add(place)
        for conversation, stream in self.streams:
            if conversation.host is host and conversation.place == place and conversation.is_open:
                stream.give_up()
        self.world.call_later(for_s, lambda: self.cuts[host.number].discard(place))

    def alive(self):
        return [host for host in self.hosts if host.end is None]

    def run(self):
        """To its end. Raises ViolationError."""
        if not self.run_until(lambda: len(self.hosts) >= self.wanted and not self.alive(), LIMIT_S):
            hang = [(host.number, host.phase, host.step) for host in self.alive()]
            raise ViolationError(f"these hosts hang: {hang}")
        self.run_until(lambda: False, 2.5 * DEADLINE_S)  # one that was started too late is alone
        for switch in self.switches:
            if switch.process is not None and (left := switch.process.leftovers()):
                raise ViolationError(f"left at the end: {', '.join(left)}")

    def run_until(self, is_over, limit_s):
        """Returns whether it is over, within so long."""
        return self.world.run(is_over, self.world.now() + limit_s)


def storm(seed):
    """Anything at any time. Hosts that are lost are started again, some of them."""
    training = Training(seed, hosts=2 + seed % 3, least=1 + seed % 2, standby=seed % 4 == 0, straggling=0.01)
    random = training.world.random
    for _ in range(random.randint(1, 5)):
        training.world.call_later(random.uniform(0, 20.0), lambda: strike(training))
    return training


def strike(training):
    random, alive = training.world.random, training.alive()
    if not alive:
        return
    host, what = random.choice(alive), random.random()
    if what < 0.5:
        host.die()
        if random.random() < 0.8:
            training.world.call_later(random.uniform(0, 5.0), lambda: training.start(host.rank))
    elif what < 0.7:
        host.stop(random.uniform(0.01, STRAGGLES_MAX_S))
    elif what < 0.85:
        switch = random.choice(training.switches)
        switch.go_down()
        training.world.call_later(random.uniform(0, 5.0), switch.begin)
    else:
        training.cut(host, random.randrange(len(training.switches)), random.uniform(0.1, 10.0))


def attempt(seed: int) -> tuple[str, dict]:
    """What is wrong with a training in a storm, if anything, and what was counted."""
    training, wrong = storm(seed), ""
    try:
        training.run()
    except Exception as error:
        wrong = what_was_raised(error)
    ends = Counter(f"end: {(host.end or 'hangs').partition(':')[0]}" for host in training.hosts)
    return wrong, {"steps": sum(host.step or 0 for host in training.hosts), "lines": training.world.lines, **ends}
