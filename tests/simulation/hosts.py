"""Hosts: the shipped AllReduce behind what jax_passing/host does with a switch's messages, in a simulated world.

`Session` does what `membership.Membership` and `shard.Shard` do with threads and blocking sockets, with their constants
and with what of them decides without I/O.
"""

import ssl
from collections.abc import Callable
from types import SimpleNamespace

import msgspec

from jax_passing.host.control_connection import CONNECT_TIMEOUT_S, RETRY_S
from jax_passing.host.shard import ANSWER_S, JOIN_GRACE_S
from jax_passing.host.stalls import StallReporter
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys
from simulation.judge import DEADLINE_S, JOIN_DEADLINE_S, SessionRecord
from simulation.plan import KEY, Host, Job
from simulation.switches import LEASE_S, SimulatedSocket, address_of, switch_key
from simulation.world import Deaf, Machine, Process

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


class Shard:
    """The conversation with one switch."""

    def __init__(self, session: "Session", number: int, address: tuple[str, int]):
        self._session = session
        self._number = number
        self.address = address
        self.hello = None
        self.socket = None
        self.welcome = None
        self.is_over = False  # the switch said Bye
        self._is_secured = False
        self._stream = None
        self._unread = []  # lines that came while other shards were still being joined
        self._patience_s = CONNECT_TIMEOUT_S
        self._silence = None

    def connect(self):
        session = self._session
        key = None if session.plan.does == "joins without the key" else session.key
        session.process.world.connect(session.process, self.address, CONNECT_TIMEOUT_S, self, session.job.name, key)

    def opened(self, stream):
        self._stream = stream
        self._expect_more()

    def secured(self):
        self._is_secured = True

    def closed(self, error):
        self._stop_waiting()
        if isinstance(error, ssl.SSLError):
            self._session.fail("AuthenticationError", str(error), tell=False)
        elif self.hello is None:
            self._session.not_connected(self)
        else:
            self._session.lost(self, str(error or "the connection was closed"))

    def heard(self, line):
        if self.welcome is not None and not self._session.has_begun:
            self._unread.append(line)
            return
        message = messages.decode_from_switch(line)
        if self.welcome is None and isinstance(message, messages.SlotState):
            return  # for whom it waits; that doesn't make it wait for longer
        self._expect_more()
        match message:
            case messages.Hello() if self.hello is None and not self._may_go_on(message):
                pass
            case messages.Hello() if self.hello is None:
                self.hello = message
                self.socket = SimulatedSocket(self._session.process, (self.address[0], message.data_port))
                self._session.process.world.on_event[self.socket.number] = self._on_event
                self._session.connected(self)
            case messages.GroupOffer(nonce=nonce):
                self._nonce = nonce
                self.socket.join_group(
                    message.address, message.port, job=message.job_id, epoch=message.epoch, nonce=nonce
                )
                self.send(messages.GroupReady(nonce))
            case messages.Welcome():
                self.welcome = message
                self._patience_s = message.lease_s
                self._expect_more()
                if not message.multicast:
                    self.socket.leave_group()
                self._session.welcomed()
            case messages.Refused(kind, text):
                self._session.fail(kind, text, tell=False)
            case messages.Failed(kind, text, ranks):
                self._session.fail(kind, text, ranks, source=self)
            case _:
                self._session.heard(self, self._number, message)

    def _may_go_on(self, hello):
        """Else it is over."""
        session = self._session
        if session.plan.does == "joins without the key" or self._is_secured:
            return True
        if hello.secured != (session.key is not None):
            session.fail("AuthenticationError", "only one of us has a key", tell=False)
        return session.key is None and not hello.secured

    def _on_event(self, kind, *_):
        if kind == "heard" and self.welcome is None:
            self.send(messages.GroupHeard(self._nonce))

    def join(self, join):
        self._patience_s = JOIN_DEADLINE_S + JOIN_GRACE_S
        self._expect_more()
        self.send(join)
        self._session.process.call_later(WARN_S, self._ask)

    def _ask(self):
        """For whom it waits."""
        if self.welcome is None and not self._session.is_over:
            self.send(messages.Query())

    def read_on(self):
        """The session has begun."""
        unread, self._unread = self._unread, []
        for line in unread:
            if not self._session.is_over:
                self.heard(line)

    def send(self, message):
        if self._stream is not None:
            self._stream.send(message)

    def _stop_waiting(self):
        if self._silence is not None:
            self._silence.cancel()

    def _expect_more(self):
        self._stop_waiting()
        self._silence = self._session.process.call_later(
            self._patience_s, lambda: self._session.lost(self, f"it was silent for {self._patience_s:g} s")
        )

    def close(self):
        self._stop_waiting()
        if self._stream is not None and self._session.process.is_alive:
            self._stream.listener = Deaf()
            self._stream.close()
        if self.socket is not None:
            del self._session.process.world.on_event[self.socket.number]
            self.socket.close()


