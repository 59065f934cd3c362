"""Trees of control planes and their hosts in a simulated network, with faults, all from one seed."""

import itertools
from functools import partial

from control import RecordingDataPlane
from simulated_network import SimulatedWorld

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.control_plane import ControlPlane
from jax_passing.switch.data_plane import Group

LEASE_S = 5.0
PORT = 7171
JOIN_DEADLINE_S = 10.0
LIFE_MAX_S = 20.0  # of a job, before its hosts leave or fail


class SimulatedDataPlane(RecordingDataPlane):
    """Each job finds another one: it may have a multicast group, and may refuse.

    Attributes:
      taken: all jobs that it ever ran.
    """

    def __init__(self, world):
        super().__init__()
        self._world = world
        self.taken = []

    def group(self, job, own_address):
        self.offered = Group("239.192.0.1", 7172, own_address) if self._world.random.random() < 0.5 else None
        return self.offered

    def probe(self, group, job, epoch, nonce):
        pass

    def socket_to(self, host, port):
        return SimulatedGroupSocket(self._world) if self._world.random.random() < 0.5 else None

    def add_job(self, job):
        self.refuses = self._world.happens(0.05)
        super().add_job(job)
        self.taken.append(job)

    def check(self):
        if self._world.happens(0.0005):
            self.lost = "its tables are empty"
        return super().check()


class SimulatedGroupSocket:
    port = 4243

    def __init__(self, world):
        self._world = world

    def join_group(self, address, port, *, job, epoch, nonce):
        if self._world.random.random() < 0.2:
            raise OSError("no such device")

    def hears_group(self):
        return self._world.random.random() < 0.1

    def leave_group(self):
        pass


class SimulatedSwitch:
    """It may crash, and begin anew at the same address, with nothing in it."""

    def __init__(self, world, number, parent):
        self.world = world
        self.address = (f"10.0.0.{number}", PORT)
        self.parent = parent
        self.plane = None
        self.data_planes = []  # of each of its lives
        self.begin()

    def begin(self):
        if self.plane is not None:
            return
        self.streams = []
        self._timers = []
        self.data_plane = SimulatedDataPlane(self.world)
        self.data_planes.append(self.data_plane)
        parent = None if self.parent is None else self.parent.address
        self.plane = ControlPlane(self.data_plane, self, lease_s=LEASE_S, slots_per_job=256, parent=parent)
        self.world.listeners[self.address] = self

    def crash(self, is_noticed=True):
        """`is_noticed`: those who spoke to it hear of it at once; else there is silence, as when a machine is gone."""
        self.world.listeners.pop(self.address, None)
        self.plane = None
        for timer in self._timers:
            timer.cancel()
        for stream in self.streams:
            stream.listener = Deaf()
            if is_noticed:
                stream.give_up()
        self.world.has_been_silent |= not is_noticed

    # Its `outside`.

    def now(self):
        return self.world.now()

    def random_bits(self, count):
        return self.world.random_bits(count)

    def call_later(self, delay_s, callback):
        timer = self.world.call_later(delay_s, callback)
        self._timers.append(timer)
        return timer

    def connect(self, address, timeout_s, conversation):
        own = OwnEnd(self, conversation)
        self.world.connect(self.address[0], address, own)


class OwnEnd:
    """A conversation that a switch has begun. It ends when the switch crashes, whether there is a stream yet or not."""

    def __init__(self, switch, conversation):
        self._switch = switch
        self._conversation = conversation
        self._life = switch.plane

    def opened(self, stream):
        if self._switch.plane is self._life:
            self._switch.streams.append(stream)
            self._conversation.opened(stream)
        else:
            stream.listener = Deaf()
            stream.give_up()

    def heard(self, line):
        self._conversation.heard(line)

    def closed(self, error):
        if self._switch.plane is self._life:
            self._conversation.closed(error)


class Deaf:
    """What a process that is gone says to anything."""

    def opened(self, connection): ...

    def heard(self, line): ...

    def closed(self, error): ...


