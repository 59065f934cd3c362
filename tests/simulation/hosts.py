"""Hosts: the shipped control side and RankCore in a simulated world, and what they do with their sums."""

from collections.abc import Callable
from types import SimpleNamespace

import msgspec

from jax_passing.config import Settings
from jax_passing.errors import Failure
from jax_passing.host.control.joining import Joining
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys
from simulation.judge import DEADLINE_S, JOIN_DEADLINE_S, SessionRecord
from simulation.plan import KEY, Host, Job
from simulation.switches import SimulatedSocket, address_of, switch_key
from simulation.world import Machine, Process

WARN_S = 1.0
STALL_FIELDS = [
    "site_name",
    "execution",
    "step",
    "waits_for_gpu",
    "waits_for_order",
    "shard",
    "slot",
    "version",
    "sequence",
]


class HostSocket:
    """A simulated socket stands in for loop.PacketSocket."""

    def __init__(self, process, address, planes):
        self._socket, self._on_event = SimulatedSocket(process, address, planes), process.world.on_event
        self.planes, self.port = self._socket.planes, self._socket.port
        self.lanes_that_fit = self._socket.lanes_that_fit
        self.probe_path, self.hears_path = self._socket.probe_path, self._socket.hears_path

    def join_group(self, offer, on_heard):
        for number in self.planes:
            self._on_event[number] = lambda kind, *_: kind == "heard" and self._socket.hears_group() and on_heard()
        self._socket.join_group(offer.address, offer.port, job=offer.job_id, epoch=offer.epoch, nonce=offer.nonce)

    def stop_listening(self):
        for number in self.planes:
            self._on_event.pop(number, None)

    def leave_group(self):
        self.stop_listening()
        self._socket.leave_group()

    def close(self):
        self.stop_listening()
        self._socket.close()


class Transport:
    """A simulated transport stands in for loop.Transport."""

    def __init__(self, process, links, events, *, planes, **settings):
        self._process, self._packets, self._events = process, process.world.packets, events
        for link in links:
            link.socket.stop_listening()
        self._host = self._packets.add_host(
            shards=[_shard_of(link, plane) for link in links for plane in range(planes)], **settings
        )
        process.world.on_event[self._host] = self._on_event
        self._sums_started = 0

    def execute(self, execution, sites, spread_us):
        self._sums_started += len(sites)
        self._packets.execute(self._host, execution, sites, spread_us)

    def deliver_order_message(self, content):
        self._packets.order_message(self._host, content)

    def note_stall(self, note):
        self._packets.note_stall(self._host, note)

    def fail(self, kind, text):
        self._packets.fail(self._host, kind, text)
        self._process.session.on_failed()

    def failure(self):
        return None

    def stats(self):
        return {"sums_started": self._sums_started}

    def close(self):
        del self._process.world.on_event[self._host]
        self._packets.remove_host(self._host)

    def _on_event(self, kind, *what):
        match kind, what:
            case "order", (payload,):
                self._events.order(payload)
            case "executed", (_,):
                self._process.session.on_executed()
            case "group_lost", (shard,):
                self._events.group_lost(shard)
            case "failed", (name, text):
                self._events.transport_failed(name, text)
            case "stalled", (stalled_s, fields):
                self._events.stalled(SimpleNamespace(**dict(zip(STALL_FIELDS, fields, strict=True))), stalled_s)


def _shard_of(link, plane):
    welcome = link.welcome
    whole_lanes = welcome.lanes_per_chunk if welcome.whole_chunks else 0
    slots = welcome.job_id, welcome.epoch, welcome.slot_first, welcome.worker
    packet_keys = keys.pair_of_plane(welcome.packet_keys, plane)
    return link.socket.planes[plane], *slots, whole_lanes, packet_keys, welcome.bare


class Unaware:
    """A host without a key doesn't notice here that the switch wants one."""

    def __init__(self, conversation):
        self._conversation = conversation

    def __getattr__(self, name):
        return getattr(self._conversation, name)

    def heard(self, line):
        said = messages.decode_from_switch(line)
        if isinstance(said, messages.Hello):
            line = messages.encode(msgspec.structs.replace(said, secured=False))
        self._conversation.heard(line)


