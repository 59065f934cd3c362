"""A traced program depends on a scope beside its arguments: which axes continue over how many hosts, and more.

JAX keeps it in its cache keys (`jax.make_user_context`), so a program is traced and compiled again where it would mean
something else: in a session of another size, with other axes, in another stream. Its value belongs to a thread: the
one that called `init` has the session's, others have none until they enter a stream.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import jax

from jax_passing.config import Settings
from jax_passing.errors import ConfigError, PassingError, UsageError
from jax_passing.protocol import alike


class Scope(NamedTuple):
    """A program is traced in this scope: it says what the session tells of its sums.

    Attributes:
      axis_names: axes of local meshes, pmap and vmap that continue over the hosts.
      world_size: hosts; None in an elastic session, whose programs run in worlds of any size.
      device_ranks: devices of each host that are ranks of their own at the switch; 0 unless the strategy is "flat".
      strategy: of sums that name none.
      stream: name of this thread's order of sums; "" for the thread that called `init`.
      same_hashes: Python's sets are in the same order on all hosts, and what a program does in a loop over one is, too.
      per_host_gradients: JAX's own casts may be differentiated, though their sums stay inside the host; so may, without
        a warning, those of jax.lax.
      wire_dtype: how floats travel in sums that don't say so.
      check_equal: what the program takes for equal on all hosts is compared where it first runs.
      confidential: nobody but hosts may read what hosts send each other.
    """

    axis_names: tuple[str, ...] = ()
    world_size: int | None = 1
    device_ranks: int = 0
    strategy: str = "passing"
    stream: str = ""
    same_hashes: bool = False
    per_host_gradients: bool = False
    wire_dtype: str = "full"
    check_equal: bool = True
    confidential: bool = False

    @property
    def alone(self) -> bool:
        """Tells whether this host is sure to be the only one."""
        return self.world_size == 1


def of_settings(settings: Settings, world_size: int, device_ranks: int) -> Scope:
    """Returns the scope of a session with these settings."""
    size = None if settings.world_size_min is not None else world_size
    same_hashes = size == 1 or bool(alike.hash_seed())
    return Scope(
        settings.axis_name,
        size,
        device_ranks,
        settings.strategy,
        same_hashes=same_hashes,
        wire_dtype=settings.wire_dtype,
        check_equal=settings.check_equal,
        confidential=settings.is_confidential,
    )


_of_thread: Any = jax.make_user_context(None)
_session: Scope | None = None  # of the open session
_thread = 0  # that began it
_streams: set[str] = set()  # those that a thread is in
_had_streams = False  # any, ever: an executable of one may be kept for later sessions
_streams_lock = threading.Lock()
_is_forked = False  # from a process that had called `init`


def begin(scope: Scope) -> None:
    """A session begins; the calling thread is the one that may sum without a stream."""
    global _thread
    begin_for_jax(scope)
    _thread = threading.get_ident()
    _set(scope)


def begin_for_jax(scope: Scope) -> None:
    """A session begins in a thread of XLA: no thread may sum by our functions until one calls `begin`."""
    global _session, _thread
    _session, _thread = scope, 0


def end() -> None:
    """The session is over."""
    global _session
    _session = None
    _set(None)


def forget_in_child() -> None:
    """This process was forked from one that had called `init`: `check_process` raises from now on."""
    global _is_forked, _session, _streams_lock
    _is_forked, _session, _streams_lock = True, None, threading.Lock()


def check_process() -> None:
    """
    Raises:
      PassingError: this process was forked from one that had called `init`. It would wait for ever.
    """
    if _is_forked:
        raise PassingError(
            "This process was forked from one that had called jax_passing.init. JAX's threads and ours exist only in "
            "the parent: start it with the method 'spawn' of multiprocessing instead."
        )


def _set(scope: Scope | None) -> None:
    """Sets the scope of the calling thread, until it is set again."""
    _of_thread(scope).__enter__()


def within(scope: Scope | None) -> AbstractContextManager[None]:
    """Returns a context in which this is the calling thread's scope."""
    context: AbstractContextManager[None] = _of_thread(scope)
    return context


def of_thread() -> Scope | None:
    """Returns the calling thread's scope, as it was set last: it may be that of a session that is over."""
    scope: Scope | None = _of_thread.value
    return scope


def of_session() -> Scope | None:
    """Returns the scope of the thread that called `init`, on any thread; None without a session."""
    return _session


def is_thread_of_session() -> bool:
    """Tells whether the calling thread began the session."""
    return _session is not None and threading.get_ident() == _thread


def several_threads() -> bool:
    """Tells whether the calling thread isn't the one that began the session, or some thread has entered a stream."""
    return _session is not None and (_had_streams or threading.get_ident() != _thread)


def current() -> Scope | None:
    """Returns this thread's scope; None without a session: then nothing is known of the hosts yet.

    Raises:
      UsageError: there is a session, but it is another thread's.
      PassingError: this process was forked from one that had called `init`.
    """
    check_process()
    if _session is None:
        return None
    scope = of_thread()
    if scope is None or (not scope.stream and threading.get_ident() != _thread):  # none, or that of an earlier session
        raise UsageError(
            f"Thread {threading.current_thread().name!r} asks for a sum, but another thread called jax_passing.init. "
            "What two threads dispatch may run in another order on each host, and their sums would mix up: give this "
            "thread an order of its own with `with jax_passing.stream('name'):` around the calls, under the same name "
            "on all hosts. (Programs on several devices at once must all come from one thread.)"
        )
    return scope


def required(function: str) -> Scope:
    """Returns this thread's scope, for a function of ours that needs one.

    Raises:
      UsageError: there is no session; or as `current` does.
      PassingError: as `current` does.
    """
    scope = current()
    if scope is None:
        raise UsageError(f"no session: call jax_passing.init() before jax_passing.{function}")
    return scope


@contextmanager
def stream(name: str) -> Iterator[None]:
    """Gives the calling thread an order of sums of its own, so that it may run sums beside other threads.

    What is called in this block meets only what other hosts call in a stream of the same name: programs on one device,
    `process_sum` and `barrier`. (Programs on several devices XLA runs one after the other, in an order that differs
    between hosts if they come from several threads: they raise UsageError.) The thread that called `init` needs none.

    Raises:
      UsageError: without a session.
      ConfigError: the name isn't a short printable text, or somebody is in the stream already.
      PassingError: this process was forked after `init`.
    """
    global _had_streams
    check_process()
    if _session is None:
        raise UsageError("no session: call jax_passing.init() before entering a stream")
    if not isinstance(name, str) or not 1 <= len(name) <= 128 or not name.isprintable():
        raise ConfigError(f"Bad name of a stream, {name!r}: expected 1 to 128 printable characters.")
    with _streams_lock:
        if name in _streams:
            raise ConfigError(f"The stream {name!r} is in use. One thread at a time: give each a stream of its own.")
        _streams.add(name)
        _had_streams = True
    try:
        with within(_session._replace(stream=name)):
            yield
    finally:
        with _streams_lock:
            _streams.remove(name)
