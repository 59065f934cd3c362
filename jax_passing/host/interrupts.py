"""Ctrl-C ends a host that waits in a sum, and the others hear of it, though Python itself hears of it only afterwards.

Python handles a signal in its main thread, between two instructions. As long as that thread is in XLA, which waits for
a sum or compiles, nothing would happen. Here a thread learns of the signal at once, and gives the main thread a moment.

A call that waits, such as `time.sleep`, also waits on if the kernel hands the signal to another thread, or if the
signal comes just before the call: Python handles it after the call. A small script lost one Ctrl-C in 80 so. So the
thread signals the main thread itself.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
import weakref
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from jax_passing.errors import Failure, HostLostError

if TYPE_CHECKING:
    from jax_passing.host.session import Session

MOMENT_S = 0.5  # XLA's own waits look for signals every 0.2 s
RETURN_S = 0.1  # a call that a signal ends returns to Python within it


class Interrupts:
    """Hears of Ctrl-C for one session, until that ends. A program that handles SIGINT by itself keeps it to itself."""

    def __init__(self, session: "Session"):
        self._session = weakref.ref(session)  # a handler of signals may outlive it
        self._was_handled = False  # since the thread last judged a signal
        self._is_over = threading.Event()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and (former := _owner()) is not None:
            former._end()  # another thread has shut down its session
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if before != -1:  # an event loop of the program's wants to hear of signals
            signal.set_wakeup_fd(before)
            self._close()
            return
        self._main_thread = threading.get_ident()
        signal.signal(signal.SIGINT, self._on_interrupt)
        session.closers.append(self._end)
        self._thread = threading.Thread(target=self._watch, name="jax_passing-interrupts", daemon=True)
        self._thread.start()

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self._was_handled = True
        # Without a frame no Python runs any more: the error of the sum ends the program, and is being printed.
        if frame is not None:
            signal.default_int_handler(number, frame)

    def _watch(self) -> None:
        was_deaf, own = False, 0  # own: signals that this thread has sent and not read yet
        with suppress(OSError):
            while heard := self._reader.recv(1):
                if heard[0] != signal.SIGINT:
                    continue
                if own:
                    own -= 1
                    continue
                if self._is_over.wait(MOMENT_S):
                    return
                if not self._is_handled():
                    signal.pthread_kill(self._main_thread, signal.SIGINT)
                    own += 1
                    if self._is_over.wait(RETURN_S):
                        return
                if self._is_handled():
                    was_deaf, own, self._was_handled = False, 0, False
                    with suppress(BlockingIOError):  # Python may handle several signals as one: all so far are done
                        self._reader.recv(4096, socket.MSG_DONTWAIT)
                elif was_deaf and not _is_interactive():
                    _die()
                else:
                    was_deaf = True
                    self._fail()

    def _is_handled(self) -> bool:
        return self._was_handled or signal.getsignal(signal.SIGINT) != self._on_interrupt

    def _fail(self) -> None:
        session = self._session()
        if session is not None and session.control is not None:
            control, ranks = session.control
            text = (
                f"Rank {session.rank} left job {session.settings.job!r}, epoch {session.epoch}: it was interrupted "
                "(Ctrl-C). Call jax_passing.init again on every host."
            )
            control.fail(ranks, Failure(HostLostError.__name__, text, (session.rank,)))

    def _end(self) -> None:
        self._is_over.set()
        if threading.current_thread() is not threading.main_thread():
            return  # only that one may change handlers: the thread waits on, and ends with the process
        if signal.getsignal(signal.SIGINT) == self._on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if (current := signal.set_wakeup_fd(-1)) != self._writer.fileno():
            signal.set_wakeup_fd(current)
        self._close()
        self._thread.join(MOMENT_S)  # it returns at once, but holds the session until then

    def _close(self) -> None:
        self._writer.close()  # ends the thread
        self._reader.close()


def _owner() -> Interrupts | None:
    """Returns those that handle SIGINT, if any do."""
    found = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return found if isinstance(found, Interrupts) else None


def _is_interactive() -> bool:
    """Tells whether a second Ctrl-C would cost the user more than this program."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _die() -> None:
    """Ends this process as SIGINT ends others, whatever its main thread does."""
    ctypes.CDLL(None).signal(signal.SIGINT, 0)  # SIG_DFL
    os.kill(os.getpid(), signal.SIGINT)


def _after_fork_in_child() -> None:
    """Lets signals of a child not be heard by its parent, with which it shares the socket."""
    with suppress(ValueError):  # it was forked by another thread than the main one
        if _owner() is not None:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.default_int_handler)


os.register_at_fork(after_in_child=_after_fork_in_child)