class Session:
    """A session lasts from `init` to its end, when `over` is called."""

    def __init__(self, process: "HostProcess", over: Callable[[SessionRecord], None]):
        self.process = process
        self.plan, self.job = process.plan, process.job
        plan, job = self.plan, self.job
        self.record = SessionRecord(host=plan.number, rank=plan.rank, does=plan.does, began_s=process.now())
        self._over = over
        self.is_over = False
        self._begun = self._done = 0  # executions
        self._ranks = None
        settings = Settings(
            switch=tuple(address_of(switch) for switch in plan.switches),
            job=job.name,
            rank=plan.rank,
            world_size=job.world_size + (plan.does == "miscounts"),
            join_deadline_s=JOIN_DEADLINE_S,
            deadline_s=DEADLINE_S,
            warn_s=WARN_S,
            threads=1,
            check_sums=True if job.checks_sums else None,
        )
        hosts_key = b"\1" * keys.KEY_BYTES if job.is_confidential else None
        self._joining = Joining(process, settings, key=self._key(), hosts_key=hosts_key)

    def _key(self):
        """Returns None if it has none."""
        has_keys = any(switch.key for switch in self.process.cluster.plan.switches)
        if not has_keys or self.plan.does in ("lacks the key", "joins without the key"):
            return None
        return keys.job_key(switch_key(KEY + 2 if self.plan.does == "has another key" else KEY), self.job.name)

    def join(self):
        self._joining.join(None, (), self._on_joined, self._on_not_joined)

    def _on_not_joined(self, error):
        self._end(type(error).__name__, str(error), getattr(error, "ranks", ()))

    def begin_sums(self, links, events, **settings):
        """Makes its transport, now that it is welcomed."""
        cluster, welcome = self.process.cluster, links[0].welcome
        self.record.welcomed_s = self.process.now()
        self.record.incarnation = cluster.incarnation_at(self.plan.switches[0], welcome)
        return Transport(
            self.process,
            links,
            events,
            first_position=cluster.plan.first_position,
            incarnation=self.record.incarnation,
            **settings,
        )

    # Its sums.

    def _on_joined(self, joined):
        self._ranks = joined.ranks
        self._go_on()

    def _go_on(self):
        """Begins executions, and leaves after the last of them."""
        if self.is_over:
            return
        job, does = self.job, self.plan.does
        while self._begun < min(job.executions, self._done + job.ahead) and not self.is_over:
            execution, self._begun = self._begun, self._begun + 1
            sites = job.programs[execution % len(job.programs)]
            if does == "skips" and execution == 0:
                self._done += 1
                continue
            is_last = self._begun == job.executions
            if does == "fails" and is_last:
                self._ranks.fail(Failure("DeadlineExceededError", "it has waited long enough"))
            elif does == "garbage" and is_last:
                self._ranks.host.shards[0].send(b"garbage\n")
            elif does == "leaves" and is_last:
                self._leave()
                return
            else:
                self.record.begun_s = self.process.now()
                self._ranks.host.transport.execute(execution, list(sites), job.spread_us)
        if self._done == job.executions and self.record.left_s is None and not self.is_over:
            self._leave()

    def on_executed(self):
        self._done += 1
        self.process.call_later(self.process.world.random.uniform(0, self.job.thinks_s), self._go_on)

    def _leave(self):
        self.record.left_s = self.process.now()
        self._ranks.leave(lambda _: self._end("Bye"))
        self.process.call_later(DEADLINE_S, lambda: self._end("left alone"))

    # Its end.

    def on_failed(self):
        failure = self._ranks.failure
        self._end(failure.kind, failure.message, failure.ranks)

    def _end(self, kind, text="", ranks=()):
        if not self.is_over:
            self.close(kind, text, ranks)
            self._over(self.record)

    def close(self, kind, text="", ranks=()):
        """Also of a process that has ended."""
        self.is_over = True
        record = self.record
        record.kind, record.text, record.ranks, record.ended_s = kind, text, ranks, self.process.now()
        self._joining.close()


class HostProcess(Process):
    """This is what the control side needs of the world (host/control/outside.py)."""

    def __init__(self, cluster, machine: Machine, plan: Host, job: Job):
        super().__init__(cluster.world, machine)
        self.cluster = cluster
        self.plan, self.job = plan, job
        self.instance = f"{self.world.random.getrandbits(64):x}"
        self.session = None

    def connect(self, address, timeout_s, conversation, job, key):
        if self.plan.does == "joins without the key":
            conversation = Unaware(conversation)
        self.world.connect(self, address, timeout_s, conversation, job, key)

    def random_bits(self, count):
        return self.world.random.getrandbits(count)

    def open_socket(self, host, port, planes):
        return HostSocket(self, (host, port), planes)

    def start_transport(self, links, events, *, job, threads, check_keys, mask_keys, **settings):
        assert threads == 1
        check_key, mask_key = (several[0] if several else None for several in (check_keys, mask_keys))
        return self.session.begin_sums(links, events, check_key=check_key, mask_key=mask_key, **settings)

    def end(self, *, is_noticed=True):
        super().end(is_noticed=is_noticed)
        if self.session is not None:
            self.session.record.is_silent = not is_noticed
            self.session.close("crashed")
            self.session = None


class HostMachine(Machine):
    """Its process, and the one after a crash, hold sessions until there are enough of them.

    Attributes:
      records: of all sessions.
      is_done: there will be no more of them.
    """

    def __init__(self, cluster, plan: Host, job: Job):
        super().__init__(cluster.world, f"10.1.{plan.number // 250}.{plan.number % 250 + 1}")
        self.plan, self._job, self._cluster = plan, job, cluster
        self.lanes_that_fit, self.passes_what_fits = plan.lanes_that_fit, plan.passes_what_fits
        self.records: list[SessionRecord] = []
        self.is_done = False
        self._sessions_left, self._tries_left = plan.sessions, plan.tries
        self._until_s = None if plan.until_s is None else self.world.now() + plan.until_s
        self.process = None
        self._dead = None
        self.world.call_later(plan.starts_s, self.begin)

    def begin(self):
        if self._dead is not None:
            self._dead.reset()
        self.process = HostProcess(self._cluster, self, self.plan, self._job)
        self._init()

    def _init(self):
        self._tries_left -= 1
        self.process.session = Session(self.process, self._on_end)
        self.process.session.join()

    def _on_end(self, record):
        self.process.session = None
        self.records.append(record)
        self._sessions_left -= record.kind == "Bye"
        is_late = self._until_s is not None and self.world.now() >= self._until_s
        if self._sessions_left == 0 or self._tries_left <= 0 or is_late or self.plan.does:
            self.finish()
        else:
            self.process.call_later(self.world.random.choice([0.0, 0.3]), self._init)

    def finish(self):
        self.is_done = True
        self._cluster.on_done()
        self.process.end()

    def crash(self, fault):
        if self.process is None or self.process.session is None or self.is_done:
            return
        self.records.append(self.process.session.record)
        self._dead, self.process = self.process, None
        self._dead.end(is_noticed=not fault.silent)
        if fault.for_s and self._tries_left > 0:
            self.world.call_later(fault.for_s, self.begin)
        else:
            self.is_done = True
            self._cluster.on_done()
