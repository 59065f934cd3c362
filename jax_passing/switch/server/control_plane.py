"""The switch's control plane has all of its jobs, and says who may join them.

It does no I/O: see `outside.py`. What a peer sends is never trusted: a bad line costs it its connection, nothing else.
"""

from collections import Counter

from jax_passing import job_names
from jax_passing.config import address_text, unicast_address
from jax_passing.errors import SwitchLostError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys
from jax_passing.protocol.outside import Connection, Outside
from jax_passing.protocol.packet import LANES_AT_MTU_1500
from jax_passing.switch.data_planes.data_plane import DataPlane
from jax_passing.switch.jobs.admission import Abilities, RefusalError, check_version, rank_of_host
from jax_passing.switch.jobs.epochs import Epoch, Member
from jax_passing.switch.jobs.history import History
from jax_passing.switch.jobs.jobs import JobTable
from jax_passing.switch.jobs.quotas import CONNECTIONS_MAX, JOBS_PER_ADDRESS_MIN, ConnectionQuota
from jax_passing.switch.jobs.recent import Recent
from jax_passing.switch.jobs.watch import Watch
from jax_passing.switch.meetings.meetings import Meetings
from jax_passing.switch.operators.operator import Operator
from jax_passing.switch.server.dispatch import Dispatcher
from jax_passing.switch.server.life import Life
from jax_passing.switch.server.running_time import RunningTime
from jax_passing.switch.server.settings import SwitchSettings
from jax_passing.switch.status.report import Report, SwitchFacts
from jax_passing.switch.tree.questions import Questions
from jax_passing.switch.tree.uplink import Uplink


