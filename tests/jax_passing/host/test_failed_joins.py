"""A host that joins at a switch that speaks, and never says what is waited for."""

import socket
import threading
import time
from contextlib import contextmanager, suppress

import msgspec
import pytest

from jax_passing.config import Settings
from jax_passing.errors import JoinError, SwitchUnreachableError
from jax_passing.host import shard
from jax_passing.protocol import control_messages as messages
from support.switch.in_process import Member

OFFER = messages.encode(messages.GroupOffer("239.192.0.1", 7172, 1, 1, 5))


@contextmanager
def speaking(first, again):
    """A switch that says this to whoever connects, the second all the time; its address."""
    over = threading.Event()

    def speak(connection):
        with connection, suppress(OSError):
            connection.sendall(first)
            while not over.wait(0.02):
                connection.sendall(again)

    def serve():
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=speak, args=server.accept()[:1]))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threads = [threading.Thread(target=serve)]
        threads[0].start()
        try:
            yield server.getsockname()
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def join(address, join_deadline_s=5.0):
    """Raises what comes of it."""
    Member(Settings(switch=(address,), job="a", rank=0, world_size=2, join_deadline_s=join_deadline_s)).close()


def test_a_greeting_that_never_ends():
    began = time.monotonic()
    with speaking(b"", b"x") as address, pytest.raises(SwitchUnreachableError, match="timed out"):
        join(address, 0.5)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("again", [b" ", OFFER], ids=["half a line", "offers"])
def test_a_join_that_is_never_answered(monkeypatch, again):
    monkeypatch.setattr(shard, "DEADLINE_GRACE_S", 0.0)
    hello = messages.encode(messages.Hello(messages.PROTOCOL_VERSION, "", 7171, "s"))
    began = time.monotonic()
    with (
        speaking(hello, again) as address,
        pytest.raises(JoinError, match="said nothing any more while rank 0 waited to join job 'a'"),
    ):
        join(address, 0.5)
    assert time.monotonic() - began < 5


HELLO = {"type": "hello", "protocol_version": 99, "data_host": "", "data_port": 7171, "instance": "s"}


@pytest.mark.parametrize("more", [{"instance": 7}, {"data_port": {"first": 7171}, "color": "red"}], ids=str)
def test_a_switch_of_a_newer_version_is_named_whatever_it_says(more):
    greeting = msgspec.json.encode(HELLO | more) + b"\n"
    with speaking(greeting, b"") as address, pytest.raises(JoinError, match="version 99, this host version .*Upgrade"):
        join(address)


def test_a_switch_of_a_newer_version_may_say_more_and_is_understood_as_far_as_that_goes():
    """It refuses the join by name, or doesn't, in words of its own."""
    refused = {"type": "refused", "kind": "JoinError", "message": "Upgrade jax_passing on that host.", "color": "red"}
    greeting = msgspec.json.encode(HELLO | {"color": "red"}) + b"\n"
    for answer, text in ((refused, "Upgrade jax_passing on that host"), ({"type": "thanks"}, "version 99, rank 0 of")):
        with (
            speaking(greeting, msgspec.json.encode(answer) + b"\n") as address,
            pytest.raises(JoinError, match=text),
        ):
            join(address)
