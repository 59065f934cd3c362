"""How a session ends: shutdown, the end of the process, a fork."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
from in_process import init_beside, settings_of, total, until

import jax_passing
from jax_passing.host.membership import Membership

ONES = jnp.ones((2, 8))


def test_shutdown_waits_for_the_other_hosts(running):
    session, other = init_beside(running)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(session.shutdown)
        time.sleep(0.3)
        assert not done.done()
        other.leave()
        other.await_others(time.monotonic() + 60)
        done.result(60)
    assert session.error is None
    other.close()


def test_shutdown_doesnt_wait_for_ever(running):
    session, other = init_beside(running, deadline_s=0.5)
    began = time.monotonic()
    session.shutdown()
    assert 0.4 < time.monotonic() - began < 15  # the default is 60 s
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
        joining = pool.submit(Membership, settings, settings.switch, len(jax.local_devices()))
        ended = run_script(running, "jax_passing.init()\nraise ValueError('oops')", JAX_PASSING_WORLD_SIZE="2")
        other = joining.result()
    other.start()
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("ValueError: oops")
    until(lambda: other.failure)
    assert "it stopped with ValueError: oops" in other.failure.message
    other.close()


def test_exit_while_a_sum_is_pending(running):
    settings = settings_of(running, 1)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(Membership, settings, settings.switch, len(jax.local_devices()))
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
import warnings
warnings.simplefilter("ignore")  # JAX's own about forks
with jax_passing.init() as session:
    total(jnp.ones((1, 8)))
    pid = os.fork()
    if pid == 0:
        clean = jax_passing.session.current() is None
        session.shutdown()
        try:
            jax_passing.init()  # would hang: JAX's threads are the parent's
            clean = False
        except jax_passing.errors.PassingError as error:
            clean = clean and "spawn" in str(error)
        os._exit(7 if clean else 8)  # as multiprocessing ends its children; JAX's own cleanup crashes in them
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    print(total(jnp.ones((1, 8)))[0, 0])
""",
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1.0\n", "")
