"""A switch under a supervisor that speaks systemd's protocol: with a socket of the test in its place."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from jax_passing.config import Settings
from jax_passing.errors import AuthenticationError
from jax_passing.host.control.control import Control
from jax_passing.protocol import keys
from jax_passing.switch.server.supervisor import Supervisor
from support.keys import write_key

SWITCH = [sys.executable, "-P", "-m", "jax_passing", "switch", "--listen", "127.0.0.1:0"]


@pytest.fixture
def told(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listens:
        listens.bind(str(tmp_path / "notify"))
        listens.settimeout(60)
        yield listens


def test_it_is_told_of_the_whole_life(told, tmp_path):
    key, other = keys.new_key(), keys.new_key()
    file = tmp_path / "switch.key"
    write_key(file, keys.SWITCH, key)
    given = {"NOTIFY_SOCKET": told.getsockname(), "WATCHDOG_USEC": "400000"}
    process = subprocess.Popen(
        [*SWITCH, "--key-file", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **given},
    )  # fmt: skip
    try:
        address = re.fullmatch(r"listening on (\S+)\n", process.stdout.readline())[1]
        assert told.recv(4096).decode() == f"READY=1\nSTATUS=listening on {address}"
        assert [told.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        assert joins(address, keys.job_key(key, "a"), tmp_path)

        write_key(file, keys.SWITCH, other)
        assert [text.partition("=")[0] for text in reloaded(process, told)] == ["RELOADING", "READY"]
        assert not joins(address, keys.job_key(key, "a"), tmp_path)
        assert joins(address, keys.job_key(other, "a"), tmp_path)

        file.write_text("nonsense")
        reloaded(process, told)
        assert joins(address, keys.job_key(other, "a"), tmp_path)
        process.terminate()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "STOPPING=1" in rest(told)
        assert "the key stays as it was: " in err
    finally:
        process.kill()
        process.communicate()


def reloaded(process, told):
    process.send_signal(signal.SIGUSR2)
    texts = []
    while not texts or not texts[-1].startswith("READY=1"):
        text = told.recv(4096).decode()
        texts += [text] if text != "WATCHDOG=1" else []
    return texts


def rest(told):
    told.settimeout(0.5)
    texts = []
    try:
        while True:
            texts.append(told.recv(4096).decode())
    except TimeoutError:
        return texts


def joins(address, key, folder):
    """Tells whether a host with this key joins."""
    file = folder / "job.key"
    write_key(file, keys.JOB, key)
    host, _, port = address.rpartition(":")
    settings = Settings(switch=((host, int(port)),), job="a", world_size=1, key_file=file, join_deadline_s=20.0)
    control = Control(settings, 0)
    try:
        ranks = control.join(None, (), 0, rehearses=False).ranks
        control.leave(ranks, 0)
    except AuthenticationError:
        return False
    finally:
        from jax_passing import _native

        _native.detach()
        control.close()
    return True


@pytest.mark.parametrize(
    ("given", "beat_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),  # it waits for another process
        ({"WATCHDOG_USEC": "nonsense"}, None),
        ({}, None),
    ],
)
def test_when_it_wants_signs_of_life(given, beat_s):
    assert Supervisor({"NOTIFY_SOCKET": "/nowhere", **given}).beat_s == beat_s
    assert Supervisor(given).beat_s is None


def test_nobody_is_told_without_a_supervisor_and_a_deaf_one_is_not_waited_for(told):
    Supervisor({}).serves("x")
    Supervisor({"NOTIFY_SOCKET": "/nowhere"}).serves("x")
    deaf = Supervisor({"NOTIFY_SOCKET": told.getsockname()})
    for _ in range(5000):  # more than the socket has room for
        deaf.lives()


def test_an_abstract_address():
    name = f"passing-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listens:
        listens.bind("\0" + name)
        Supervisor({"NOTIFY_SOCKET": "@" + name}).ends()
        assert listens.recv(100) == b"STOPPING=1"