class SimulatedHost:
    """One rank of a job.

    Attributes:
      heard_all: what the switch has said, Heartbeats excepted.
      end: why it is over; None until then.
    """

    def __init__(self, world, number, switch, job, rank, world_size):
        self.world = world
        self.number, self.switch, self.job, self.rank, self.world_size = number, switch, job, rank, world_size
        self.heard_all = []
        self.end = None
        self.has_left = False
        world.call_later(world.random.uniform(0, 2.0), self._call)

    def _call(self):
        self.world.connect(f"10.1.0.{self.number}", self.switch.address, self)

    def opened(self, stream):
        self._stream = stream
        self._patience_s = JOIN_DEADLINE_S + LEASE_S
        self._heard_last = self.world.now()
        self._listen()

    def _listen(self):
        """As a host does, it gives up a switch that is silent."""
        if self.end is None:
            if self.world.now() - self._heard_last > self._patience_s:
                self.die("heard nothing")
            self.world.call_later(1.0, self._listen)

    def closed(self, error):
        if self.end is None:
            self.end = f"closed: {error}"

    def heard(self, line):
        self._heard_last = self.world.now()
        message = messages.decode_from_switch(line)
        if isinstance(message, messages.Heartbeat):
            return
        self.heard_all.append(message)
        match message:
            case messages.Hello():
                self._join(message)
            case messages.GroupOffer(nonce=nonce) if not self.world.happens(0.2):
                self._stream.send(messages.GroupReady(nonce, "no such device" if self.world.happens(0.3) else ""))
                if not self.world.happens(0.2):
                    self._stream.send(messages.GroupHeard(nonce))
            case messages.Welcome(slot_first=first):
                self._slot_first = first
                self._patience_s = LEASE_S
                self._beat()
                self.world.call_later(self.world.random.uniform(0, LIFE_MAX_S), self._decide)
            case messages.SlotState():
                self._stream.send(messages.Leave())
                self.has_left = True
            case messages.Refused() | messages.Failed() | messages.Bye():
                self.end = type(message).__name__
                self._stream.close()

    def _join(self, hello):
        if self.world.happens(0.05):
            self.die()
            return
        self._stream.send(
            messages.Join(
                protocol_version=messages.PROTOCOL_VERSION,
                job=self.job,
                rank=self.rank,
                world_size=self.world_size + self.world.happens(0.02),
                switches=(hello.instance,),
                udp_port=1000 + self.number,
                instance=f"process {self.number}",
                join_deadline_s=JOIN_DEADLINE_S,
            )
        )
        if self.world.happens(0.1):
            self.world.call_later(self.world.random.uniform(0, 3.0), self.die)

    def _beat(self):
        if self.end is None:
            self._stream.send(messages.Heartbeat())
            self.world.call_later(LEASE_S / messages.HEARTBEATS_PER_LEASE, self._beat)

    def _decide(self):
        """What becomes of it while the job runs."""
        if self.end is not None:
            return
        if self.world.happens(0.05):
            self.die()
        elif self.world.happens(0.05):
            self.end = "stopped"  # alive, and silent
        elif self.world.happens(0.05):
            self._stream.send(messages.Fail("DeadlineExceededError", "late"))
        elif self.world.happens(0.05):
            self._stream.send(b"garbage\n")
        else:
            if self.rank == 0:
                self._stream.send(messages.Relay(b"\0order"))
            self._stream.send(messages.Query(self._slot_first, 0))

    def die(self, end="died"):
        if self.end is None:
            self.end = end
            self._stream.listener = Deaf()
            self._stream.give_up()


class SimulatedTree:
    """A root, racks' switches below it, jobs of hosts anywhere, and faults; `faults` 0 for none."""

    def __init__(self, seed, faults=1.0):
        self.world = world = SimulatedWorld(seed, faults)
        random = world.random
        numbers = itertools.count(1)
        self.switches = [SimulatedSwitch(world, next(numbers), None)]
        for _ in range(random.randrange(4)):
            self.switches.append(SimulatedSwitch(world, next(numbers), random.choice(self.switches)))
        self.hosts = []
        for job in range(random.randint(1, 3)):
            world_size = random.randint(1, 5)
            below = [switch for switch in self.switches if random.random() < 0.7] or self.switches[:1]
            for rank in range(world_size):
                where = random.choice(below)
                self.hosts.append(SimulatedHost(world, next(numbers), where, f"job {job}", rank, world_size))
            if random.random() < 0.3:  # a stray: somebody else takes it for a rank of the job
                where, rank = random.choice(below), random.randrange(world_size)
                self.hosts.append(SimulatedHost(world, next(numbers), where, f"job {job}", rank, world_size))
        for switch in self.switches:
            if world.happens(0.2):
                crash_s = random.uniform(0, random.choice([3.0, LIFE_MAX_S]))
                world.call_later(crash_s, partial(switch.crash, random.random() < 0.5))
                world.call_later(crash_s + random.uniform(0.1, 8.0), switch.begin)
        if len(self.switches) > 1 and not any(host.switch is self.switches[0] for host in self.hosts):
            self.switches[0].crash()  # it starts later than the racks' switches
            world.call_later(random.uniform(0, 3.0), self.switches[0].begin)

    def run(self):
        """Until all hosts know how their job ended. Returns those that don't."""
        # The longest: they wait for others in vain, or the job runs and then its members are silent.
        limit_s = JOIN_DEADLINE_S + 2 * LIFE_MAX_S + 4 * LEASE_S
        self.world.run(lambda: all(host.end for host in self.hosts), limit_s)
        return [host for host in self.hosts if host.end is None]
