"""Hosts that meet before they join: at the switch, or all of them at a standby."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_passing
from jax_passing.commands.operate.telling import tell
from jax_passing.config import parse_switches
from jax_passing.errors import (
    ConfigError,
    Failure,
    HostJoinedError,
    JoinError,
    NoSlotsError,
    ProgramMismatchError,
    SwitchDrainingError,
    SwitchLostError,
    SwitchUnreachableError,
    UsageError,
)
from jax_passing.host import executions
from jax_passing.protocol.control_messages import PROTOCOL_VERSION, Command
from support.jax.sessions import total
from support.switch.in_process import Guest, Member, SwitchThread, settings_of, until

VALUES = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5000)), jnp.float32)


@pytest.fixture
def nobody():
    """An address at which no switch is."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def standby():
    one = SwitchThread()
    yield one
    one.stop()


def bits(array):
    return np.asarray(array).tobytes()


def meet(settings, instance, step=None, within_s=20.0):
    guest = Guest(settings, instance)
    try:
        return guest.meet(step, within_s)
    finally:
        guest.close()


# Fail over.


def test_the_standby_where_nobody_answers(running, nobody):
    with jax_passing.init(running.address, rank=0, world_size=1):
        expected = bits(total(VALUES))
    with jax_passing.init(nobody, standby=running.address, rank=0, world_size=1) as session:
        assert bits(total(VALUES)) == expected
        assert session.world_size == 1


def test_the_standby_where_the_switch_has_no_slots_left(running, standby):
    small = SwitchThread(slot_total=1024, slots_per_job=1024)
    try:
        with jax_passing.init(small.address, rank=0, world_size=1):
            expected = bits(total(VALUES))
        other = Member(settings_of(small, 0, 1, job="another"))  # has all of them
        with pytest.raises(NoSlotsError, match="no 1024 free slots of its 1024"):
            jax_passing.init(small.address, rank=0, world_size=1)
        with jax_passing.init(small.address, standby=standby.address, rank=0, world_size=1):
            assert bits(total(VALUES)) == expected
        other.close()
    finally:
        small.stop()


@pytest.mark.parametrize("hosts", [1, 2])
def test_the_standby_where_the_operator_drains_the_switch(running, standby, hosts):
    drained = tell(parse_switches(running.address)[0], Command(PROTOCOL_VERSION, "drain"), None, None)
    assert drained.jobs == 0
    settings = [settings_of(running, rank, hosts, standby=parse_switches(standby.address)) for rank in range(hosts)]
    with ThreadPoolExecutor(hosts) as pool:
        assert [point for point, _ in pool.map(meet, settings, map(str, range(hosts)))] == [1] * hosts
    with pytest.raises(SwitchDrainingError, match="This switch's operator drains it"):
        jax_passing.init(running.address, rank=0, world_size=1)
    with jax_passing.init(running.address, standby=standby.address, rank=0, world_size=1):
        total(VALUES).block_until_ready()


def test_all_hosts_go_where_all_can_be(running, standby, nobody):
    """One of them can't reach the switch: the others meet it at the standby."""
    hosts = 3
    settings = [
        settings_of(running, rank, hosts, standby=parse_switches(standby.address), switch=parse_switches(first))
        for rank, first in enumerate([nobody] + [running.address] * (hosts - 1))
    ]
    with ThreadPoolExecutor(hosts) as pool:
        met = list(pool.map(meet, settings, map(str, range(hosts))))
    assert [point for point, _ in met] == [1] * hosts
    assert [one.rank for _, one in met] == list(range(hosts))


