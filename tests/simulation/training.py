"""Hosts of an elastic session that train, in a simulated network with faults, all from one seed.

A sum is complete when all members of an epoch have given their part; each of them hears of it at another time, or of a
failure before. What a host has computed is a chain of hashes: equal only if the same steps were taken by as many hosts.
"""

from types import SimpleNamespace

from jax_passing.config import Settings
from jax_passing.errors import InterruptionError
from jax_passing.host.control.joining import Joining, Rehearsing
from simulation.packetless import LINE_DELAY_S, NoSocket, NoTransport, packetless_switch, packetless_world
from simulation.switches import LEASE_S
from simulation.world import Machine, Process, ViolationError

STEPS = 12
PATIENCE_S = 300.0
PROGRAMS = [  # the second one's has a comment line more in its script
    SimpleNamespace(name="step", devices="0", fingerprint="", identities=[f'{{"place":["train.py:{line} in step"]}}'])
    for line in (41, 42)
]
STRAGGLES_MAX_S = 30.0
DEADLINE_S = 60.0
LIMIT_S = 1200.0
COMPILES_MAX_S = 100.0
WAITS_MAX_S = 10.0  # for nobody but a host that compiles


class TrainingProcess(Process):
    """A host's process, as what its control side needs of the world (host/control/outside.py)."""

    def __init__(self, host):
        number = host.number
        super().__init__(host.training.world, Machine(host.training.world, f"10.1.0.{number}"))
        self._host, self.instance = host, f"process {number}"
        self._cut_from = set()  # hosts of switches

    def connect(self, address, timeout_s, conversation, job, key):
        if address[0] in self._cut_from:
            late = TimeoutError("timed out")
            self.call_later(timeout_s, lambda: conversation.closed(late))
        else:
            self.world.connect(self, address, timeout_s, conversation, job, key)

    def cut(self, switch, for_s):
        self._cut_from.add(switch)
        for stream in list(self.streams):
            if stream.host == switch:
                stream.give_up()
        self.world.call_later(for_s, lambda: self._cut_from.discard(switch))

    def open_socket(self, host, port, planes):
        return NoSocket()

    def start_transport(self, links, events, **settings):
        return NoTransport(self._host)


