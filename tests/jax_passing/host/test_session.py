"""A session through a real switch in this process: stalls, failing as one, shutdown, the end of the process, a fork."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

import jax_passing
from jax_passing.errors import (
    DeadlineExceededError,
    HostLostError,
    InsideHostWarning,
    SwitchLostError,
    UsageError,
    translate,
)
from jax_passing.host import preparations
from jax_passing.host import session as sessions
from support.jax.sessions import init_beside, total
from support.switch.in_process import Member, SwitchThread, members, settings_of, until

ONES = jnp.ones((2, 8))


def test_a_session_says_who_it_is(running):
    with jax_passing.init() as alone:
        assert repr(alone) == "<jax_passing.Session rank=0 world_size=1 job='test' axis_name='d' (open)>"
    assert repr(alone) == "<jax_passing.Session rank=0 world_size=1 job='test' axis_name='d' (closed)>"

    session, other = init_beside(running, other_rank=0)
    assert repr(session) == "<jax_passing.Session rank=1 world_size=2 job='test' axis_name='d' (open)>"
    other.lose_switch()
    until(lambda: session.error)
    assert repr(session).endswith(" (failed: HostLostError)>")
    session.shutdown()
    assert repr(session).endswith(" (closed)>")
    other.close()


def test_what_sums_need_is_prepared_when_a_session_begins(monkeypatch):
    monkeypatch.setattr(preparations, "_preparations", list(preparations._preparations))
    calls = []
    preparations.when_beginning(lambda: calls.append("early"))
    assert calls == []
    for _ in range(2):
        with jax_passing.init():
            assert calls == ["early"]
            preparations.when_beginning(lambda: calls.append("late"))
            assert calls == ["early", "late"]
        preparations._preparations.pop()
        calls.clear()


def test_sums_before_and_after_a_session_say_so():
    with jax_passing.init():
        total(ONES)
    with pytest.raises(UsageError), translate():
        total(ONES).block_until_ready()


def test_a_lost_host_is_named_and_the_process_goes_on(running):
    session, other = init_beside(running)
    pending = total(ONES)
    other.lose_switch()
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


@pytest.mark.parametrize("whose", ["switch", "session"])
def test_a_silent_switch_is_lost_when_the_lease_ends(whose):
    quick = SwitchThread(**({"lease_s": 1.5} if whose == "switch" else {}))
    (member,) = members(quick, 1, **({"lease_s": 1.5} if whose == "session" else {}))
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
    assert f"Rank 0 left job 'test', epoch {session.epoch}: it stopped with ZeroDivisionError" in other.failure.message
    other.close()


def test_a_stall_warns_and_fails_at_the_deadline_naming_the_missing_rank(running, caplog):
    # Rank 1 never sums.
    session, other = init_beside(running, warn_s=0.3, deadline_s=3.0)
    with pytest.raises(DeadlineExceededError) as caught, session:
        total(ONES).block_until_ready()
    message = str(caught.value)
    for part in ("Missing: rank 1 (", "job 'test'", "slot 0", "sequence 0", f"epoch {session.epoch}", "rank 0 of 2"):
        assert part in message
    warnings = [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]
    assert 1 <= len(warnings) <= 4
    assert "Missing: rank 1 (" in warnings[0]
    until(lambda: other.failure)
    assert other.failure.kind == "DeadlineExceededError"
    other.close()


def test_waiting_for_a_host_that_left_is_in_vain(running):
    session, other = init_beside(running, warn_s=0.2)
    with ThreadPoolExecutor(1) as pool:
        other.leave()
        leaving = pool.submit(other.await_others, time.monotonic() + 60)
        said = r"needs another sum .* rank 1\b.* left the job after 0 of them"
        with pytest.raises(HostLostError, match=said) as caught, session:
            total(ONES).block_until_ready()
        assert caught.value.ranks == (1,)
        leaving.result()
    other.close()


def test_waiting_for_the_order_of_rank_0(running, caplog):
    session, other = init_beside(running, other_rank=0, warn_s=0.2, deadline_s=2.0)
    with pytest.raises(DeadlineExceededError, match="waits for rank 0 (.*), which decides the order"), session:
        total(ONES).block_until_ready()
    other.close()


# Its end.


def test_shutdown_waits_for_the_other_hosts(running, recwarn):
    session, other = init_beside(running)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(session.shutdown)
        time.sleep(0.3)
        assert not done.done()
        other.leave()
        other.await_others(time.monotonic() + 60)
        done.result(60)
    assert session.error is None
    ended = str(recwarn.pop(InsideHostWarning).message)
    assert "rank 0 of 2 in job 'test' ends, but nothing was summed over the hosts" in ended
    other.close()


def test_shutdown_doesnt_wait_for_ever(running):
    session, other = init_beside(running, deadline_s=0.5)
    began = time.monotonic()
    with pytest.raises(InsideHostWarning), warnings.catch_warnings():
        warnings.simplefilter("error", InsideHostWarning)
        session.shutdown()  # is complete all the same
    assert 0.4 < time.monotonic() - began < 15  # the default is 60 s
    assert sessions.current() is None
    other.close()


def test_shutdown_lets_dispatched_work_finish(running):
    with jax_passing.init(running.address, rank=0, world_size=1):
        x = ONES
        for _ in range(20):
            x = jnp.stack([total(x)[0]] * 2) / 2
    assert (x == 1).all()


# The end of the process. Scripts, because it is the end.

PREAMBLE = """
import os, sys, threading
import jax, jax.numpy as jnp, jax_passing
P = jax.sharding.PartitionSpec
mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
total = jax.jit(jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
"""


def run_script(running, script, **environment):
    variables = {
        **os.environ,
        "JAX_PASSING_SWITCH": running.address,
        "JAX_PASSING_RANK": "0",
        "JAX_PASSING_WORLD_SIZE": "1",
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-P", "-c", PREAMBLE + script], env=variables, capture_output=True, text=True, timeout=120
    )


def test_exit_without_shutdown(running):
    ended = run_script(running, "s = jax_passing.init()\nx = total(jnp.ones((1, 8)))")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_exit_with_an_exception_tells_the_others(running):
    settings = settings_of(running, 1)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Member, settings, len(jax.local_devices()))
        script = r"jax_passing.init(); raise ValueError('\n\noops,\nno.\n\nMore')"
        ended = run_script(running, script, JAX_PASSING_WORLD_SIZE="2")
        other = joining.result()
    assert ended.returncode == 1
    assert re.search(r"^no\.\n\nMore\nwrote the flight record \S+, as the session failed", ended.stderr, re.MULTILINE)
    until(lambda: other.failure)
    assert "it stopped with ValueError: oops, no. Look at its log" in other.failure.message
    other.close()


def test_whoever_is_interrupted_while_it_waits_for_others_at_the_end_tells_them(running):
    settings = settings_of(running, 1)
    script = """
import _thread, threading
session = jax_passing.init()
threading.Timer(0.5, _thread.interrupt_main).start()
session.shutdown()
"""
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Member, settings, len(jax.local_devices()))
        ended = run_script(running, script, JAX_PASSING_WORLD_SIZE="2")
        other = joining.result()
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt")
    until(lambda: other.failure)
    assert "it stopped with KeyboardInterrupt" in other.failure.message
    other.close()


def test_exit_while_a_sum_is_pending(running):
    settings = settings_of(running, 1)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Member, settings, len(jax.local_devices()))
        ended = run_script(
            running,
            "jax_passing.init(deadline_s=3, warn_s=0.5)\nx = total(jnp.ones((1, 8)))",
            JAX_PASSING_WORLD_SIZE="2",
        )
        other = joining.result()
    # JAX decides whether the script meets the error when it calls the function or when it exits.
    assert ended.returncode in (0, 1)
    assert "Missing: rank 1" in ended.stderr
    other.close()


def test_a_forked_child_has_no_session_and_leaves_the_parents_alone(running):
    ended = run_script(
        running,
        """
import signal, warnings
warnings.simplefilter("ignore")  # JAX's own about forks

fresh = jax.vmap(lambda x: jax_passing.psum(x, "d"), axis_name="d")

def stream():
    with jax_passing.stream("mine"):
        pass

with jax_passing.init(world_size_min=1) as session:
    x = jnp.ones((1, 8))
    total(x)
    calls = [
        jax_passing.init, jax_passing.barrier, lambda: jax_passing.process_sum(1), stream, session.stats,
        session.rejoin, lambda: jax.make_jaxpr(fresh)(x), lambda: total(x),
    ]
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        session.shutdown()
        raised = 0
        for call in calls:  # each would hang: JAX's threads are the parent's
            try:
                with jax_passing.errors.translate():
                    call()
            except jax_passing.errors.PassingError as error:
                raised += type(error) is jax_passing.errors.PassingError and "spawn" in str(error)
        clean = jax_passing.session.current() is None and "closed" in repr(session) and raised == len(calls)
        os._exit(7 if clean else 8)  # as multiprocessing ends its children; JAX's own cleanup crashes in them
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    print(total(jnp.ones((1, 8)))[0, 0])
""",
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1.0\n", "")


def test_a_signals_handler_may_shut_down_what_is_being_shut_down(running):
    session, other = init_beside(running, deadline_s=2)
    before = signal.signal(signal.SIGALRM, lambda *_: session.shutdown())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        session.shutdown()  # waits for the other
    finally:
        signal.signal(signal.SIGALRM, before)
    assert repr(session).endswith(" (closed)>")
    other.close()
