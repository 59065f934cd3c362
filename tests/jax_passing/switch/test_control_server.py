"""The control plane in its event loop: those who don't read, those who say much, the end."""

import asyncio

from control import Switch, scenario, until

from jax_passing.protocol import control_messages as messages


@scenario()
async def test_a_host_that_asks_and_doesnt_read_is_lost(switch):
    switch.data_plane.stats = lambda: {"x" * 60_000: 1}
    hosts, _ = await switch.job(2)
    hosts[0].send(*[messages.CountersQuery()] * 1000)
    failed = await hosts[1].receive()
    assert (failed.kind, failed.ranks) == ("HostLostError", (0,))
    assert "asks and doesn't read the answers" in failed.message
    await until(lambda: not switch.server._streams)


@scenario()
async def test_a_host_that_says_much_lets_others_speak(switch):
    hosts, _ = await switch.job(1)
    lines, lines_at_once = 0, []
    dispatch = switch.plane._dispatcher.dispatch

    def count(*args):
        nonlocal lines
        lines += 1
        dispatch(*args)

    switch.plane._dispatcher.dispatch = count
    hosts[0].send(messages.encode(messages.Heartbeat()) * 5000)
    while lines < 5000:
        before = lines
        await asyncio.sleep(0)
        lines_at_once.append(lines - before)
    assert max(lines_at_once) < 10


@scenario()
async def test_a_host_that_doesnt_read_is_lost_not_waited_for(switch):
    hosts, _ = await switch.job(3)
    for _ in range(64):
        hosts[0].send(messages.Relay(b"x" * messages.RELAY_BYTES_MAX))
        await hosts[0].writer.drain()
        relayed = await hosts[2].receive()
        if isinstance(relayed, messages.Failed):
            break
    assert (relayed.kind, relayed.ranks) == ("HostLostError", (1,))
    assert "stopped reading" in relayed.message


def test_shutting_down_doesnt_wait_for_who_doesnt_read():
    async def run():
        async with Switch() as switch:
            hosts, _ = await switch.job()
            for _ in range(7):
                hosts[0].send(messages.Relay(b"x" * messages.RELAY_BYTES_MAX))
                await hosts[0].writer.drain()
            await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(run(), 30))