class Session:
    """From `init` to its end, when `over` is called."""

    def __init__(self, process: "HostProcess", over: Callable[[SessionRecord], None]):
        self.process = process
        self.plan, self.job = process.plan, process.job
        plan = self.plan
        self.record = SessionRecord(host=plan.number, rank=plan.rank, does=plan.does, began_s=process.now())
        self._packets = process.world.packets
        self._over = over
        self._shards = [Shard(self, number, address_of(switch)) for number, switch in enumerate(self.plan.switches)]
        self.key = self._job_key()
        self._host = None  # its number among the packets, once welcomed
        self.is_over = False
        self._begun = self._done = 0  # executions
        self._stalls = None
        self._stalled = None  # the stall that the switch is asked about
        self._answer_timer = None
        self._shards[0].connect()

    @property
    def has_begun(self):
        return self._host is not None

    def _job_key(self):
        """None: it has none."""
        has_keys = any(switch.key for switch in self.process.cluster.plan.switches)
        if not has_keys or self.plan.does in ("lacks the key", "joins without the key"):
            return None
        return keys.job_key(switch_key(KEY + 2 if self.plan.does == "has another key" else KEY), self.job.name)

    # Joining.

    def not_connected(self, shard):
        if self.process.now() - self.record.began_s >= JOIN_DEADLINE_S:
            self.fail("SwitchUnreachableError", "No switch answered", tell=False)
        else:
            self.process.call_later(RETRY_S, lambda: self.is_over or shard.connect())

    def connected(self, shard):
        index = self._shards.index(shard) + 1
        if index < len(self._shards):
            self._shards[index].connect()
            return
        join = messages.Join(
            protocol_version=messages.PROTOCOL_VERSION,
            job=self.job.name,
            rank=self.plan.rank,
            world_size=self.job.world_size + (self.plan.does == "miscounts"),
            switches=tuple(each.hello.instance for each in self._shards),
            udp_port=1,
            instance=self.process.instance,
            join_deadline_s=max(0.1, self.record.began_s + JOIN_DEADLINE_S - self.process.now()),
        )
        for each in self._shards:
            each.join(msgspec.structs.replace(join, udp_port=each.socket.port))

    def welcomed(self):
        welcomes = [shard.welcome for shard in self._shards]
        if not all(welcomes):
            return
        slots = min(welcome.slot_count for welcome in welcomes)
        self.record.welcomed_s = self.process.now()
        self.record.incarnation = self.process.cluster.incarnation_at(self.plan.switches[0], welcomes[0])
        self._host = self._packets.add_host(
            rank=self.plan.rank,
            world_size=self.job.world_size,
            shards=[
                (
                    shard.socket.number,
                    welcome.job_id,
                    welcome.epoch,
                    welcome.slot_first,
                    welcome.worker,
                    welcome.lanes_per_chunk if welcome.whole_chunks else 0,
                    welcome.packet_keys,
                )
                for shard, welcome in zip(self._shards, welcomes, strict=True)
            ],
            slots_per_shard=1 << max(0, (slots // len(welcomes)).bit_length() - 1),
            lanes_per_chunk=min(welcome.lanes_per_chunk for welcome in welcomes),
            check_key=self._check_key(welcomes),
            first_position=self.process.cluster.plan.first_position,
            incarnation=self.record.incarnation,
            warn_s=WARN_S,
            deadline_s=DEADLINE_S,
        )
        self.process.world.on_event[self._host] = self._on_event
        self._stalls = StallReporter(
            rank=self.plan.rank,
            epoch=welcomes[0].epoch,
            switches=[f"{host}:{port}" for host, port in (shard.address for shard in self._shards)],
            ask=lambda shard, query: self._answer,
            programs=lambda: "",
        )
        self._beat()
        self._go_on()
        for shard in self._shards:
            shard.read_on()

    def _check_key(self, welcomes):
        wanted = self.key is not None and any(welcome.packet_keys is None for welcome in welcomes)
        nonces = [welcome.nonce for welcome in welcomes]
        return keys.check_key(self.key, nonces) if wanted or self.job.checks_sums else None

    # What it does with the job.

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
                self.fail("DeadlineExceededError", "it has waited long enough")
            elif does == "garbage" and is_last:
                self._shards[0].send(b"garbage\n")
            elif does == "leaves" and is_last:
                self._leave()
                return
            else:
                self._packets.execute(self._host, execution, list(sites), job.spread_us)
        if self._done == job.executions and self.record.left_s is None and not self.is_over:
            self._leave()

    def _leave(self):
        self.record.left_s = self.process.now()
        self._tell_all(messages.Leave())
        self.process.call_later(DEADLINE_S, lambda: self._end("left alone"))

    def _beat(self):
        if not self.is_over:
            self._tell_all(messages.Heartbeat())
            self.process.call_later(LEASE_S / messages.HEARTBEATS_PER_LEASE, self._beat)

    def _on_event(self, kind, *what):
        match kind, what:
            case "order", (payload,):
                self._shards[0].send(messages.Relay(messages.RELAYED_ORDER + payload))
            case "executed", (_,):
                self._done += 1
                self.process.call_later(self.process.world.random.uniform(0, self.job.thinks_s), self._go_on)
            case "group_lost", (shard,):
                self._shards[shard].send(messages.GroupLost())
            case "failed", (name, text):
                self.fail(name, text)
            case "stalled", (stalled_s, fields):
                self._ask(SimpleNamespace(**dict(zip(STALL_FIELDS, fields, strict=True))), stalled_s)

    def _ask(self, stall, stalled_s):
        if self._stalled is None:
            self._stalled = stall, stalled_s
            has_slot = not (stall.waits_for_gpu or stall.waits_for_order)
            query = messages.Query(stall.slot, stall.version) if has_slot else messages.Query()
            self._shards[stall.shard].send(query)
            self._answer_timer = self.process.call_later(ANSWER_S, lambda: self._on_answer(None))

    def _on_answer(self, state):
        if self._stalled is None or self.is_over:
            return
        self._answer, (stall, stalled_s), self._stalled = state, self._stalled, None
        self._answer_timer.cancel()
        note, failure = self._stalls.report(stall, stalled_s)
        self._packets.note_stall(self._host, note)
        if failure is not None:
            self.fail(failure.kind, failure.message, failure.ranks)

    def heard(self, shard, number, message):
        match message:
            case messages.Relay(payload) if number == 0:
                failure = self._packets.order_message(self._host, payload[1:])
                if failure is not None:
                    self.fail(*failure)
            case messages.SlotState() as state:
                if self._stalled is not None and self._stalled[0].shard == number:
                    self._on_answer(state)
            case messages.Bye():
                shard.is_over = True
                if all(each.is_over for each in self._shards):
                    self._end("Bye")

    # Its end.

    def lost(self, shard, reason):
        if not shard.is_over:
            kind = "SwitchLostError" if self._host is not None else "JoinError"
            self.fail(kind, f"lost the switch at {shard.address[0]}: {reason}", tell=self._host is not None)

    def fail(self, kind, text, ranks=(), *, source=None, tell=True):
        """`source`: the switch that said so."""
        if self.is_over:
            return
        for shard in self._shards if tell and self.has_begun else ():
            if shard is not source:
                shard.send(messages.Fail(kind, text[: 8 * 1024], ranks))
        if self._host is not None:
            self._packets.fail(self._host, kind, text)
        self._end(kind, text, ranks)

    def _tell_all(self, message):
        for shard in self._shards:
            shard.send(message)

    def _end(self, kind, text="", ranks=()):
        if not self.is_over:
            self.close(kind, text, ranks)
            self._over(self.record)

    def close(self, kind, text="", ranks=()):
        """Also of a process that has ended."""
        self.is_over = True
        record = self.record
        record.kind, record.text, record.ranks, record.ended_s = kind, text, ranks, self.process.now()
        if self._host is not None:
            del self.process.world.on_event[self._host]
            self._packets.remove_host(self._host)
        for shard in self._shards:
            shard.close()


class HostProcess(Process):
    def __init__(self, cluster, machine: Machine, plan: Host, job: Job):
        super().__init__(cluster.world, machine)
        self.cluster = cluster
        self.plan, self.job = plan, job
        self.instance = f"{self.world.random.getrandbits(64):x}"
        self.session = None

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