class ControlPlane:
    """The control plane of a switch knows its jobs, and hears the members of each.

    Attributes:
      instance: tells this start of this switch from any other.
      jobs, meetings, quota, dispatcher, outside, lease_s, counts, report, operator: what conversations with members
        need (`member_conversation.py`).
      history: of jobs, which a page shows.
      lives: of those who have joined or have a seat, and have no lifeline yet, by their tokens.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        outside: Outside,
        settings: SwitchSettings,
        switch_key: bytes | None = None,
        connections_max: int = CONNECTIONS_MAX,
        counts: Counter[str] | None = None,
    ):
        """`settings`: what they say of the data plane doesn't count here. `switch_key`: what the key file has.
        `connections_max`: the number for which there are descriptors. `counts`: where it counts, if others do, too."""
        self.instance = f"{outside.random_bits(128):032x}"
        self._secret = f"{outside.random_bits(128):032x}"
        self._data_plane = data_plane
        self.outside = outside = RunningTime(outside)
        self._parent = settings.parent
        self._switch_key = switch_key
        self._slots_per_job = max(1, settings.slots_per_job // data_plane.planes)
        self._link_gbit = settings.link_gbit
        self.lease_s = settings.lease_s
        self._questions = Questions(data_plane, outside)
        slots_per_address = settings.slots_per_address
        if slots_per_address is None:
            slots_per_address = max(data_plane.slot_total // 2, JOBS_PER_ADDRESS_MIN * self._slots_per_job)
        else:
            slots_per_address = max(1, slots_per_address // data_plane.planes)
        self.jobs = JobTable(
            data_plane,
            outside,
            lease_s=settings.lease_s,
            slots_per_address=slots_per_address,
            uplink_for=None if settings.parent is None else self._uplink_for,
        )
        self.quota = ConnectionQuota(connections_max, settings.connections_per_address)
        self.lives: dict[str, Life] = {}
        self.meetings = Meetings(self.jobs, outside, settings.parent, self.instance, self.key_of)
        self.operator = Operator(self.jobs, self.meetings)
        self.history = History()
        recent = Recent(data_plane, self.jobs.chronicle.waits, self.history.add)
        self._watch = Watch(data_plane, self.jobs, outside, settings.lease_s, recent)
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.report = Report(
            self._facts(settings),
            data_plane,
            self.jobs,
            self.meetings,
            recent,
            outside,
            self.stats,
            lambda: self.quota.connections,
        )
        self.dispatcher = Dispatcher(data_plane, self.jobs, self._questions, self._abilities, self.report)

    def hello(self, token: str, host: str) -> messages.Hello:
        """`token`: that of the conversation that greets `host`, an IP address."""
        data_plane = self._data_plane
        is_long = not data_plane.whole_chunks and data_plane.lanes_per_chunk > LANES_AT_MTU_1500
        return messages.Hello(
            messages.PROTOCOL_VERSION,
            self._data_plane.host,
            self._data_plane.port,
            self.instance,
            secured=self.has_key,
            lease_s=self.lease_s,
            token=token,
            planes=data_plane.planes,
            lanes=data_plane.lanes_per_chunk if is_long else LANES_AT_MTU_1500,
            path_nonce=data_plane.path_nonce(host) if is_long else 0,
        )

    @property
    def has_key(self) -> bool:
        return self._switch_key is not None

    def key_of(self, job: str) -> bytes | None:
        """Returns the key of a job; None if this switch has no key."""
        return None if self._switch_key is None else keys.job_key(self._switch_key, job_names.base(job))

    def change_key(self, switch_key: bytes | None) -> None:
        """Lets who joins from now on need another key. Those who are here stay: each epoch has keys of its own."""
        self._switch_key = switch_key

    def admit(self, join: messages.Join | messages.RackJoin, connection: Connection) -> Member:
        """Makes a member of the caller, and lets it join its job. Raises RefusalError."""
        now = self.outside.now()
        address = _packets_of(join, connection, self._data_plane.host or connection.own_host)
        if isinstance(join, messages.RackJoin):
            check_version(join, connection.own_name)
            _check_name(join.job)
            return Member(connection, join.instance, address, alone_since=now, lease_s=join.lease_s, rack=join.name)
        member = Member(
            connection, join.instance, address, alone_since=now, lease_s=join.lease_s, switches=join.switches
        )
        _check_name(name := self.name_of_job(join))
        self.jobs.admit(name, rank_of_host(join, connection.host, self._abilities()), member)
        return member

    def name_of_job(self, join: messages.Join | messages.RackJoin) -> str:
        """Returns the job's name at this switch. Each shard of a job is one for itself: two of them, of different
        racks, may have us as their spine."""
        if isinstance(join, messages.RackJoin):
            return join.job
        shard = join.switches.index(self.instance) if self.instance in join.switches else 0
        return job_names.of_shard(join.job, shard)

    def shut_down(self) -> None:
        """Tells every host that it ends. Nothing happens by itself any more; connections are left to be closed."""
        self._watch.stop()
        self.meetings.stop()
        for epoch in self.jobs.epochs():
            text = (
                f"The switch at {epoch.own_name} is shutting down. Start it again, then call jax_passing.init again on "
                "every host."
            )
            self.jobs.fail(epoch, messages.Failed(SwitchLostError.__name__, text))

    def stats(self) -> dict[str, int]:
        """Returns counters since the start."""
        return dict(self.counts + self.jobs.counts + self.quota.counts + self._watch.counts)

    def held(self) -> dict[str, int]:
        """Returns how much it holds for members and their jobs, by what it is: nothing once all are gone."""
        counts = {
            "epochs": len(self.jobs.epochs()),
            "slots": self.jobs.starts.slots_held,
            **self.meetings.held(),
            "questions": len(self._questions.pending),
            "connections": self.quota.connections,
        }
        return {what: count for what, count in counts.items() if count}

    def _facts(self, settings: SwitchSettings) -> SwitchFacts:
        return SwitchFacts(
            self.instance,
            settings.data_plane,
            None if self._parent is None else address_text(*self._parent),
            self.has_key,
            self.lease_s,
            self._link_gbit,
        )

    def _abilities(self) -> Abilities:
        data_plane = self._data_plane
        return Abilities(
            self.instance,
            self._slots_per_job,
            data_plane.lanes_per_chunk,
            data_plane.whole_chunks,
            self.has_key and data_plane.can_tag,
            self._link_gbit,
            data_plane.planes,
        )

    def _uplink_for(self, epoch: Epoch) -> Uplink:
        assert self._parent is not None
        return Uplink(
            self._parent,
            epoch,
            self.jobs,
            self._questions,
            self._data_plane,
            self.outside,
            self._secret,
            self.key_of(epoch.job.name),
        )


def _check_name(job: str) -> None:
    try:
        job_names.shard_of(job)
    except ValueError as error:
        raise RefusalError(f"There can't be a job {job!r}: {error}.") from error


def _packets_of(join: messages.Join | messages.RackJoin, connection: Connection, data_host: str) -> tuple[str, int]:
    """Returns the address that packets come from; they go to `data_host`. Raises RefusalError."""
    host = connection.host
    if isinstance(join, messages.RackJoin) and join.data_host:
        try:
            host = unicast_address(join.data_host)
        except ValueError as error:
            raise RefusalError(
                f"The switch at {join.name} can't send packets from there: {error}. Start it with an address of its "
                "own."
            ) from error
    if (":" in host) != (":" in data_host):
        raise RefusalError(
            f"Packets from {host} don't reach {data_host}: one is IPv4, the other IPv6. The switch at "
            f"{connection.own_name} was joined by IPv6, but a device adds up IPv4 only: let the switch --listen on an "
            "IPv4 address, and join there (JAX_PASSING_SWITCH, or --parent of a rack's switch)."
        )
    return host, join.udp_port