class Host:
    """One process.

    Attributes:
      end: why it is over; None until then.
      ended_s: when that was.
      met_s: when it began to wait for the others, the last time.
      busy_s: how long it takes to notice the next failure.
      new_in: the meeting in which it was a newcomer; None until then.
    """

    def __init__(self, training, number, rank, wrong=""):
        """`wrong`: in what it isn't like the others: in its "wire", its "program", or as it doesn't "meet" them."""
        self.training, self.world, self.number, self.wrong = training, training.world, number, wrong
        self.process = TrainingProcess(self)
        addresses = [switch.address for switch in training.switches]
        settings = Settings(
            switch=tuple(addresses[: training.shards]),
            standby=tuple(addresses[training.shards :]),
            job="training",
            rank=rank,
            world_size=training.wanted,
            world_size_min=None if wrong == "meet" else training.least,
            join_deadline_s=DEADLINE_S,
            wire_dtype="int8" if wrong == "wire" else "full",
            lease_s=training.lease_s,
        )
        self.joining, self.ranks, self.rank = Joining(self.process, settings), None, rank
        self.step, self.value, self.before = None, None, None
        self.phase, self.end, self.epoch, self.sums_started = "new", None, None, 0
        self.has_compiled, self.new_in, self.met_s, self.ended_s = False, None, 0.0, 0.0
        self.lost, self.has_been_right, self.is_put_out = (), False, False
        self.busy_s = 0.0
        self.meet(())

    @property
    def met(self):
        """Returns what was agreed on at the last meeting; None before the first."""
        return self.joining.met

    # Time.

    def later(self, delay_s, callback):
        self.process.call_later(delay_s, callback)

    def stop(self, for_s):
        self.process.machine.pause(for_s)

    def die(self, *, is_noticed=True):
        if self.end is None and is_noticed:
            self.process.end()
            self.leave("died")
        elif self.end is None:
            self.end, self.phase = "died", "over"
            self.process.end(is_noticed=False)

    def leave(self, end):
        self.end, self.phase, self.ended_s = end, "over", self.world.now()
        self.joining.close()
        self.process.end()

    # Joining.

    def meet(self, lost):
        self.phase, self.epoch, self.met_s = "joining", None, self.world.now()
        self.joining.join(self.step, lost, self.on_joined, self.on_not_joined, rehearses=not self.has_compiled)

    def on_not_joined(self, error):
        self.check_passes(isinstance(error, InterruptionError), error)
        if self.wrong == "wire" and self.met is not None and self.met.survivors:
            raise ViolationError(f"host {self.number} has another wire, and those that run have met with it")
        if self.step is not None and self.world.now() < self.interrupted_s + PATIENCE_S:
            self.meet(self.lost)
        else:
            self.leave(f"refused: {error}")

    def check_passes(self, passes, why):
        """A host that has the state isn't like a newcomer: nobody else's mistake ends it."""
        if self.step is not None and self.has_been_right and not passes and not self.is_put_out:
            raise ViolationError(f"host {self.number} has step {self.step}, and is ended by: {why}")

    def on_joined(self, joined):
        if isinstance(joined, Rehearsing):
            assert joined.rank == joined.world_size - 1 > 0
            self.phase = "rehearsing"
            self.compile(lambda: self.meet(()))
            return
        if self.met is None:
            self.leave("alone")  # with others that meet nobody: a job of their own
            return
        self.phase, self.ranks, self.rank, self.sums_started = "running", joined.ranks, joined.rank, 0
        assert joined.world_size >= self.training.least
        self.training.check_wait(self, joined)
        if joined.rank >= joined.survivors:
            self.step = None
        else:
            assert joined.step <= self.step <= joined.step + 1, "more than one step is lost"
            if self.step != joined.step:
                self.step, self.value = self.before  # it was one step ahead
        self.epoch = tuple((shard.hello.instance, shard.welcome.epoch) for shard in joined.ranks.host.shards)
        if self.wrong == "wire" and joined.survivors:
            raise ViolationError(f"host {self.number} has another wire than those that it joins")
        joined.ranks.host.program(PROGRAMS[self.wrong == "program"])
        if joined.survivors < joined.world_size:
            state = (0, 0) if self.step is None else (self.step, self.value)
            epoch = self.epoch
            self.compile(lambda: self.is_in(epoch) and self.training.give(self, "share", state, self.on_share))
        else:
            self.compute()

    # Training.

    def compile(self, then):
        """Calls `then` when its programs are compiled."""
        if self.has_compiled:
            then()
            return

        def compiled():
            self.has_compiled = True
            then()

        self.later(self.training.compilation_s(), compiled)

    def is_in(self, epoch):
        """Tells whether it runs in this epoch still."""
        return self.epoch == epoch and self.phase == "running"

    def on_share(self, parts):
        self.step, self.value = parts[0]
        assert self.met.step in (None, self.step)
        self.compute()

    def compute(self):
        delay_s = self.world.random.expovariate(1 / 0.3)
        if self.world.random.random() < self.training.straggling:
            delay_s = self.world.random.uniform(0.01, STRAGGLES_MAX_S)
        epoch = self.epoch
        self.later(delay_s, lambda: self.is_in(epoch) and self.sum())

    def sum(self):
        self.training.give(self, self.step, (self.step, self.value), self.on_sum)

    def on_sum(self, parts):
        self.has_been_right = True
        assert len({*parts.values()}) == 1, f"hosts of one epoch differ: {parts}"
        self.before = self.step, self.value
        self.step, self.value = self.step + 1, hash((self.value, len(parts)))
        if self.step == self.training.steps:
            self.ranks.leave(lambda _: None)
            self.leave("done")
        else:
            self.compute()

    def on_failed(self):
        failure = self.ranks.failure
        self.check_passes(failure.is_interruption, failure)
        self.training.failures.append((self.world.now(), failure.kind))
        self.phase, self.lost, self.interrupted_s = "failed", failure.ranks, self.world.now()
        if not failure.is_interruption:
            self.later(0.0, lambda: self.leave(f"refused: {failure.message}"))
            return
        # The thread that trains notices when it next sums.
        busy_s, self.busy_s = self.busy_s, 0.0
        self.later(busy_s + self.world.random.expovariate(1 / 0.3), lambda: self.meet(failure.ranks))