def test_hosts_that_cant_all_be_anywhere_hear_it_in_time(running, standby, nobody):
    """Two reach only the one, two only the other: neither pair goes on, though two would be enough."""
    two = {"world_size_min": 2, "standby": parse_switches(standby.address)}
    firsts = [running.address] * 2 + [nobody] * 2
    settings = [settings_of(running, rank, 4, switch=parse_switches(first), **two) for rank, first in enumerate(firsts)]
    for one in settings[:2]:
        object.__setattr__(one, "standby", parse_switches(nobody))
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        met = [pool.submit(meet, one, str(rank), None, 2.0) for rank, one in enumerate(settings)]
    assert time.monotonic() - began < 15
    assert [one.result()[0] for one in met[:2]] == [0, 0]  # half of them, where they would rather be
    for one in met[2:]:
        with pytest.raises(JoinError, match="Here (are|is) .*, and it needs 3 hosts"):
            one.result()


@pytest.mark.parametrize("lost", [0, 1])
def test_an_elastic_session_goes_on_with_the_switches_that_answer(lost, caplog):
    switches = [SwitchThread() for _ in range(2)]
    addresses = [switch.address for switch in switches]
    try:
        with jax_passing.init(",".join(addresses), rank=0, world_size=1, world_size_min=1) as session:
            expected = bits(total(VALUES))
            assert session.links.switches == 2
            switches[lost].stop()
            until(lambda: session.error is not None)
            began = time.monotonic()
            assert session.rejoin(3) == 3
            assert time.monotonic() - began < 10
            assert session.links.switches == 1
            assert bits(total(VALUES)) == expected
            assert f"No switch answers all hosts at {addresses[lost]}: the job goes on" in caplog.text
            (host, port), *_ = parse_switches(addresses[lost])
            switches[lost] = SwitchThread(listen=(host, port))
            assert session.rejoin(4) == 4
            assert session.links.switches == 2
            assert bits(total(VALUES)) == expected
    finally:
        for switch in switches:
            switch.stop()


def test_at_first_all_switches_are_waited_for(running, nobody):
    began = time.monotonic()
    with jax_passing.init(
        f"{nobody},{running.address}", rank=0, world_size=1, world_size_min=1, join_deadline_s=2
    ) as session:
        assert time.monotonic() - began > 1.5
        assert session.links.switches == 1


def test_no_switch_anywhere(nobody):
    with pytest.raises(SwitchUnreachableError, match=nobody):
        jax_passing.init(nobody, rank=0, world_size=1, world_size_min=1, join_deadline_s=1)


def test_a_standby_is_another_switch(running):
    with pytest.raises(ConfigError, match="give another switch as a standby"):
        jax_passing.init(running.address, standby=running.address, rank=0, world_size=1)
    with pytest.raises(ConfigError, match="no switch that it could replace"):
        jax_passing.init(standby=running.address, rank=0, world_size=1)


# Elastic sessions.


def test_too_few_hosts_hear_it_by_name_and_in_time(running):
    began = time.monotonic()
    why = r"within the 1\.0 s that rank 1 waited. Here is rank 1 \(127\.0\.0\.1\), and it needs 2 hosts"
    with pytest.raises(JoinError, match=why):
        jax_passing.init(running.address, rank=1, world_size=3, world_size_min=2, join_deadline_s=1)
    assert time.monotonic() - began < 10


def test_enough_hosts_begin_without_the_others(running):
    with jax_passing.init(running.address, rank=2, world_size=3, world_size_min=1, join_deadline_s=1) as session:
        assert (session.rank, session.world_size, session.step, session.survivors) == (0, 1, None, 0)
        np.testing.assert_allclose(total(VALUES)[0], VALUES[0] + VALUES[1], atol=1e-6)


def test_a_session_of_one_host_rejoins_and_compiles_nothing(running, caplog):
    executions._work.clear_cache()  # as in a process that has just begun
    with jax_passing.init(running.address, rank=0, world_size=1, world_size_min=1) as session:
        epoch, mean = session.epoch, jax.jit(jax.vmap(lambda x: jax_passing.pmean(x, "d"), axis_name="d"))
        expected = bits(mean(VALUES))
        with jax.log_compiles():
            assert session.rejoin(7) == session.step == 7
            assert bits(mean(VALUES)) == expected
        assert "compilation" not in caplog.text
        assert (session.epoch, session.survivors) == (epoch + 1, 1)


