"""Hosts that have seats at a switch, over real loopback sockets."""

from jax_passing.protocol import control_messages as messages


def meet(rank, world_size=2, least=1, **changes):
    given = {"job": "a", "instance": f"host {rank}", "deadline_s": 20.0, "wait_s": 20.0, **changes}
    return messages.Meet(messages.PROTOCOL_VERSION, rank=rank, world_size=world_size, world_size_min=least, **given)


async def seat(switch, rank, *args, **changes):
    host = await switch.connect()
    host.send(meet(rank, *args, **changes))
    return host


async def met(*hosts):
    heard = [await host.receive() for host in hosts]
    assert all(isinstance(one, messages.Met) for one in heard), heard
    assert len({one.meeting for one in heard}) == 1
    assert {one.world_size for one in heard} == {len(heard)}
    return heard
