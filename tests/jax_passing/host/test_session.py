"""Sessions through a real switch in this process: joining, stalls, failing as one."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest
from in_process import SwitchThread, init_beside, members, settings_of, total, until

import jax_passing
from jax_passing.errors import (
    AlreadyInitializedError,
    DeadlineExceededError,
    HostLostError,
    JoinError,
    NotInitializedError,
    SwitchLostError,
    SwitchUnreachableError,
    translate,
)
from jax_passing.host import session as sessions
from jax_passing.host.membership import Membership
from jax_passing.protocol import control_messages as messages

ONES = jnp.ones((2, 8))


# Joining.


def test_a_world_of_one_needs_no_switch():
    with jax_passing.init() as session:
        assert (session.rank, session.world_size, session.epoch) == (0, 1, 0)
        assert sessions.current() is session
        with pytest.raises(AlreadyInitializedError, match="rank 0"):
            jax_passing.init()
        assert (total(ONES) == 2).all()
        assert session.stats()["session_s"] > 0
    assert sessions.current() is None
    session.shutdown()  # once more does nothing


def test_a_session_says_who_it_is(running):
    with jax_passing.init() as alone:
        assert repr(alone) == "<jax_passing.Session rank=0 world_size=1 job='test' axis_name='d' (open)>"
    assert repr(alone) == "<jax_passing.Session rank=0 world_size=1 job='test' axis_name='d' (closed)>"

    session, other = init_beside(running, other_rank=0)
    assert repr(session) == "<jax_passing.Session rank=1 world_size=2 job='test' axis_name='d' (open)>"
    other._shards[0].hang_up()
    until(lambda: session.failure)
    assert repr(session).endswith(" (failed: HostLostError)>")
    session.shutdown()
    assert repr(session).endswith(" (closed)>")
    other.close()


def test_what_sums_need_is_prepared_when_a_session_begins(monkeypatch):
    monkeypatch.setattr(sessions, "_preparations", list(sessions._preparations))
    calls = []
    sessions.when_beginning(lambda: calls.append("early"))
    assert calls == []
    for _ in range(2):
        with jax_passing.init():
            assert calls == ["early"]
            sessions.when_beginning(lambda: calls.append("late"))
            assert calls == ["early", "late"]
        sessions._preparations.pop()
        calls.clear()


def test_sums_before_and_after_a_session_say_so():
    with jax_passing.init():
        total(ONES)
    with pytest.raises(NotInitializedError), translate():
        total(ONES).block_until_ready()


def test_a_process_may_join_again_and_again(running):
    for epoch in (1, 2, 3):
        with jax_passing.init(running.address, rank=0, world_size=1) as session:
            assert session.epoch == epoch
            assert (total(ONES) == 2).all()
            stats = session.stats()
            assert stats["bytes_sent"] > 0
            assert stats["tensor_bytes"] > 0


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    with pytest.raises(SwitchUnreachableError, match=f"No switch answered at {address} for 0.5 s.*jax-passing switch"):
        jax_passing.init(address, rank=0, world_size=2, join_deadline_s=0.5)
    assert sessions.current() is None


def test_somebody_else_there():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SwitchUnreachableError, match="no jax_passing switch"):
            jax_passing.init("{}:{}".format(*server.getsockname()), rank=0, world_size=2)
        thread.join()


def test_the_switch_may_come_later():
    with socket.create_server(("127.0.0.1", 0)) as free:
        host, port = free.getsockname()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(lambda: (time.sleep(0.6), SwitchThread(listen=(host, port)))[1])
        with jax_passing.init(f"{host}:{port}", rank=0, world_size=1, join_deadline_s=20):
            pass
        late.result().stop()


def test_hosts_that_arent_alike_hear_of_it_all_at_once(running):
    settings = settings_of(running, 1, axis_name=("d", "i"))
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Membership, settings, settings.switch, len(jax.local_devices()))
        text = "Rank 1 of job 'test' has axis_name 'd,i', rank 0 has d. All hosts .* JAX_PASSING_AXIS_NAME"
        with pytest.raises(JoinError, match=text):
            jax_passing.init(running.address, rank=0, world_size=2, axis_name="d")
        with pytest.raises(JoinError, match=text):
            joining.result()


@pytest.mark.parametrize(("version", "older"), [(1, "the switch"), (99, "that host")])
def test_a_switch_of_another_protocol_version_that_hangs_up(version, older):
    """It doesn't understand our join: the former version's switch did so."""

    def serve(server):
        connection, _ = server.accept()
        with connection:
            connection.sendall(messages.encode(messages.Hello(version, "", 9, "old")))
            connection.recv(65536)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(serve, server)
        with pytest.raises(JoinError, match=f"protocol version {version}, .*Upgrade jax_passing on {older}:"):
            jax_passing.init("{}:{}".format(*server.getsockname()), rank=0, world_size=2)


def test_missing_ranks_are_named(running):
    with pytest.raises(JoinError, match="Ranks 0, 2 of job 'test'"):
        jax_passing.init(running.address, rank=1, world_size=3, join_deadline_s=2.0)


def test_ranks_that_disagree_on_the_world_size_are_told(running, caplog):
    caplog.set_level("INFO", logger="jax_passing.switch")
    settings = settings_of(running, 1, 3)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(jax_passing.init, running.address, rank=0, world_size=2, join_deadline_s=3)
        until(lambda: "rank 0 of 2 joined" in caplog.text)
        with pytest.raises(JoinError, match="says world_size 3, but rank 0 of job 'test' said 2"):
            Membership(settings, settings.switch)
        assert isinstance(waiting.exception(), JoinError)


# Failing.


def test_all_hosts_fail_alike(running):
    several = members(running, 3)
    several[1].fail(jax_passing.errors.Failure("ProgramMismatchError", "site 3 differs"))
    until(lambda: all(member.failure for member in several))
    assert {member.failure.kind for member in several} == {"ProgramMismatchError"}
    assert "Reported by rank 1" in several[0].failure.message
    for member in several:
        member.close()


def test_a_lost_host_is_named_and_the_process_goes_on(running):
    session, other = init_beside(running)
    pending = total(ONES)
    other._shards[0].hang_up()
    with pytest.raises(HostLostError, match="Rank 1 closed its connection") as caught, translate():
        pending.block_until_ready()
    assert caught.value.ranks == (1,)
    assert isinstance(session.error, HostLostError)
    other.close()

    with jax_passing.init(running.address, rank=0, world_size=1) as again:
        assert (total(ONES) == 2).all()
        assert again.error is None


def test_a_lost_switch(running):
    session = jax_passing.init(running.address, rank=0, world_size=1)
    running.stop()
    until(lambda: session.error)
    assert isinstance(session.error, SwitchLostError)
    with pytest.raises(SwitchLostError), session:
        total(ONES).block_until_ready()
    assert sessions.current() is None


def test_a_silent_switch_is_lost_when_the_lease_ends():
    quick = SwitchThread(lease_s=1.5)
    (member,) = members(quick, 1)
    time.sleep(3.0)
    assert member.failure is None  # heartbeats keep it alive
    blocked, resume = threading.Event(), threading.Event()
    quick._loop.call_soon_threadsafe(lambda: (blocked.set(), resume.wait(60)))
    assert blocked.wait(60)
    until(lambda: member.failure)
    resume.set()
    assert member.failure.kind == "SwitchLostError"
    assert "silent for 1.5 s" in member.failure.message
    member.close()
    quick.stop()


def test_a_host_that_stops_with_an_exception_tells_the_others(running):
    session, other = init_beside(running)
    with pytest.raises(ZeroDivisionError), session:
        _ = 1 // 0
    until(lambda: other.failure)
    assert (other.failure.kind, other.failure.ranks) == ("HostLostError", (0,))
    assert "Rank 0 left job 'test', epoch 1: it stopped with ZeroDivisionError" in other.failure.message
    other.close()


# Stalls.


def test_a_stall_warns_and_fails_at_the_deadline_naming_the_missing_rank(running, caplog):
    # Rank 1 never sums.
    session, other = init_beside(running, warn_s=0.3, deadline_s=3.0)
    with pytest.raises(DeadlineExceededError) as caught, session:
        total(ONES).block_until_ready()
    message = str(caught.value)
    for part in ("Missing: rank 1.", "slot 0", "sequence 0", "epoch 1", "rank 0 of 2"):
        assert part in message
    warnings = [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]
    assert 1 <= len(warnings) <= 4
    assert "Missing: rank 1." in warnings[0]
    until(lambda: other.failure)
    assert other.failure.kind == "DeadlineExceededError"
    other.close()


def test_waiting_for_a_host_that_left_is_in_vain(running):
    session, other = init_beside(running, warn_s=0.2)
    with ThreadPoolExecutor(1) as pool:
        other.leave()
        leaving = pool.submit(other.await_others, time.monotonic() + 60)
        with pytest.raises(HostLostError, match="rank 1 left the job without it") as caught, session:
            total(ONES).block_until_ready()
        assert caught.value.ranks == (1,)
        leaving.result()
    other.close()


def test_waiting_for_the_order_of_rank_0(running, caplog):
    session, other = init_beside(running, other_rank=0, warn_s=0.2, deadline_s=2.0)
    with pytest.raises(DeadlineExceededError, match="waits for rank 0, which decides the order"), session:
        total(ONES).block_until_ready()
    other.close()
