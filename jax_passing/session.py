"""A session: this process's membership in a job, from `init` to `shutdown`."""

import atexit
import ctypes
import logging
import os
import queue
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from jax_passing import _native, config
from jax_passing import control_messages as messages
from jax_passing.control_connection import ControlConnection, connect
from jax_passing.errors import (
    AlreadyInitializedError,
    Failure,
    HostLostError,
    JoinError,
    PassingError,
    SwitchLostError,
    SwitchUnreachableError,
    typed,
)
from jax_passing.stalls import StallReporter

log = logging.getLogger("jax_passing")

SLICE_S = 0.2  # waits in C++ can't be interrupted: Ctrl-C is seen between two of them
HEARTBEATS_PER_LEASE = 6
_INSTANCE = uuid.uuid4().hex

_current: "Session | None" = None
_init_lock = threading.Lock()


def current() -> "Session | None":
    """The session of this process, if one is open."""
    return _current


class Session:
    """Membership in a job. Made by `jax_passing.init`; also a context manager.

    Attributes:
      rank: index of this host in the job.
      world_size: number of hosts.
      epoch: incarnation of the job at the switch; 0 without a switch.
      settings: everything that was resolved.
    """

    def __init__(self, settings: config.Settings):
        self.settings = settings
        self.rank = settings.rank
        self.world_size = settings.world_size
        self.epoch = 0
        self._failed: Failure | None = None
        self._state_lock = threading.Lock()
        self._shutdown_lock = threading.Lock()
        self._closing = threading.Event()
        self._over = threading.Event()  # the switch said Bye, or the session failed
        self._is_shut_down = False
        self._threads: list[threading.Thread] = []
        self._began = time.monotonic()
        self._collective: _native.Transport | _native.LocalCollective
        self._control: ControlConnection | None = None
        self._transport: _native.Transport | None = None
        if settings.switch is None:
            self._collective = _native.LocalCollective()
        else:
            self._collective = self._transport = self._join(settings.switch)
        _native.attach(self._collective, deadline_s=settings.deadline_s)
        if self._transport is not None:
            self._start_threads()

    # Joining.

    def _join(self, address: tuple[str, int]) -> _native.Transport:
        settings = self.settings
        until = time.monotonic() + settings.join_deadline_s
        control, hello = connect(address, settings.join_deadline_s)
        try:
            udp = self._open_udp(hello.data_host or control.switch_host, hello.data_port)
            left_s = max(0.1, until - time.monotonic())
            join = messages.Join(
                protocol_version=messages.PROTOCOL_VERSION,
                job=settings.job,
                rank=settings.rank,
                world_size=settings.world_size,
                udp_port=udp.port,
                instance=_INSTANCE,
                join_deadline_s=left_s,
            )
            control.set_timeout(left_s + 5.0)  # the switch keeps the deadline, and knows who is missing
            welcome = self._await_welcome(control, join)
            control.set_timeout(welcome.lease_s)
            transport = _native.Transport(
                udp,
                job=welcome.job_id,
                epoch=welcome.epoch,
                rank=settings.rank,
                world_size=settings.world_size,
                slot_first=welcome.slot_first,
                slot_count=welcome.slot_count,
                lanes_per_chunk=welcome.lanes_per_chunk,
                warn_s=settings.warn_s,
                deadline_s=settings.deadline_s,
            )
        except BaseException:
            control.hang_up()
            control.close()
            raise
        self.epoch = welcome.epoch
        self._lease_s = welcome.lease_s
        self._slot_states: queue.SimpleQueue[messages.SlotState] = queue.SimpleQueue()
        self._stalls = StallReporter(rank=self.rank, epoch=self.epoch, ask=self._ask)
        self._control = control
        log.info("joined job %s: rank %d of %d, epoch %d", settings.job, self.rank, self.world_size, self.epoch)
        return transport

    @staticmethod
    def _open_udp(host: str, port: int) -> _native.UdpSocket:
        try:
            return _native.UdpSocket(host, port)
        except OSError as error:
            raise SwitchUnreachableError(f"Can't open a UDP socket to the switch's {host}:{port}: {error}.") from error

    @staticmethod
    def _await_welcome(control: ControlConnection, join: messages.Join) -> messages.Welcome:
        try:
            control.send(join)
            answer = control.receive()
        except (OSError, msgspec.DecodeError) as error:
            raise JoinError(
                f"The switch ended the connection while rank {join.rank} waited to join job {join.job!r}: {error}. "
                "Look at the switch's log."
            ) from error
        if isinstance(answer, messages.Refused | messages.Failed):
            raise Failure(answer.kind, answer.message).exception()
        if not isinstance(answer, messages.Welcome):
            raise JoinError(f"The switch answered {type(answer).__name__} to a join. Do the versions match?")
        return answer

    # While it runs: two threads, one for each of control connection and transport.

    def _start_threads(self) -> None:
        for name, target in (("control", self._serve_control), ("transport", self._serve_transport)):
            thread = threading.Thread(target=target, name=f"jax_passing-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve_control(self) -> None:
        assert self._control is not None
        assert self._transport is not None
        try:
            while True:
                match self._control.receive():
                    case messages.Relay(payload):
                        self._transport.deliver_order_message(payload)
                    case messages.SlotState() as state:
                        self._slot_states.put(state)
                    case messages.Failed(kind, message, ranks):
                        self._fail(Failure(kind, message, ranks), tell=False)
                        return
                    case messages.Bye():
                        self._over.set()
                        return
                    case _:
                        pass  # a heartbeat's echo: the socket's timeout starts anew
        except (OSError, ValueError, msgspec.DecodeError) as error:  # ValueError: closed by shutdown
            if not self._closing.is_set():
                address = "{}:{}".format(*self.settings.switch or ("", 0))
                reason = f"it was silent for {self._lease_s:g} s" if isinstance(error, TimeoutError) else str(error)
                self._fail(
                    Failure(
                        SwitchLostError.__name__,
                        f"Rank {self.rank} lost the switch at {address} (job {self.settings.job!r}, epoch "
                        f"{self.epoch}): {reason}. Look at the switch's log, restart it if it died, then call "
                        "jax_passing.init again on every host.",
                    ),
                    tell=False,
                )

    def _serve_transport(self) -> None:
        assert self._transport is not None
        beat_s = self._lease_s / HEARTBEATS_PER_LEASE
        next_beat = time.monotonic() + beat_s
        while not self._closing.is_set():
            event = self._transport.wait_event(max(0.0, next_beat - time.monotonic()))
            if time.monotonic() >= next_beat:
                self._send(messages.Heartbeat())
                next_beat = time.monotonic() + beat_s
            if event is None:
                continue
            if event.kind == "order_message":
                self._send(messages.Relay(event.order_message))
            elif event.kind == "stall" and event.stall is not None:
                note, failure = self._stalls.report(event.stall, event.stalled_s)
                self._transport.note_stall(note)
                if failure is not None:
                    self._fail(failure)
            elif event.kind == "failed" and event.failure is not None:
                self._fail(Failure(*event.failure))
                return

    def _send(self, message: messages.Message) -> None:
        assert self._control is not None
        with suppress(OSError):  # the receiving thread notices, and knows more
            self._control.send(message)

    def _ask(self, query: messages.Query) -> messages.SlotState | None:
        """Asks the switch; None if it doesn't answer."""
        with suppress(queue.Empty):
            while True:  # late answers to an earlier question
                self._slot_states.get_nowait()
        self._send(query)
        try:
            return self._slot_states.get(timeout=1.0)
        except queue.Empty:
            return None

    # Failing.

    def _fail(self, failure: Failure, *, tell: bool = True) -> None:
        """Fails all sums; the first failure wins. Tells the switch, which tells the other hosts."""
        assert self._transport is not None
        with self._state_lock:
            if self._failed is not None:
                return
            self._failed = failure
        self._transport.fail(failure.kind, failure.message)
        if tell:
            self._send(messages.Fail(failure.kind, failure.message[: 8 * 1024], failure.ranks))
        self._over.set()

    @property
    def failed(self) -> Failure | None:
        """Why this session can't go on, if so."""
        if self._failed is None and self._transport is not None:
            noticed = self._transport.failure()  # our thread may not have got its event yet
            return self._failed or (Failure(*noticed) if noticed else None)
        return self._failed

    @property
    def failure(self) -> PassingError | None:
        """The exception that sums of this session raise from now on, if any."""
        failed = self.failed
        return failed.exception() if failed else None

    # Leaving.

    def shutdown(self) -> None:
        """Waits for pending sums and for the other hosts to be done too, at most `deadline_s`; then leaves.

        Quick after a failure. A second call does nothing. JAX functions that were dispatched are waited for, those
        that run later raise NotInitializedError.
        """
        self._shut_down(abandon=None)

    def _shut_down(self, abandon: str | None) -> None:
        global _current
        with self._shutdown_lock:
            if self._is_shut_down:
                return
            self._is_shut_down = True
            try:
                if self._transport is not None:
                    self._leave(self._transport, abandon)
                elif abandon is None:
                    self._await_arrays(time.monotonic() + self.settings.deadline_s)
            finally:
                self._close()
                if _current is self:
                    _current = None

    def _leave(self, transport: _native.Transport, abandon: str | None) -> None:
        until = time.monotonic() + self.settings.deadline_s
        if abandon is None and not self._drain(transport, until):
            abandon = f"its sums weren't complete {self.settings.deadline_s:g} s after shutdown"
        failed = self.failed
        if failed is None and abandon is not None:
            failed = Failure(
                HostLostError.__name__,
                f"Rank {self.rank} left job {self.settings.job!r}, epoch {self.epoch}: {abandon}. Look at its log; "
                "then call jax_passing.init again on every host.",
                (self.rank,),
            )
        if failed is not None:
            self._fail(failed)
            return
        self._send(messages.Leave())
        while not self._over.wait(SLICE_S) and time.monotonic() < until:
            pass
        if not self._over.is_set():
            log.info("left job %s before the other hosts did", self.settings.job)

    def _drain(self, transport: _native.Transport, until: float) -> bool:
        """False if sums are still pending at `until`, or the session failed."""
        self._await_arrays(until)
        while not transport.drain(SLICE_S):
            if self.failed is not None or time.monotonic() >= until:
                return False
        return True

    def _await_arrays(self, until: float) -> None:
        """Lets dispatched computations reach their sums. Errors belong to whoever reads the arrays."""
        jax = sys.modules.get("jax")
        if jax is None:
            return
        from jax_passing import _compat

        def wait() -> None:
            for array in jax.live_arrays():
                with suppress(Exception):
                    array.block_until_ready()

        if _compat.backend_exists():
            # Of its own thread, because that wait has no timeout.
            thread = threading.Thread(target=wait, name="jax_passing-arrays", daemon=True)
            thread.start()
            while thread.is_alive() and time.monotonic() < until and self.failed is None:
                thread.join(SLICE_S)

    def _close(self) -> None:
        atexit.unregister(self._at_exit)
        self._closing.set()
        _native.detach()
        if self._transport is not None:
            self._transport.close()
        if self._control is not None:
            self._control.hang_up()
        for thread in self._threads:
            # Bounded, though both return at once: nothing may hang the end of the process.
            if thread is not threading.current_thread():
                thread.join(5.0)
        if self._control is not None:
            self._control.close()

    def _at_exit(self) -> None:
        # A script that died of an exception must not keep the others waiting for its sums. (At an interactive prompt
        # last_value is any earlier mistake.)
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self._shut_down(None if error is None else f"it stopped with {_describe(error)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shuts down, at once if the block raised. Raises the typed error that a JAX error in the block stands for."""
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.shutdown()
            if self.failure is not None and error is None:
                raise self.failure
            return
        ours = typed(error)
        self._shut_down(f"it stopped with {_describe(error)}")
        if ours is not None:
            raise ours from error

    def stats(self) -> dict[str, float]:
        """Counters of this host since `init`.

        `tensor_bytes` / `session_s` is the goodput; `bytes_sent`, `bytes_received` count UDP payload, headers and
        resends included; times end in _us or _s.
        """
        return {**self._collective.stats(), "session_s": time.monotonic() - self._began}

    def _forget_in_child(self) -> None:
        """After a fork: the threads exist in the parent alone, and the connection is the parent's."""
        self._is_shut_down = True
        atexit.unregister(self._at_exit)
        if self._control is not None:
            self._control.close()
        if self._transport is not None:
            # Its destructor would join a thread that isn't here.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._transport))


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:1000]


def init(
    switch: str | None = None,
    *,
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    deadline_s: float | None = None,
    warn_s: float | None = None,
    join_deadline_s: float | None = None,
    config: str | Path | None = None,
) -> Session:
    """Joins a job and waits for its other hosts.

    What isn't given comes from JAX_PASSING_* variables, then from a TOML file; rank and world size then from
    jax.distributed if it is initialized, or from the launcher that it would detect. Without a switch the world is this
    host.

    Args:
      switch: "host:port" of the switch.
      job: name of the job; hosts of one job share it.
      rank: index of this host.
      world_size: number of hosts, 1 to 64.
      deadline_s: how long a sum may make no progress.
      warn_s: after what time to warn about it.
      join_deadline_s: how long to wait for the switch and the other hosts.
      config: path of a TOML file with these settings (default: JAX_PASSING_CONFIG).

    Raises:
      ConfigError, AlreadyInitializedError, SwitchUnreachableError, JoinError.
    """
    global _current
    arguments = {
        "switch": switch,
        "job": job,
        "rank": rank,
        "world_size": world_size,
        "deadline_s": deadline_s,
        "warn_s": warn_s,
        "join_deadline_s": join_deadline_s,
    }
    if not _init_lock.acquire(blocking=False):
        raise AlreadyInitializedError("Another thread is in jax_passing.init. One session serves the whole process.")
    try:
        if _current is not None and _current.failed is not None:
            _current.shutdown()
        elif _current is not None:
            raise AlreadyInitializedError(
                f"This process has a session (job {_current.settings.job!r}, rank {_current.rank}). Use "
                "jax_passing.session.current(), or call its shutdown() first."
            )
        settings, sources = _resolve(arguments, config)
        for name, source in sources.items():
            log.info("%s = %s (%s)", name, getattr(settings, name), source)
        _current = Session(settings)
        atexit.register(_current._at_exit)
        return _current
    finally:
        _init_lock.release()


def _resolve(
    arguments: dict[str, str | int | float | None], path: str | Path | None
) -> tuple[config.Settings, dict[str, str]]:
    from jax_passing import _compat  # loads jax

    return config.resolve(arguments, path, process_in_cluster=_compat.process_in_cluster)


def _after_fork_in_child() -> None:
    global _current, _init_lock
    if _current is not None:
        _current._forget_in_child()
    _current, _init_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
