"""The thread of a host's control side, as other threads use it."""

import asyncio
import signal
import socket
import threading
import time

import pytest

from jax_passing.errors import ClosedError, JoinError
from jax_passing.host.control.loop import Loop
from jax_passing.protocol import control_messages as messages
from support.switch.in_process import until


@pytest.fixture
def loop():
    one = Loop()
    yield one
    one.close()


class Listener:
    """A conversation that only notes how it ended."""

    line_bytes_max = 1000

    def __init__(self, on_closed, on_opened=None):
        self.closed, self.opened = on_closed, on_opened


def test_functions_run_in_its_thread_and_return_or_raise(loop):
    assert loop.call(threading.current_thread) is not threading.current_thread()
    assert loop.call(lambda: loop.call(int, "7")) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        loop.call(int, "x")


def test_what_comes_later_is_waited_for(loop):
    assert loop.wait(lambda done, _: loop.call_later(0.05, lambda: done("now"))) == "now"
    with pytest.raises(ZeroDivisionError):
        loop.wait(lambda _, failed: failed(ZeroDivisionError()))
    with pytest.raises(TimeoutError):
        loop.wait(lambda *_: None, 0.01)


def test_an_error_that_comes_later_ends_no_frames_of_futures(loop):
    """They would stand right above it in the user's terminal."""
    with pytest.raises(JoinError) as caught:
        loop.wait(lambda _, failed: loop.call_later(0.01, lambda: failed(JoinError("rank 1 is missing"))))
    assert [entry.path.name for entry in caught.traceback] == ["test_loop.py", "loop.py"]


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "nobody.invalid", "x" * 300])
def test_a_call_that_fails_is_told(loop, address):
    error = loop.wait(lambda closed, _: loop.connect((address, 1), 20.0, Listener(closed), "job", None))
    assert isinstance(error, OSError | ValueError)


def test_it_leaves_no_thread_although_a_call_is_under_way():
    one = Loop()
    one.call(one.connect, ("10.255.255.1", 7171), 60.0, Listener(lambda error: None), "job", None)
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < 4
    assert not one._thread.is_alive()


@pytest.mark.parametrize("turns", range(6))
def test_it_ends_while_a_connection_is_being_made(turns):
    """The loop shuts down so many turns after a call began, in each of which the call is a step further."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one, ends = Loop(), []

        async def call_and_close():
            one.connect(server.getsockname(), 20.0, Listener(ends.append, lambda stream: None), "job", None)
            for _ in range(turns):
                await asyncio.sleep(0)
            await one._shut_down()
            return dict(one._sockets)

        assert asyncio.run_coroutine_threadsafe(call_and_close(), one._loop).result(20) == {}
        one.close()
        assert not one._thread.is_alive()


def test_a_thread_that_waits_hears_that_the_loop_was_closed():
    one = Loop()
    threading.Timer(0.1, one.close).start()
    with pytest.raises(ClosedError):
        one.wait(lambda *_: None)


def test_a_handler_of_a_signal_closes_what_its_thread_waits_for():
    one = Loop()
    before = signal.signal(signal.SIGALRM, lambda *_: one.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(ClosedError):
            one.wait(lambda *_: None)
    finally:
        signal.signal(signal.SIGALRM, before)


class Talker:
    """A conversation that notes what it hears."""

    line_bytes_max = 1000

    def __init__(self):
        self.said, self.ended, self.connection = [], threading.Event(), None

    def opened(self, connection):
        self.connection = connection

    def heard(self, line):
        self.said.append(line)

    def closed(self, error):
        self.ended.set()


def test_the_last_words_are_heard_though_we_were_writing(loop):
    """The other hangs up while we write: that fails, and what it said before is still in the socket."""
    talker = Talker()
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop.call(loop.connect, server.getsockname(), 20.0, talker, "job", None)
        other, _ = server.accept()
        other.sendall(b"one\n")
        until(lambda: talker.said)

        def write_too_late():
            talker.connection.send(messages.Heartbeat())
            time.sleep(0.1)  # what is there is unread when it hangs up, so we hear of that at once
            other.sendall(b"two\nthree\n")
            other.close()
            time.sleep(0.1)
            for _ in range(2):
                talker.connection.send(messages.Heartbeat())

        loop.call(write_too_late)
        assert talker.ended.wait(20)
    assert talker.said == [b"one", b"two", b"three"]
