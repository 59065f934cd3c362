"""A job spread over several real switches in this process: joining them, losing one, stalls that name it, leaving."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import jax_passing
from jax_passing.config import address_text, parse_address
from jax_passing.errors import ConfigError, JoinError, SwitchUnreachableError
from jax_passing.host import session as sessions
from jax_passing.host.control import contact, shard
from jax_passing.protocol import control_messages as messages
from jax_passing.switch.data_planes.software import SoftwareDataPlane
from support.host.stalls import Stall
from support.jax.sessions import total
from support.switch.in_process import SwitchThread, leave, members, until

ONES = jnp.ones((2, 8))


class Switches:
    """Several, by the address that lists them."""

    def __init__(self, *changes):
        self.each = [SwitchThread(**change) for change in changes]
        self.address = ",".join(one.address for one in self.each)


@pytest.fixture
def start():
    started = []

    def run(*changes):
        switches = Switches(*changes)
        started.extend(switches.each)
        return switches

    yield run
    if (current := sessions.current()) is not None:
        current._shut_down("the test is over")
    for one in started:
        one.stop()


@pytest.fixture
def three(start):
    return start({}, {}, {})


def test_the_sum_goes_through_all_of_them(three):
    with jax_passing.init(three.address, rank=0, world_size=1) as session:
        x = jax.random.normal(jax.random.key(0), (2, 100_000))
        assert jnp.allclose(total(x)[0], x.sum(0), atol=1e-5)
        assert session.error is None
    for one in three.each:
        one.stop()
        assert one.counters["epochs_started"] == 1
        assert one.counters["complete"] > 10


def test_what_all_switches_can_do_is_taken(start, caplog):
    unequal = start({"slots_per_job": 64}, {"slots_per_job": 16, "lanes_per_chunk": 64})
    with jax_passing.init(unequal.address, rank=0, world_size=1):
        x = jax.random.normal(jax.random.key(0), (2, 50_000))
        assert jnp.allclose(total(x)[0], x.sum(0), atol=1e-5)
    one, other = (each.address for each in unequal.each)
    assert f"differ in slots of a job (64 at {one}, 16 at {other}): taking the least" in caplog.text
    assert f"differ in lanes of a chunk (360 at {one}, 64 at {other}): taking the least" in caplog.text


def test_one_that_takes_whole_chunks_gets_no_others(start, monkeypatch):
    monkeypatch.setattr(SoftwareDataPlane, "whole_chunks", property(lambda plane: plane.lanes_per_chunk == 64))
    unequal = start({"lanes_per_chunk": 64}, {"lanes_per_chunk": 50})
    with jax_passing.init(unequal.address, rank=0, world_size=1):
        for dtype in (jnp.float32, jnp.bfloat16, jnp.int32):
            x = jnp.arange(2 * 12345).reshape(2, -1).astype(dtype)
            assert (total(x)[0] == x.sum(0)).all()
    for one in unequal.each:
        one.stop()
    padded, others = (one.counters for one in unequal.each)
    assert padded["bytes_received"] == padded["packets_received"] * (20 + 4 * 64) > 0
    assert others["bytes_received"] < others["packets_received"] * (20 + 4 * 50)


# Joining.


def test_a_failed_join_leaves_no_thread_behind(three):
    before = set(threading.enumerate())  # of another test, a thread may end a little later
    with pytest.raises(JoinError):
        jax_passing.init(three.address, rank=0, world_size=2, join_deadline_s=0.5)
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("jax_passing")]


def test_two_names_of_one_switch_are_found_out(three):
    port = three.each[0].address.rsplit(":", 1)[1]
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port} and localhost:{port} are one switch"):
        jax_passing.init(f"{three.address},localhost:{port}", rank=0, world_size=1)


def test_the_one_that_does_not_answer_is_named(three):
    three.each[1].stop()
    with pytest.raises(SwitchUnreachableError, match=f"No switch answered at {three.each[1].address}"):
        jax_passing.init(three.address, rank=0, world_size=1, join_deadline_s=2.0)


def test_a_switch_that_comes_late_costs_no_other_its_patience(three, monkeypatch):
    monkeypatch.setattr(shard, "CONNECTED_S", 0.2)
    first, _, late = three.each
    host, port = parse_address(late.address)
    late.stop()
    called = Counter()

    class Counted(contact.Contact):
        def __init__(self, outside, address, *arguments, **key_of_job):
            called[address_text(*address)] += 1
            if called[first.address] == 2 and len(three.each) == 3:
                three.each.append(SwitchThread(listen=(host, port)))
            super().__init__(outside, address, *arguments, **key_of_job)

    monkeypatch.setattr(contact, "Contact", Counted)
    with jax_passing.init(three.address, rank=0, world_size=1, join_deadline_s=20):
        assert (total(ONES) == 2).all()
    three.each[-1].stop()
    assert called[first.address] >= 2


# Failing.


def test_a_broken_connection_names_the_switch(three):
    several = members(three)
    several[1].lose_switch(2)
    until(lambda: all(member.failure for member in several))
    # Both know it from rank 1, or from the switch that rank 1 is lost to: whichever is faster to tell the others.
    known = {
        "SwitchLostError": f"Rank 1 lost the switch at {three.each[2].address}",
        "HostLostError": "Rank 1 closed its connection (job 'test/shard 2'",
    }
    for member in several:
        assert known[member.failure.kind] in member.failure.message
        member.close()


def test_a_failure_ends_the_job_at_every_switch(three):
    several = members(three)
    several[1].fail(jax_passing.errors.Failure("ProgramMismatchError", "site 3 differs"))
    until(lambda: all(member.failure for member in several))
    assert "Reported by rank 1" in several[0].failure.message
    for member in members(three):  # the same ranks join again, while the old connections are still open
        member.close()
    for member in several:
        member.close()


def test_a_host_tells_the_other_switches_why_it_hangs_up(three, monkeypatch):
    """Else their hosts would name that host, which only heard that the job is over. (Seed 495 of the simulator.)"""
    first, second = members(three)
    told = []
    for each in first.membership.shards:
        monkeypatch.setattr(each, "send", lambda message, name=each.name: told.append((name, message)))
    monkeypatch.setattr(second.membership, "fail", lambda *_, **__: None)  # else it may be the first to tell
    second.send(1, messages.Fail("DeadlineExceededError", "60 s", (1,)))
    until(lambda: first.failure is not None)
    until(lambda: sum(isinstance(message, messages.Fail) for _, message in told) == 2)
    fails = {name: message for name, message in told if isinstance(message, messages.Fail)}
    assert fails.keys() == {three.each[0].address, three.each[2].address}
    assert all(message.kind == "DeadlineExceededError" and message.ranks == (1,) for message in fails.values())
    for member in (first, second):
        member.close()


def test_questions_go_to_the_switch_of_the_slot(three):
    several, notes = members(three), []
    membership = several[0].membership
    membership.transport.note_stall = notes.append
    several[0].call(membership.stalled, Stall(shard=1, slot=0, version=0, sequence=0), 5.0)
    until(lambda: notes)
    assert f"The switch at {three.each[1].address} has this chunk from no rank, not even this one" in notes[0]
    for member in several:
        member.close()


# Leaving.


def test_leaving_is_a_barrier_at_every_switch(three):
    several = members(three)
    with ThreadPoolExecutor(1) as pool:
        several[0].leave()
        left = pool.submit(several[0].await_others, time.monotonic() + 60)
        time.sleep(0.3)
        assert not left.done()
        several[1].leave()
        left.result(60)
    assert [member.failure for member in several] == [None, None]
    for member in several:
        member.close()


def test_long_packets_by_another_address_of_the_switch(start):
    anywhere = start({"listen": ("0.0.0.0", 0), "lanes_per_chunk": 2232}).each[0]
    address = f"127.0.0.2:{anywhere.address.rpartition(':')[2]}"  # from which it sends nothing by itself
    both = members(SimpleNamespace(address=address))
    assert both[0].welcomes[0].lanes_per_chunk == 2232
    leave(both)
