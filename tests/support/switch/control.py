"""A control plane over real loopback sockets, in front of a data plane that records what it is asked."""

import asyncio
import logging
import socket
from types import SimpleNamespace

import msgspec

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import LANES_AT_MTU_1500
from jax_passing.switch.data_planes.data_plane import MulticastGroup, SlotVersion
from jax_passing.switch.server.control_server import ControlServer
from jax_passing.switch.server.settings import SwitchSettings

logging.getLogger("jax_passing.switch").setLevel(logging.CRITICAL)

from_switch = messages.decode_from_switch


GROUP = MulticastGroup("239.192.0.1", 7170, "127.0.0.1")


async def until(condition):
    while not condition():
        await asyncio.sleep(0.002)  # the scenario has a deadline


class RecordingDataPlane:
    host, port, slot_total, lanes_per_chunk, whole_chunks, worker_limit = "", 4242, 1024, 360, False, 64
    takes_bare = False
    planes = 1
    can_tag = False

    def __init__(self):
        self.running = {}
        self.removed = []
        self.held = SlotVersion(empty=False, sequence=5, bitmap=0b101, complete=False)
        self.refuses = False
        self.lost = self.broken = ""
        self.deaf = False
        self.offered = None  # the group
        self.probes = []
        self.stopped = []
        self.overflowed = {}
        self.counted = {}  # by job

    def has_one_port(self, own_addresses):
        return False

    def group(self, job, own_address):
        assert own_address == "127.0.0.1"
        return self.offered

    def socket_to(self, host, port, planes):
        return None

    def path_nonce(self, host):
        assert host == "127.0.0.1"
        return 7

    def probe(self, group, job, epoch, nonce, lanes):
        assert group == self.offered
        self.probes.append((job, epoch, nonce))

    def hears_parents_group(self, job):
        return not self.deaf

    def stop_multicast(self, job):
        self.stopped.append(job)

    def add_job(self, job):
        if self.refuses:
            raise RuntimeError("no table space")
        for other in self.running.values():
            assert job.job != other.job
            assert (
                job.slot_first + job.slot_count <= other.slot_first
                or other.slot_first + other.slot_count <= job.slot_first
            )
        self.running[job.job] = job

    def remove_job(self, job):
        self.removed.append(self.running.pop(job))

    def slot_version(self, slot, version, plane):
        return self.held

    def check(self):
        lost, self.lost = self.lost, ""
        return lost

    def trouble(self):
        return self.broken

    def overflows(self):
        return dict(self.overflowed)

    def counts(self, job):
        return self.counted.get(job)

    def stats(self):
        return {"added": 7}

    def close(self):
        pass


class CountingServer(ControlServer):
    """Whose numbers of jobs and epochs begin with 1."""

    def random_bits(self, count):
        return 0 if count == 16 else super().random_bits(count)


class StillOutside:
    """An outside without connections, in which no time passes (`outside.py`)."""

    def now(self):
        return 1000.0

    def random_bits(self, count):
        return 0

    def call_later(self, delay_s, callback):
        return SimpleNamespace(cancel=lambda: None)


