"""`jax-passing run` on other machines, over an ssh that stands in for the real one."""

import os
import signal
import subprocess
import sys

import pytest

from support.jobs.launching import NO_SWITCH, RUN, alive, launch
from support.switch.in_process import until


@pytest.fixture
def fake_ssh(tmp_path):
    """An ssh that runs the command here, unless the machine is called "away". As with the real one, the command isn't
    among our processes, and learns by the end of its input that the connection is gone."""
    folder = tmp_path / "bin"
    folder.mkdir()
    ssh = folder / "ssh"
    ssh.write_text(
        """#!/bin/bash
while [ "$1" = -o ]; do shift 2; done
machine=$1; shift
if [ "$machine" = away ]; then echo "ssh: connect to host away port 22: No route to host" >&2; exit 255; fi
if [ "$machine" = bare ]; then exec /bin/sh -c "/nonexistent$*"; fi
setsid --wait env -i PATH="$PATH" FAKE_MACHINE="$machine" sh -c "$*" < <(cat)
"""
    )
    ssh.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_one_rank_on_each_machine(script, fake_ssh):
    show = script(
        """
print(os.environ["FAKE_MACHINE"], sys.argv[1:], os.environ["JAX_PASSING_WORLD_SIZE"], os.environ["JAX_NUM_CPU_DEVICES"])
print("err", os.environ["JAX_PASSING_WARN_S"], "SECRET" in os.environ, file=sys.stderr)
assert int(os.environ["NPROC"]) >= 2  # threads, for one device
"""
    )
    ended = launch(
        *NO_SWITCH,
        "--hosts",
        "a,me@b,c",
        show,
        "x y",
        "'",
        **fake_ssh,
        JAX_PASSING_WARN_S="7",
        SECRET="no variable of ours",
    )
    assert ended.returncode == 0, ended
    assert sorted(ended.stdout.splitlines()) == sorted(
        [f"[rank {rank}] {name} ['x y', \"'\"] 3 1" for rank, name in enumerate(["a", "me@b", "c"])]
        + [f"[rank {rank}] err 7 False" for rank in range(3)]
    )


def test_a_machine_that_cant_be_reached_is_named(script, fake_ssh):
    ended = launch(*NO_SWITCH, "--hosts", "a,away", script("time.sleep(60)"), **fake_ssh)
    assert ended.returncode == 255
    assert "[rank 1] ssh: connect to host away port 22: No route to host" in ended.stdout
    assert "rank 1 can't be started: ssh doesn't reach away, or lost it (exit code 255)" in ended.stdout
    assert "`ssh away true` must work" in ended.stdout


def test_a_machine_without_our_python_is_named(script, fake_ssh):
    ended = launch(*NO_SWITCH, "--hosts", "a,bare", script("time.sleep(60)"), **fake_ssh)
    assert ended.returncode == 127
    assert f"there is no {sys.executable} on bare (exit code 127)" in ended.stdout
    assert "under the same path there" in ended.stdout


def test_this_machine_is_reached_without_ssh(script):
    ended = launch(*NO_SWITCH, "--hosts", "127.0.0.1,localhost", script("print(rank)"), PATH="/nonexistent")
    assert ended.returncode == 0, ended
    assert sorted(ended.stdout.splitlines()) == ["[rank 0] 0", "[rank 1] 1"]


def test_a_pipe_to_ssh_that_breaks_ends_nothing(script):
    """We get this signal if ssh ends before it has taken its order."""
    broken = script("time.sleep(0.2); os.kill(os.getppid(), signal.SIGPIPE); time.sleep(0.2); sys.exit(7)")
    assert launch(*NO_SWITCH, "--hosts", "1", broken).returncode == 7


def test_the_exit_code_of_another_machine(script, fake_ssh):
    ended = launch(*NO_SWITCH, "--hosts", "a,b", script("sys.exit(7) if rank == 1 else time.sleep(60)"), **fake_ssh)
    assert ended.returncode == 7
    assert "rank 1 failed first (exit code 7)" in ended.stdout


def test_ctrl_c_ends_ranks_on_all_machines(script, fake_ssh):
    process = subprocess.Popen(
        [*RUN, *NO_SWITCH, "--hosts", "a,b", script("print('pid', os.getpid(), flush=True); time.sleep(60)")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", **fake_ssh},
    )
    pids = [int(process.stdout.readline().rpartition(" ")[2]) for _ in range(2)]
    assert all(map(alive, pids))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 128 + signal.SIGINT
    process.stdout.close()
    until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("hosts", ["0", "65", "2.5", "a,3", "a,,b", "a,-oProxyCommand=x", "a b"])
def test_hosts_that_are_none(hosts, script):
    ended = launch(*NO_SWITCH, "--hosts", hosts, script(""))
    assert ended.returncode != 0
    assert "--hosts" in ended.stdout + ended.stderr
