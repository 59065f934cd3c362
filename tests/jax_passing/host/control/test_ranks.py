"""The ranks of a host, by what its switches say: messages go in, messages and events come out."""

import re

import msgspec
import pytest

from jax_passing.errors import Failure, JoinError, SwitchLostError
from jax_passing.host.control.context import Events
from jax_passing.host.control.ranks import Ranks
from jax_passing.protocol import control_messages as messages
from support.host.driven import HELLO, WELCOME, DrivenHost

LATE = Failure("DeadlineExceededError", "No progress.")


def test_a_host_joins_and_leaves_when_all_have():
    host, left = DrivenHost(), []
    join = host.joins(0)
    assert (join.job, join.rank, join.world_size) == ("a", 1, 3)
    assert host.told == [host.ranks]
    host.ranks.leave(left.append)
    assert host.switch(0) == [messages.Leave(0)]
    assert not left
    host.switch(0, messages.Bye())
    assert left == [None]
    host.outside.calls[0].ends()
    assert host.ranks.failure is None


def test_devices_have_ranks_of_their_own_once_the_host_has_joined():
    host = DrivenHost(strategy="flat")
    host.joins(0)
    assert host.told == []
    joins = [host.joins(1 + device) for device in range(2)]
    assert [(join.rank, join.world_size) for join in joins] == [(2, 6), (3, 6)]
    assert host.told == [host.ranks]
    host.switch(2, messages.Failed("HostLostError", "rank 5 is gone", (5,)))
    assert host.ranks.failure.ranks == (2,)  # the host, not the device
    assert [type(message) for message in host.switch(0)] == [messages.Fail]
    assert host.switch(1) == []  # its other hosts hear of it in their job


@pytest.mark.parametrize("is_welcomed", [False, True])
def test_a_switch_that_is_lost(is_welcomed):
    host = DrivenHost()
    host.switch(0, HELLO, *([WELCOME] if is_welcomed else []))
    host.outside.calls[0].ends(ConnectionResetError("reset"))
    if is_welcomed:
        assert host.ranks.failure.kind == SwitchLostError.__name__
        assert host.told == [host.ranks]
    else:
        assert [type(each) for each in host.told] == [SwitchLostError]
    assert not host.outside.calls[0].is_open


def test_a_switch_that_says_nothing_of_the_join():
    host = DrivenHost(join_deadline_s=2.0)
    host.switch(0, HELLO)
    for _ in range(30):
        host.outside.pass_by(0.5)
        host.switch(0, messages.Heartbeat())
    (error,) = host.told
    assert isinstance(error, JoinError)
    assert "said nothing any more while rank 1 waited to join job 'a' (it waited 7.0 s)" in str(error)


def test_a_switch_that_falls_silent_before_all_have_joined_is_lost():
    """Hosts that meet do so again, perhaps at a standby."""
    host = DrivenHost(join_deadline_s=1000.0)
    host.switch(0, HELLO)
    host.outside.pass_by(HELLO.lease_s + 10.0)
    (error,) = host.told
    assert isinstance(error, SwitchLostError)
    assert f"(it was silent for {HELLO.lease_s:g} s)" in str(error)


def test_a_switch_of_another_version_is_named_and_may_say_why_itself():
    foreign = msgspec.structs.replace(HELLO, protocol_version=99)
    unread = msgspec.json.encode(msgspec.to_builtins(foreign) | {"data_port": {"first": 7171}})
    refused = messages.Refused("JoinError", "Upgrade jax_passing on that host.")
    for says, text in (
        ([unread], "version 99, this host version .*Upgrade"),
        ([foreign, refused], "Upgrade jax_passing on that host"),
        ([foreign, b'{"type": "thanks"}'], "version 99, rank 1 of"),
    ):
        host = DrivenHost()
        host.outside.calls[0].opens().says(*says)
        (error,) = host.told
        assert isinstance(error, JoinError)
        assert re.search(text, str(error))


# Sets of hosts.


def test_a_set_of_hosts_has_a_job_of_its_own():
    host, left = DrivenHost(), []
    host.joins(0)
    host.set_of(1, 2)
    join = host.joins(1)
    assert (join.rank, join.world_size) == (0, 2)
    assert host.told == [host.ranks, host.ranks.sets[1, 2]]
    host.switch(1, messages.Failed("HostLostError", "rank 1 is gone.", (1,)))
    assert host.ranks.failure.ranks == (2,)
    assert host.ranks.failure.message.endswith("in the session, 0 is rank 1, 1 is rank 2.")
    host.ranks.leave(left.append)
    assert left == [None]


def test_a_set_that_cant_be_joined_hears_it_once():
    host = DrivenHost()
    host.joins(0)
    host.set_of(1, 2)
    host.switch(1, HELLO, messages.Refused("JoinError", "Rank 1 is late."))
    host.ranks.fail(LATE)  # as the one that wanted it does
    assert [type(each) for each in host.told] == [Ranks, JoinError]


def test_a_set_that_is_awaited_hears_of_the_jobs_failure():
    host = DrivenHost()
    host.joins(0)
    host.set_of(1, 2)
    host.switch(1, HELLO)
    host.switch(0, messages.Failed(LATE.kind, LATE.message))
    assert [str(each) for each in host.told[1:]] == [LATE.message]
    with pytest.raises(type(LATE.exception())):
        host.set_of(0, 1)


def test_events_are_handled_in_turn():
    order = []

    def handle(event):
        order.append(("begins", event))
        if event < 2:
            events.add(event + 1)
        order.append(("ends", event))

    events = Events(handle)
    events.add(0)
    assert order == [(what, event) for event in range(3) for what in ("begins", "ends")]
