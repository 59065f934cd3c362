"""How `init` opens a session, through a real switch in this process: who joins, who is refused, who is missing."""

import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import jax_passing
from jax_passing.errors import JoinError, SwitchUnreachableError, UsageError
from jax_passing.host import init as init_module
from jax_passing.host import session as sessions
from jax_passing.host.stats import Stats
from support.jax.sessions import total
from support.switch.in_process import SwitchThread

ONES = jnp.ones((2, 8))


def test_a_world_of_one_needs_no_switch():
    with jax_passing.init() as session:
        assert (session.rank, session.world_size, session.epoch) == (0, 1, 0)
        assert sessions.current() is session
        with pytest.raises(UsageError, match="has a session already .without a switch."):
            jax_passing.init()
        assert (total(ONES) == 2).all()
        stats = session.stats()
        assert stats["session_s"] > 0
        assert stats.keys() == Stats.__annotations__.keys()
    assert sessions.current() is None
    session.shutdown()  # once more does nothing


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_parameters_are_compared_on_cpus_alone(monkeypatch, platform):
    monkeypatch.setattr(init_module, "jax", SimpleNamespace(default_backend=lambda: platform))
    with jax_passing.init(world_size=1, rank=0, check_equal=True) as session:
        assert session.settings.check_equal == (platform == "cpu")


def test_a_child_that_imports_the_script_is_refused(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("""
import multiprocessing, jax_passing
with jax_passing.init():
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    print("exit code", child.exitcode)
""")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert run.stdout == "exit code 1\n"
    assert "ConfigError: jax_passing.init is called in a child process" in run.stderr
    assert "if __name__ == '__main__':" in run.stderr


def test_where_jax_traces_it_is_refused():
    with pytest.raises(UsageError, match="init is called where JAX traces"):
        jax.jit(lambda x: (jax_passing.init(), x)[1])(1)
    assert sessions.current() is None


def test_a_world_of_one_that_nobody_asked_for_is_told_once(caplog):
    init_module._say_alone.cache_clear()
    for arguments in ({"world_size": 1}, {}, {}):
        jax_passing.init(**arguments).shutdown()
    (text,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "this host is the whole world" in text
    assert "Set JAX_PASSING_WORLD_SIZE=1" in text
    assert "jax-passing run" in text


def test_it_logs_the_settings_that_are_not_the_default_in_one_line(running, caplog):
    caplog.set_level("INFO", logger="jax_passing")
    with jax_passing.init(running.address, rank=0, world_size=1, axis_name=("d", "i"), deadline_s=60):
        pass
    (line,) = [text for record in caplog.records if "setting" in (text := record.getMessage())]
    assert line == (
        f"settings that aren't the default: switch={running.address} (argument switch), job=test (variable "
        "JAX_PASSING_JOB), rank=0 (argument rank), world_size=1 (argument world_size), deadline_s=60.0 (argument "
        "deadline_s), axis_name=d,i (argument axis_name)"
    )


def test_a_process_may_join_again_and_again(running):
    last = None
    for _ in range(3):
        with jax_passing.init(running.address, rank=0, world_size=1) as session:
            assert last is None or session.epoch == last % 65535 + 1
            last = session.epoch
            assert (total(ONES) == 2).all()
            stats = session.stats()
            assert stats["bytes_sent"] > 0
            assert stats["tensor_bytes"] > 0
    assert stats.keys() == Stats.__annotations__.keys()


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    with pytest.raises(SwitchUnreachableError, match=f"No switch answered at {address} for 0.5 s.*jax-passing switch"):
        jax_passing.init(address, rank=0, world_size=2, join_deadline_s=0.5)
    assert sessions.current() is None


def test_the_switch_may_come_later():
    with socket.create_server(("127.0.0.1", 0)) as free:
        host, port = free.getsockname()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(lambda: (time.sleep(0.6), SwitchThread(listen=(host, port)))[1])
        with jax_passing.init(f"{host}:{port}", rank=0, world_size=1, join_deadline_s=20):
            pass
        late.result().stop()


@pytest.mark.parametrize(
    ("changes", "whom"),
    [
        ({}, r"Ranks 0, 2 of job 'test' .* didn't join (so far|within).* Here: rank 1 \(127\.0\.0\.1, "),
        ({"world_size_min": 2}, r"Here is rank 1 \(127\.0\.0\.1\), and it needs 2"),
    ],
)
def test_missing_ranks_are_named_while_they_are_waited_for_and_at_the_deadline(running, caplog, changes, whom):
    with pytest.raises(JoinError, match=whom):
        jax_passing.init(running.address, rank=1, world_size=3, join_deadline_s=1.5, warn_s=0.3, **changes)
    warnings = [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]
    assert 1 <= len(warnings) <= 3
    expected = (
        r"Rank 1 of job 'test' has waited \S+ s for other hosts at the switch at \S+, and waits for at most \d s more"
    )
    assert re.match(f"{expected}. {whom}", warnings[0])


def test_a_name_that_nobody_knows():
    unknown = "No switch answered at nobody.invalid:7171 for 0.5 s .the name 'nobody.invalid' can't be resolved: "
    with pytest.raises(SwitchUnreachableError, match=unknown):
        jax_passing.init("nobody.invalid:7171", rank=0, world_size=2, join_deadline_s=0.5)
