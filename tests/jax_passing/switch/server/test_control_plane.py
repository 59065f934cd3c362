"""The control plane as a whole: whose packets it can take, and how it shuts down."""

import asyncio

import pytest

from jax_passing.protocol import control_messages as messages
from support.switch.control import Switch, offered, scenario
from support.switch.control_trees import in_tree, job


@scenario()
async def test_hosts_whose_packets_the_device_cannot_take_are_refused_as_they_join(switch):
    switch.data_plane.host = "2001:db8::1"
    assert "127.0.0.1 don't reach 2001:db8::1: one is IPv4, the other IPv6" in await (await switch.join()).refusal()
    switch.data_plane.host = "10.0.0.254"
    await switch.job()


def test_shutting_down_while_a_group_is_probed():
    async def run():
        async with Switch() as switch:
            hosts, _ = await offered(switch)
        for host in hosts:
            assert (await host.receive()).kind == "SwitchLostError"

    asyncio.run(run())


@in_tree()
async def test_a_switch_that_shuts_down_says_so_to_all(tree, root, left, right):
    hosts, _ = await job(left, right)
    waiting = await right.join(0, 4, job="waits")
    await right.has(0, job="waits")
    await right.server.shut_down()
    for host in (*hosts, waiting):
        failed = await host.receive()
        assert failed.kind == "SwitchLostError"
        assert f"The switch at {right.name} is shutting down" in failed.message
    assert not right.data_plane.running


@pytest.mark.parametrize("host", ["localhost", "239.1.2.3", "0.0.0.0"])
def test_packets_of_a_rack_come_from_the_ip_address_of_one_machine(host):
    @in_tree(racks=0)
    async def run(tree, root):
        rack = await root.connect()
        rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", "r", "far:1", 4242, host))
        assert "The switch at far:1 can't send packets from there" in await rack.refusal()

    run()