def test_random_rounding_after_a_rejoin_is_not_that_of_the_beginning(running):
    elastic = {"rank": 0, "world_size": 1, "world_size_min": 1, "wire_dtype": "int4"}
    mean = jax.jit(jax.vmap(lambda x: jax_passing.pmean(x, "d"), axis_name="d"))
    runs = []
    for _ in range(2):
        with jax_passing.init(running.address, **elastic) as session:
            seen = [bits(mean(VALUES))]
            for step in (6, 7):
                session.rejoin(step)
                seen.append(bits(mean(VALUES)))
        runs.append(seen)
    assert len(set(runs[0])) == 3
    assert runs[0] == runs[1]  # the same steps give the same bits


def test_a_newcomer_ends_the_epoch_and_all_meet(running):
    elastic = {"world_size_min": 1, "deadline_s": 30.0}
    with jax_passing.init(running.address, rank=0, world_size=2, join_deadline_s=1, **elastic) as session:
        assert session.world_size == 1
        total(VALUES).block_until_ready()
        settings = settings_of(running, 0, 2, **elastic)
        newcomer = Guest(settings, "newcomer", device_count=jax.local_device_count())
        with ThreadPoolExecutor(1) as pool:
            met = pool.submit(newcomer.meet, within_s=30.0)
            until(lambda: session.error is not None)
            with pytest.raises(HostJoinedError, match="wants to join"), jax_passing.errors.translate():
                total(VALUES).block_until_ready()
            joins = pool.submit(lambda: (met.result(), Member(settings_of(running, 1, 2, **elastic), 8))[1])
            assert session.rejoin(4) == 4
            other = joins.result()
        assert (session.rank, session.world_size, session.survivors) == (0, 2, 1)
        assert met.result()[1].rank == 1
        other.close()
        newcomer.close()
        until(lambda: session.error is not None)
        assert session.rejoin(4) == 4
        assert session.world_size == 1
        total(VALUES).block_until_ready()


def test_a_switch_that_comes_back(nobody):
    address = parse_switches(nobody)[0]
    first = SwitchThread(listen=("127.0.0.1", 0))
    host, port = parse_switches(first.address)[0]
    assert address[0] == host
    with jax_passing.init(first.address, rank=0, world_size=1, world_size_min=1, join_deadline_s=30) as session:
        total(VALUES).block_until_ready()
        first.stop()
        until(lambda: session.error is not None)
        assert isinstance(session.error, SwitchLostError)
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(lambda: (time.sleep(0.5), SwitchThread(listen=(host, port)))[1])
            assert session.rejoin(2) == 2
        total(VALUES).block_until_ready()
        session.shutdown()
        later.result().stop()


def test_rejoin_is_for_elastic_sessions_and_their_thread(running):
    with (
        jax_passing.init(running.address, rank=0, world_size=1) as session,
        pytest.raises(ConfigError, match="world_size_min"),
    ):
        session.rejoin(0)
    with jax_passing.init(running.address, rank=0, world_size=1, world_size_min=1) as session:
        for step in (-1, True, 1.5):
            with pytest.raises(ConfigError, match="expected a number of steps"):
                session.rejoin(step)
        with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError):
            pool.submit(session.rejoin, 1).result()
    with pytest.raises(UsageError):
        session.rejoin(0)


def test_a_host_that_alone_cant_go_on_doesnt_rejoin(running):
    session = jax_passing.init(running.address, rank=0, world_size=1, world_size_min=1)
    control, ranks = session.control
    control.fail(ranks, Failure("ProgramMismatchError", "It runs another script.", (0,)))
    with pytest.raises(ProgramMismatchError, match="another script"):
        session.rejoin(3)
    session.shutdown()


def test_without_a_switch_nobody_can_be_lost():
    with jax_passing.init(rank=0, world_size=1, world_size_min=1) as session:
        assert session.rejoin(3) == 3
        assert session.survivors == 1
        assert (total(VALUES)[0] == VALUES[0] + VALUES[1]).all()
