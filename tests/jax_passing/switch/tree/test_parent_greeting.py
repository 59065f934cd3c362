"""How a rack's switch takes what its parent says first: for hosts that join, and for hosts that meet."""

import asyncio
import ssl
from types import SimpleNamespace

import msgspec
import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.tree import parent_greeting
from support.switch.control import until
from support.switch.control_trees import in_tree
from support.switch.seats import seat

WAYS = {
    "join": lambda rack: rack.join(0, 2, join_deadline_s=1.0),
    "meet": lambda rack: seat(rack, 0, deadline_s=9.0),
}
OLD = {"type": "hello", "protocol_version": 1, "data_host": "", "data_port": 4242, "instance": "old"}


def below(says, timeout_s=parent_greeting.GREETING_TIMEOUT_S):
    """Runs an async test function for each way, with a rack whose parent says this, a host that came there, and what
    the parent has heard."""

    def wrap(function):
        @pytest.mark.parametrize("way", WAYS)
        def test(way, monkeypatch):
            monkeypatch.setattr(parent_greeting, "GREETING_TIMEOUT_S", timeout_s)

            @in_tree(racks=0)
            async def run(tree, root):
                heard = []

                async def parent(reader, writer):
                    writer.write(says)
                    heard.append(await reader.read())
                    writer.close()

                server = await asyncio.start_server(parent, "127.0.0.1", 0)
                address = server.sockets[0].getsockname()
                rack = await tree.add(root)
                rack.plane._parent = rack.plane.meetings._parent = address
                try:
                    await function(rack, "{}:{}".format(*address), await WAYS[way](rack), heard)
                finally:
                    server.close()

            run()

        test.__name__ = function.__name__
        return test

    return wrap


async def _is_named(rack, parent, host, problem):
    refusal = await host.refusal("SwitchUnreachableError")
    assert f"The switch at {rack.name} can't reach its parent, the switch at {parent} ({problem}" in refusal


@below(says=b"", timeout_s=0.1)
async def test_one_that_says_nothing(rack, parent, host, heard):
    await _is_named(rack, parent, host, "it was silent for too long)")


@below(says=b"HTTP/1.1 400\r\n\r\n")
async def test_one_that_is_no_switch(rack, parent, host, heard):
    await _is_named(rack, parent, host, "JSON is malformed: invalid character (byte 0))")


@below(says=messages.encode(messages.Heartbeat()))
async def test_one_that_says_something_else(rack, parent, host, heard):
    await _is_named(rack, parent, host, "what answers there is no jax_passing switch)")


@below(says=messages.encode(messages.Refused("JoinError", "I am full.")))
async def test_one_that_sends_it_away(rack, parent, host, heard):
    await _is_named(rack, parent, host, "it says: I am full.)")


@below(says=messages.encode(messages.Hello(messages.PROTOCOL_VERSION, "", 4242, "p", secured=True)))
async def test_one_that_has_a_key(rack, parent, host, heard):
    refusal = await host.refusal()
    assert refusal.startswith(f"Of the switches, {parent} has a key, and the one at {rack.name} has none: start both")


def test_a_parent_is_without_the_key_only_until_it_has_proved_it():
    error = ssl.SSLError("bad record")
    for is_secured, problem in (False, "it doesn't have the same key"), (True, "('bad record',)"):
        greeting = SimpleNamespace(is_secured=is_secured)
        assert parent_greeting.problem_of(error, greeting).startswith(problem)


@pytest.mark.parametrize("more", [{}, {"color": "red"}, {"data_port": {"first": 1}}], ids=str)
def test_one_of_another_protocol_version(more):
    @below(says=msgspec.json.encode(OLD | more) + b"\n")
    async def run(rack, parent, host, heard):
        refusal = await host.refusal()
        assert f"speaks protocol version 1, the switch at {rack.name} version {messages.PROTOCOL_VERSION}" in refusal
        assert "Upgrade jax_passing on the switch:" in refusal
        await until(lambda: heard)
        join = messages.decode_from_member(heard[0])  # by which the parent's operator hears of it
        assert (join.protocol_version, join.name) == (messages.PROTOCOL_VERSION, rack.name)

    with pytest.MonkeyPatch.context() as patch:
        for way in WAYS:
            run(way, patch)
