"""Hosts tell each other of their programs through a switch; the transports here tell of programs as they are told."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from jax_passing.config import Settings
from jax_passing.host.control import programs
from jax_passing.protocol import alike
from jax_passing.protocol import control_messages as messages
from support.host.driven import DrivenHost
from support.host.program_infos import identity, program
from support.host.stalls import Stall
from support.switch.in_process import Member, SwitchThread, settings_of, until


@pytest.fixture(scope="module")
def running():
    switch = SwitchThread()
    yield switch
    switch.stop()


class Host(Member):
    """Its transport tells of programs and orders as the tests say."""

    def __init__(self, settings):
        super().__init__(settings)
        self.ordered = []
        self.membership.transport.deliver_order_message = self.ordered.append

    def runs(self, info):
        self.call(self.membership.program, info)

    def note_of_stall(self):
        """Returns what it says of a sum that waits."""
        notes = []
        self.membership.transport.note_stall = notes.append
        self.call(self.membership.stalled, Stall(shard=0, waits_for_order=True), 5.0)
        until(lambda: notes)
        return notes[0]

    def orders(self, content):
        self.call(self.membership.order, content)


@pytest.fixture
def hosts(running):
    with ThreadPoolExecutor(3) as pool:
        several = list(pool.map(lambda rank: Host(settings_of(running, rank, 3)), range(3)))
    yield several
    for host in several:
        host.close()


def run_on_all(hosts, *infos):
    for info in infos:
        for host in hosts:
            host.runs(info)


def test_equal_programs_and_the_order_beside_them(hosts):
    run_on_all(hosts, program(), program(devices="0"), program(identity(stream="data")))
    hosts[0].orders(b"first")
    hosts[0].orders(b"")
    for host in hosts[1:]:
        until(lambda host=host: host.ordered == [b"first", b""])
        assert "So far" not in host.note_of_stall()
    assert [host.failure for host in hosts] == [None] * 3
    assert hosts[0].ordered == []


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("rank_0_first", [False, True])
def test_all_hosts_hear_at_once_of_a_program_that_differs(hosts, odd, rank_0_first):
    run_on_all(hosts, program())
    for host in hosts if rank_0_first else reversed(hosts):
        tree = ["['loss']", "['memory']" if host is hosts[odd] else "['learning_rate']"]
        host.runs(program(identity(leaves=[[path, "float32[]"] for path in tree])))
    for host in hosts:
        until(lambda host=host: host.failure)
        assert host.failure.kind == "ProgramMismatchError"
        assert "{loss, memory}" in host.failure.message
        assert "{loss, learning_rate}" in host.failure.message
        assert "Sum the same tree on all hosts." in host.failure.message


def test_a_long_program_travels(hosts):
    sums = [identity(place=[f"train.py:{index}:9 in step"]) for index in range(4000)]
    run_on_all(hosts, program(*sums))
    hosts[0].orders(b"then")
    for host in hosts[1:]:
        until(lambda host=host: host.ordered)
        assert "So far" not in host.note_of_stall()
        assert host.failure is None


def test_a_stall_tells_of_programs_that_rank_0_hasnt(hosts, caplog):
    hosts[1].runs(program(name="jit_alone"))
    note = hosts[1].note_of_stall()
    assert "Rank 1 runs jit_alone (0,1), which sums" in note
    assert note.endswith("So far rank 0 hasn't.")
    assert note in caplog.text
    assert hosts[1].failure is None


def test_what_a_host_runs_is_told_with_a_deadline_that_others_missed(hosts):
    hosts[1].runs(program(identity(leaves=[["['w']", "float32[3,5]"]])))
    hosts[0].call(hosts[0].membership.transport_failed, "DeadlineExceededError", "No progress. Missing: rank 1.")
    for host in hosts:
        until(lambda host=host: host.failure)
        assert host.failure.message.startswith("No progress. Missing: rank 1.")
    assert "['w'] float32[3,5]" in hosts[1].failure.message
    assert hosts[1].failure.message.endswith("So far rank 0 hasn't.")


@pytest.mark.parametrize("payload", [b"", b"\2", b"\1{}", b"x"], ids=repr)
def test_what_rank_0_doesnt_say(payload):
    host = DrivenHost()
    host.joins(0)
    host.switch(0, messages.Relay(payload))
    assert host.ranks.failure.kind == "SwitchLostError"


def test_nobody_tells_rank_0_of_its_programs():
    host = DrivenHost(rank=0)
    host.joins(0)
    host.switch(0, messages.Relay(messages.RELAYED_PROGRAM + programs.encode(programs.bounded(program(identity())))))
    assert host.ranks.failure.kind == "SwitchLostError"


def test_a_sum_that_cant_be_completed_fails_as_soon_as_it_is_started():
    host = DrivenHost()
    host.joins(0)
    host.outside.sums_started = 4
    host.switch(0, messages.Left((2,), 4))  # these may still be under way: the rank that left has contributed to them
    host.outside.pass_by(1.0)
    assert host.ranks.failure is None
    host.outside.sums_started = 5
    host.outside.pass_by(0.1)
    assert (host.ranks.failure.kind, host.ranks.failure.ranks) == ("HostLostError", (2,))
    assert "Rank 1 needs another sum (epoch 7), but rank 2 left the job after 4 of them." in host.ranks.failure.message


def test_a_host_that_has_left_itself_looks_for_no_sum():
    host = DrivenHost()
    host.joins(0)
    host.ranks.leave(lambda _: None)
    host.outside.sums_started = 5  # of a thread that was late
    host.switch(0, messages.Left((2,), 4))
    assert host.ranks.failure is None


def test_facts_of_a_join():
    join = DrivenHost(axis_name=("d",), device_count=2).joins(0)
    settings = Settings(switch=(("sw", 7171),), job="a", rank=1, world_size=3, axis_name=("d",))
    assert join.alike == alike.facts(settings, 2)
    assert join == messages.decode_from_member(messages.encode(join))


def test_the_payload_of_the_longest_program_fits():
    longest = programs.bounded(program(*["\0" * 1000] * 200, name="\0" * 9999, fingerprint="\0" * 99_999))
    line = messages.encode(messages.Relay(messages.RELAYED_PROGRAM + programs.encode(longest)))
    assert len(line) < messages.RELAY_LINE_BYTES_MAX
    assert messages.decode_from_switch(line).payload[:1] == messages.RELAYED_PROGRAM
