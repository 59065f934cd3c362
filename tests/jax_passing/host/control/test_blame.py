"""Only the wrong host of an elastic session ends, by what a host finds and what it hears."""

import pytest

from jax_passing.host.control import programs
from jax_passing.protocol import control_messages as messages
from support.host.driven import HELLO, WELCOME, DrivenHost
from support.host.program_infos import identity, program

ONE_LINE_MORE = program(identity(place=("train.py:42:9 in step",)))


def host(rank, survivors, **changes):
    one = DrivenHost(rank, met=messages.Met(5, rank, 3, survivors, 7), **changes)
    one.joins(0)
    return one


def runs_another_program(one):
    """Returns what it tells the switch."""
    one.ranks.host.program(ONE_LINE_MORE)
    rank_0s = programs.encode(programs.bounded(program()))
    (told,) = one.switch(0, messages.Relay(messages.RELAYED_PROGRAM + rank_0s))
    return told


def test_a_newcomer_with_another_program_says_that_it_is_wrong_itself():
    one = host(2, survivors=2)
    told = runs_another_program(one)
    assert (told.kind, told.ranks) == ("ProgramMismatchError", (2,))
    assert (one.ranks.failure.kind, one.ranks.failure.ranks) == ("ProgramMismatchError", (2,))


@pytest.mark.parametrize("survivors", [0, 2, 3])
def test_nobody_knows_who_is_right_where_all_are_new_or_it_is_one_that_ran(survivors):
    told = runs_another_program(host(1, survivors))
    assert (told.kind, told.ranks) == ("ProgramMismatchError", ())


@pytest.mark.parametrize("rank", [0, 1])
def test_for_those_that_run_the_job_such_a_newcomer_is_lost(rank):
    one = host(rank, survivors=2)
    one.switch(0, messages.Failed("ProgramMismatchError", "Hosts run different programs.", (2,)))
    failure = one.ranks.failure
    assert (failure.kind, failure.ranks, failure.is_interruption) == ("HostLostError", (2,), True)
    assert failure.message.startswith("Rank 2 can't go on in this job. ProgramMismatchError: Hosts run different")
    assert "Call session.rejoin on every other host" in failure.message


def test_nor_does_it_end_a_host_that_another_switch_hasnt_welcomed_yet():
    one = DrivenHost(0, met=messages.Met(5, 0, 3, 2, 7), switch=(("sw", 7171), ("sx", 7171)))
    other = messages.Hello(messages.PROTOCOL_VERSION, "", 7171, "x")
    one.outside.calls[1].opens().says(other)
    one.switch(0, HELLO, WELCOME, messages.Failed("ProgramMismatchError", "Hosts run different programs.", (2,)))
    (error,) = one.told
    assert (type(error).__name__, error.ranks) == ("HostLostError", (2,))


def test_what_all_find_in_their_sums_is_the_newcomers_fault():
    """As parameters that differ, which no rank's own message tells."""
    found = ("ProgramMismatchError", "hosts hold different bits")
    one = host(0, survivors=2)
    one.ranks.host.transport_failed(*found)
    assert one.switch(0) == [messages.Fail(*found, (2,))]
    assert (one.ranks.failure.kind, one.ranks.failure.ranks) == ("HostLostError", (2,))
    newcomer = host(2, survivors=2)
    newcomer.ranks.host.transport_failed(*found)
    assert newcomer.ranks.failure.ranks == (2,)
    assert newcomer.ranks.failure.kind == "ProgramMismatchError"


def test_a_host_whose_gpu_fails_is_lost_alone():
    one = host(1, survivors=3)
    one.ranks.host.transport_failed("AcceleratorError", "no memory")
    assert one.switch(0) == [messages.Fail("AcceleratorError", "no memory", (1,))]


def test_what_passes_is_nobodys_own():
    one = host(2, survivors=2)
    one.ranks.host.transport_failed("DeadlineExceededError", "No progress.")
    assert one.switch(0) == [messages.Fail("DeadlineExceededError", "No progress.")]


def test_ranks_of_devices_are_the_newcomers():
    one = host(2, survivors=2, strategy="flat")
    assert one.ranks.devices[0]._context.newcomers == range(4, 6)


def test_in_an_elastic_session_errors_say_what_goes_on():
    one = DrivenHost(1, met=messages.Met(5, 1, 3, 3, 7), started_as=2)
    assert one.joins(0).started_as == 2
    text = "Rank 0 is lost. Look at its log. Then call jax_passing.init again on every host."
    one.switch(0, messages.Failed("HostLostError", text, (0,)))
    assert one.ranks.failure.message == "Rank 0 is lost. Look at its log. Then call session.rejoin on every host."