class Switch:
    """A control plane on a port of its own; `async with`."""

    def __init__(self, listen=("127.0.0.1", 0), switch_key=None, planes=1, **changes):
        self.data_plane = RecordingDataPlane()
        self.data_plane.planes = planes
        self.server = CountingServer(self.data_plane, SwitchSettings(**{"slots_per_job": 256, **changes}), switch_key)
        self.plane = self.server.plane
        self.instance = self.plane.instance
        self._listen = listen
        self.hosts = []

    async def __aenter__(self):
        listener = socket.create_server(self._listen)
        self.address = listener.getsockname()
        self.name = "{}:{}".format(*self.address)
        await self.server.listen(listener)
        return self

    async def __aexit__(self, *_):
        await self.server.shut_down()
        for host in self.hosts:
            host.writer.close()

    @property
    def is_watched(self):
        return not self.plane._watch._timer.cancelled()

    async def connect(self):
        reader, writer = await asyncio.open_connection(*self.address, limit=messages.RELAY_LINE_BYTES_MAX)
        host = Host(reader, writer)
        self.hosts.append(host)
        hello = await host.receive()
        host.token = hello.token
        is_long = self.data_plane.lanes_per_chunk > LANES_AT_MTU_1500 and not self.data_plane.whole_chunks
        assert hello == messages.Hello(
            messages.PROTOCOL_VERSION,
            self.data_plane.host,
            4242,
            self.instance,
            lease_s=self.plane.lease_s,
            token=host.token,
            planes=self.data_plane.planes,
            lanes=self.data_plane.lanes_per_chunk if is_long else LANES_AT_MTU_1500,
            path_nonce=self.data_plane.path_nonce("127.0.0.1") if is_long else 0,
        )
        return host

    async def join(self, rank=0, world_size=2, **changes):
        host = await self.connect()
        join = {
            "protocol_version": messages.PROTOCOL_VERSION,
            "job": "a",
            "switches": (self.instance,),
            "udp_port": 1000 + rank,
            "instance": f"process {len(self.hosts)}",
            "join_deadline_s": 20.0,
        }
        host.send(messages.Join(rank=rank, world_size=world_size, **{**join, **changes}))
        return host

    async def has(self, *ranks, job="a"):
        """Waits until these and no other ranks have joined here."""

        def joined():
            return {rank for epoch in self.plane.jobs.epochs() if epoch.job.name == job for rank in epoch.joined()}

        await until(lambda: joined() == set(ranks))

    async def job(self, world_size=2, **changes):
        hosts = [await self.join(rank, world_size, **changes) for rank in range(world_size)]
        welcomes = [await host.receive() for host in hosts]
        assert all(isinstance(welcome, messages.Welcome) for welcome in welcomes), welcomes
        assert len({(welcome.job_id, welcome.epoch, welcome.slot_first) for welcome in welcomes}) == 1
        return hosts, welcomes[0]


class Host:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, *several):
        for message in several:
            self.writer.write(message if isinstance(message, bytes) else messages.encode(message))

    async def receive(self):
        """The next message; None at the end of the connection."""
        line = await asyncio.wait_for(self.reader.readline(), 10)
        return from_switch(line) if line else None

    async def refusal(self, kind="JoinError"):
        refused = await self.receive()
        assert isinstance(refused, messages.Refused), refused
        assert refused.kind == kind
        assert await self.receive() is None
        return refused.message


def join_of_version(version, switch, rank, **changes):
    """Makes a join as that version writes it: it may have fields of its own."""
    join = {
        "type": "join",
        "protocol_version": version,
        "job": "a",
        "rank": rank,
        "world_size": 2,
        "switches": [switch.instance],
        "udp_port": 7,
        "instance": f"foreign {rank}",
        "join_deadline_s": 20.0,
        **changes,
    }
    return msgspec.json.encode(join) + b"\n"


async def offered(switch, world_size=2):
    """All ranks have joined, and were offered the group."""
    switch.data_plane.offered = GROUP
    hosts = [await switch.join(rank, world_size) for rank in range(world_size)]
    offers = [await host.receive() for host in hosts]
    assert len(set(offers)) == 1
    assert offers[0] == messages.GroupOffer("239.192.0.1", 7170, 1, 1, offers[0].nonce)
    assert not switch.data_plane.running
    return hosts, offers[0].nonce


def scenario(**changes):
    """Runs an async test function with a switch."""

    async def run(function):
        async with Switch(**changes) as switch:
            await asyncio.wait_for(function(switch), 30)

    return in_loop(run)


def in_loop(run):
    """A decorator of async test functions, which `run` calls with what they need."""

    def wrap(function):
        def test():
            asyncio.run(run(function))

        test.__name__ = function.__name__
        test.__doc__ = function.__doc__
        return test

    return wrap
