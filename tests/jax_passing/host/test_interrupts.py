"""A session handles SIGINT as long as it is open, where nobody else does. tests/end_to_end/faults interrupts hosts."""

import signal
import threading
import time

import pytest

import jax_passing


def handler():
    return signal.getsignal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _default():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_handler_is_that_of_python_afterwards():
    with jax_passing.init(world_size=1):
        assert handler() is not signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert handler() is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_another_thread_gets_ends_a_sleep_once():
    timer = threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    with jax_passing.init(world_size=1):
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
        assert time.monotonic() - began < 25  # Python alone would sleep to the end
        time.sleep(1)  # no second KeyboardInterrupt comes
    timer.join()


def test_signals_that_are_handled_at_once_are_not_repeated():
    with jax_passing.init(world_size=1):
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        time.sleep(2)  # longer than the thread takes to judge three signals one by one


def test_a_handler_of_the_program_stays():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with jax_passing.init(world_size=1):
        assert handler() is signal.SIG_IGN
    with jax_passing.init(world_size=1):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert handler() is signal.SIG_IGN


def test_a_session_that_another_thread_has_shut_down_hands_over():
    session = jax_passing.init(world_size=1)
    former = handler()
    thread = threading.Thread(target=session.shutdown)
    thread.start()
    thread.join()
    assert handler() == former  # only the main thread may change it
    with jax_passing.init(world_size=1):
        assert handler() not in (former, signal.default_int_handler)
    assert handler() is signal.default_int_handler
