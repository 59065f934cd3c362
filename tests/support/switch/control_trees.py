"""Control planes of several levels, over real loopback sockets, in front of data planes that record what they do."""

import asyncio
import contextlib
import itertools
import socket
from types import SimpleNamespace

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs.epoch_states import EpochState
from support.switch.control import Switch, in_loop


class Tree:
    """A root with racks below it; `racks` may have racks themselves, by `add`."""

    def __init__(self, stack, changes):
        self._stack, self._changes = stack, changes

    async def add(self, parent=None, **changes):
        address = None if parent is None else parent.address
        switch = Switch(**{"parent": address, **self._changes, **changes})
        return await self._stack.enter_async_context(switch)


def in_tree(racks=2, **changes):
    """Runs an async test function with a root and its racks."""

    async def run(function):
        async with contextlib.AsyncExitStack() as stack:
            tree = Tree(stack, changes)
            root = await tree.add()
            below = [await tree.add(root) for _ in range(racks)]
            await asyncio.wait_for(function(tree, root, *below), 30)

    return in_loop(run)


async def circle(tree):
    """Returns two switches that are each other's parents."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    one = await tree.add(SimpleNamespace(address=address))
    return one, await tree.add(one, listen=address)


@contextlib.asynccontextmanager
async def parent_that(converse):
    """A parent for which the test converses, with the `address` and `name` of a Switch."""
    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    try:
        yield SimpleNamespace(address=address, name="{}:{}".format(*address))
    finally:
        server.close()


async def join_all(*switches, each=2, **changes):
    """`each` hosts at every one of these switches, ranks in order."""
    world_size = each * len(switches)
    ranks = itertools.count()
    return [await switch.join(next(ranks), world_size, **changes) for switch in switches for _ in range(each)]


async def job(*switches, each=2, **changes):
    hosts = await join_all(*switches, each=each, **changes)
    welcomes = [await host.receive() for host in hosts]
    assert all(isinstance(welcome, messages.Welcome) for welcome in welcomes), welcomes
    return hosts, welcomes


LEASE_S = 1.5  # this process stands for all hosts, and may be stopped for a while


async def kill(switch):
    """Ends a switch as SIGKILL does: its connections close, and nobody is told why."""
    switch.server._server.close()
    switch.plane._watch.stop()
    for epoch in switch.plane.jobs.epochs():
        epoch.state = EpochState.OVER
        if epoch.uplink is not None:
            epoch.uplink.close()
    for stream in list(switch.server.streams):
        stream.give_up()
    switch.plane.jobs._jobs.clear()
    await switch.server._server.wait_closed()


async def spoken(root, name="far:1"):
    """A job of two: rank 0 at the root, rank 1 behind a rack's switch of that name, for which the test speaks."""
    first = await root.join(0, 2)
    rack = await root.connect()
    rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", "r", name, 4242))
    rack.send(messages.RankJoin(1, 2, "i", "h", 1, {}, 9.0, 9.0, 256, 360, False, ("r",)))
    assert messages.decode_from_parent(await rack.reader.readline()) == messages.Prepare(1, 256, 360, False, (1,))
    rack.send(messages.Prepared(1))
    assert isinstance(await first.receive(), messages.Welcome)
    return first, rack


def rack_says(rank, world_size=2):
    return messages.RankJoin(rank, world_size, "i", "h", 1, {}, 9.0, 9.0, 256, 360, False, ("r",))


async def hear(hosts):
    """The group that their switch offers."""
    for host in hosts:
        offer = messages.decode_from_parent(await host.reader.readline())
        assert isinstance(offer, messages.GroupOffer), offer
        host.send(messages.GroupReady(offer.nonce), messages.GroupHeard(offer.nonce))
