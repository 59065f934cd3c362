"""A rack's switch calls its parent: how what is wrong with that is worded, for hosts that join and hosts that meet."""

import asyncio
import ssl

import msgspec
import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CONNECT_TIMEOUT_S, Lost
from jax_passing.switch.jobs.admission import RefusalError
from jax_passing.switch.tree.parent_call import ParentCall
from support.moved_outside import MovedOutside
from support.switch.control_trees import in_tree, parent_that
from support.switch.seats import seat

HELLO = messages.Hello(messages.PROTOCOL_VERSION, "", 4242, "p")
WAYS = {
    "join": lambda rack: rack.join(0, 2, join_deadline_s=1.0),
    "meet": lambda rack: seat(rack, 0, deadline_s=9.0),
}


@pytest.fixture
def outside():
    return MovedOutside()


def problem(outside, key=None, *, says=(), secures=False, ends=None):
    """Returns the error with which a call has ended, and the call."""
    events = []
    ParentCall(outside, ("up", 7171), events.append, own_name="here:1", job="a", key=key)
    call = outside.calls[-1].opens()
    if secures:
        call.secures()
    call.says(*says)
    if ends is not None:
        call.ends(ends)
    outside.pass_by(CONNECT_TIMEOUT_S + 0.1)
    assert isinstance(events[-1], Lost)
    return events[-1].error, call


@pytest.mark.parametrize(("key", "secured"), [(None, True), (b"k" * 32, False)])
def test_only_one_of_both_switches_has_a_key(outside, key, secured):
    error, _ = problem(outside, key, says=[msgspec.structs.replace(HELLO, secured=secured)])
    one, other = ("up:7171", "the one at here:1") if secured else ("the one at here:1", "up:7171")
    assert isinstance(error, RefusalError)
    assert str(error).startswith(f"Of the switches, {one} has a key, and {other} has none: start both")


def test_a_parent_is_without_the_key_only_until_it_has_proved_it(outside):
    broken = ssl.SSLError("bad record")
    assert str(problem(outside, b"k" * 32, ends=broken)[0]).startswith("it doesn't have the same key")
    assert problem(outside, b"k" * 32, secures=True, ends=broken)[0] is broken


def test_one_of_another_protocol_version_is_told_so(outside):
    error, call = problem(outside, says=[msgspec.structs.replace(HELLO, protocol_version=1)])
    assert isinstance(error, RefusalError)
    assert f"speaks protocol version 1, the switch at here:1 version {messages.PROTOCOL_VERSION}" in str(error)
    assert "Upgrade jax_passing on the switch:" in str(error)
    (join,) = call.sent  # by which the parent's operator hears of it
    assert (join.protocol_version, join.name) == (messages.PROTOCOL_VERSION, "here:1")


@pytest.mark.parametrize("way", WAYS)
def test_hosts_hear_of_a_parent_that_is_no_switch(way):
    async def parent(reader, writer):
        writer.write(b"HTTP/1.1 400\r\n\r\n")
        await reader.read()
        writer.close()

    @in_tree(racks=0)
    async def run(tree, root):
        async with parent_that(parent) as there:
            rack = await tree.add(there)
            refusal = await (await WAYS[way](rack)).refusal("SwitchUnreachableError")
        problem = "JSON is malformed: invalid character (byte 0)"
        assert f"The switch at {rack.name} can't reach its parent, the switch at {there.name} ({problem})" in refusal

    run()


@pytest.mark.parametrize("way", WAYS)
def test_hosts_are_refused_by_a_parent_of_another_version(way):
    heard = []

    async def parent(reader, writer):
        writer.write(messages.encode(msgspec.structs.replace(HELLO, protocol_version=1)))
        heard.append(await reader.read())
        writer.close()

    @in_tree(racks=0)
    async def run(tree, root):
        async with parent_that(parent) as there:
            rack = await tree.add(there)
            assert "speaks protocol version 1" in await (await WAYS[way](rack)).refusal()
            await asyncio.sleep(0.05)
        assert messages.decode_from_member(heard[0]).name == rack.name

    run()
