"""Reference counts alone free what a job and its connections were: nobody collects garbage meanwhile."""

import asyncio
import gc
import weakref

import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import secure_channel
from jax_passing.protocol.keys import job_key
from jax_passing.protocol.secure_channel import Channel
from jax_passing.switch.jobs.epochs import Epoch, Member
from jax_passing.switch.meetings.meetings import Meeting
from jax_passing.switch.meetings.seats import HostSeat
from jax_passing.switch.meetings.seats_at_parent import SeatAtParent, SeatsAtParent
from jax_passing.switch.server.control_server import Stream
from jax_passing.switch.server.member_conversation import MemberConversation
from jax_passing.switch.tree.parent_call import ParentCall
from jax_passing.switch.tree.uplink import Uplink
from support.switch.control import Host, scenario, until
from support.switch.control_trees import in_tree, job
from support.switch.seats import met, seat

KINDS = (
    Channel,
    Epoch,
    HostSeat,
    Meeting,
    Member,
    MemberConversation,
    ParentCall,
    SeatAtParent,
    SeatsAtParent,
    Stream,
    Uplink,
)
KEY = b"k" * 32


EARLIER = []  # what other tests have left behind, which this process may hold for reasons of their own


def all_of(*kinds):
    return [one for one in gc.get_objects() if type(one) in kinds and not any(one is other for other in EARLIER)]


@pytest.fixture(autouse=True)
def no_garbage_collection():
    gc.collect()
    EARLIER.extend(all_of(*KINDS))
    gc.disable()
    yield
    gc.enable()
    EARLIER.clear()


def references(*kinds):
    """Finds all objects of these kinds, of each of which there must be some."""
    found = all_of(*kinds)
    assert {type(one) for one in found} == set(kinds)
    return [weakref.ref(one) for one in found]


async def all_freed(several):
    await until(lambda: not any(reference() for reference in several))
    assert not all_of(*KINDS)


async def leave(hosts):
    for host in hosts:
        host.send(messages.Leave())
    for host in hosts:
        assert await host.receive() == messages.Bye()


async def fail(hosts):
    hosts[0].send(messages.Fail("DeadlineExceededError", "late"))
    for host in hosts[1:]:
        assert (await host.receive()).kind == "DeadlineExceededError"


async def crash(hosts):
    hosts[0].writer.transport.abort()
    for host in hosts[1:]:
        assert (await host.receive()).kind == "HostLostError"


@pytest.mark.parametrize("end", [leave, fail, crash])
def test_a_job(end):
    @scenario()
    async def run(switch):
        hosts, _ = await switch.job(3)
        several = references(Epoch, Member, MemberConversation, Stream)
        await end(hosts)
        await all_freed(several)

    run()


@scenario()
async def test_hosts_that_are_refused(switch):
    hosts = [await switch.join(rank, 3, join_deadline_s=0.2) for rank in range(2)]
    await switch.has(0, 1)
    several = references(Epoch, Member, MemberConversation, Stream)
    for host in hosts:
        await host.refusal()
    await all_freed(several)


@pytest.mark.parametrize("end", [leave, fail, crash])
def test_a_job_of_a_tree(end):
    @in_tree()
    async def run(tree, root, left, right):
        hosts, _ = await job(left, right, each=1)
        several = references(Epoch, Member, MemberConversation, Stream, Uplink, ParentCall)
        await end(hosts)
        await all_freed(several)

    run()


@in_tree(racks=1)
async def test_hosts_that_meet(tree, root, rack):
    hosts = [await seat(root, 0), await seat(rack, 1)]
    await met(*hosts)
    several = references(HostSeat, SeatAtParent, SeatsAtParent, MemberConversation, ParentCall, Stream)
    for host in hosts:
        host.writer.close()
    await all_freed(several)


async def join_by_tls(switch, rank):
    context = secure_channel.context(job_key(KEY, "a"), server_side=False)
    by_tls = {"ssl": context, "server_hostname": secure_channel.server_name("a")}
    host = Host(*await asyncio.open_connection(*switch.address, **by_tls))
    switch.hosts.append(host)
    instance = (await host.receive()).instance
    host.send(messages.Join(messages.PROTOCOL_VERSION, "a", rank, 2, (instance,), 1, f"process {rank}", 20.0))
    return host


@pytest.mark.parametrize("end", [leave, crash])
def test_a_job_with_a_key(end):
    @in_tree(racks=1, switch_key=KEY)
    async def run(tree, root, rack):
        hosts = [await join_by_tls(root, 0), await join_by_tls(rack, 1)]
        for host in hosts:
            assert isinstance(await host.receive(), messages.Welcome)
        several = references(Epoch, Member, MemberConversation, Stream, Uplink, Channel)
        await end(hosts)
        await all_freed(several)

    run()


@scenario(switch_key=KEY)
async def test_a_handshake_that_fails(switch):
    _, writer = await asyncio.open_connection(*switch.address)
    writer.write(Channel.caller("a", b"?" * 32).take_outgoing())
    await until(lambda: any(stream._channel for stream in switch.server.streams))
    several = references(MemberConversation, Stream)
    writer.write(b"?" * 100)
    await all_freed(several)
    writer.close()