class Training:
    """Hosts train, are lost, and meet again in one world.

    Attributes:
      hosts: all processes that there ever were.
      failures: (when, kind), as a host has heard.
    """

    def __init__(
        self,
        seed,
        *,
        hosts,
        least=1,
        standby=False,
        shards=1,
        straggling=0.0,
        compiling=0.0,
        line_delay_s=LINE_DELAY_S,
        lease_s=LEASE_S,
        steps=STEPS,
    ):
        """`shards`: switches of the job. `straggling`, `compiling`: how often a host computes, or a newcomer compiles,
        for up to 30, or 100, s."""
        self.shards, self.lease_s = shards, lease_s
        self.steps = steps
        self.world = packetless_world(seed, line_delay_s)
        self.wanted, self.least, self.straggling, self.compiling = hosts, least, straggling, compiling
        self.is_calm = True  # nothing has happened yet but that hosts died
        self.switches = [packetless_switch(self.world, number, lease_s) for number in range(shards + standby)]
        self.failures, self._sums = [], {}
        self._epochs = []  # in which sums were completed, in this order
        self.hosts = []
        self._next = 1
        for rank in range(hosts):
            self.world.call_later(self.world.random.uniform(0, 1), lambda rank=rank: self.start(rank))

    def start(self, rank, wrong=""):
        self.hosts.append(Host(self, self._next, rank, wrong))
        self._next += 1

    def give(self, host, step, part, done):
        """A host's part of one sum of its epoch."""
        host.sums_started += 1
        members = self._sums.setdefault((host.epoch, step, host.wrong == "program"), {})
        members[host.rank] = (host, part, done)
        if len(members) < host.met.world_size:
            return
        self._complete(host.epoch, members)

    def _complete(self, epoch, members):
        """Completes a sum when all its hosts reach its switches, if these still have the epoch by then."""
        switches = [self.switch_of(*shard) for shard in epoch]
        if None in switches:
            return  # they hear of it
        hosts = [host.process.machine for host, _, _ in members.values()]
        ways = [way for host in hosts for one in switches for way in (one.blocked_us(host), host.blocked_us(one))]
        if max(*ways, *(one.paused_until_us for one in switches)) > self.world.now_us:
            self.world.call_later(0.05, lambda: self._complete(epoch, members))
            return
        if epoch not in self._epochs:
            self._epochs.append(epoch)
        if epoch != self._epochs[-1]:
            raise ViolationError(f"two parts of the job train apart: {self._epochs}")
        parts = {rank: given for rank, (_, given, _) in sorted(members.items())}
        for one, _, then in members.values():
            self._hear(one, epoch, parts, then)

    def switch_of(self, instance, number):
        """Returns the machine of the switch with this instance, if this epoch runs there; else None."""
        for switch in self.switches:
            process = switch.process
            if process is not None and process.plane.instance == instance:
                return switch if any(one.number == number for one in process.plane.jobs.epochs()) else None
        return None

    def _hear(self, host, epoch, parts, then):
        host.later(self.world.random.uniform(0, 0.2), lambda: host.is_in(epoch) and then(parts))

    def compilation_s(self):
        is_long = self.has_state and self.world.random.random() < self.compiling
        return self.world.random.uniform(1.0, COMPILES_MAX_S) if is_long else 0.1

    def check_wait(self, host, joined):
        """Nobody waits for hosts that compile, if those are enough who have. Raises ViolationError."""
        if joined.rank >= joined.survivors and host.new_in is None:
            host.new_in = host.met.meeting
            if joined.survivors >= self.least and not host.has_compiled:
                raise ViolationError(f"host {host.number} compiles, and {joined.survivors} others wait for it")
        if joined.rank >= joined.survivors or joined.survivors < self.least or not self.is_calm:
            return
        others = [other for other in self.hosts if other.new_in not in (None, host.met.meeting)]
        since_s = max(max(other.met_s, other.ended_s) for other in (host, *others))
        if self.world.now() > since_s + WAITS_MAX_S:
            raise ViolationError(f"host {host.number} has waited for nobody since {since_s:.1f} s")

    def cut(self, host, switch, for_s):
        """The network between a host and a switch, which is given by its index, breaks."""
        self.is_calm = False
        host.process.cut(self.switches[switch].address[0], for_s)

    @property
    def has_state(self):
        """Says whether a host that is like the others has the state, so that it is known who is right."""
        return any(host.end is None and not host.wrong and host.step is not None for host in self.hosts)

    def alive(self):
        return [host for host in self.hosts if host.end is None]

    def run(self):
        """To its end. Raises ViolationError."""
        if not self.run_until(lambda: len(self.hosts) >= self.wanted and not self.alive(), LIMIT_S):
            hang = [(host.number, host.phase, host.step) for host in self.alive()]
            raise ViolationError(f"these hosts hang: {hang}")
        self.run_until(lambda: False, COMPILES_MAX_S + 4 * DEADLINE_S)  # one that was started too late is alone
        for switch in self.switches:
            if switch.process is not None and (left := switch.process.leftovers()):
                raise ViolationError(f"left at the end: {', '.join(left)}")

    def run_until(self, is_over, limit_s):
        """Returns whether it is over, within so long."""
        return self.world.run(is_over, self.world.now() + limit_s)
