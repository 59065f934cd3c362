"""Defines the exceptions that this package raises; docs/operate/troubleshooting.md has causes and remedies."""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn


class PassingError(RuntimeError):
    """All errors of this package derive from this class."""


class ConfigError(PassingError, ValueError):
    """A setting is unknown, malformed, or missing."""


class UsageError(PassingError, ValueError, TypeError):
    """A program calls what has no meaning: without a session or in a second one, on a thread without an order of sums,
    with a handle that was used, for a dtype, a gradient, a model or a pipeline that can't be."""


class InterruptionError(PassingError):
    """An elastic session was interrupted, by no fault of this host, and goes on by `session.rejoin`. Other errors are
    final: what raised them would raise them again."""


class SwitchUnreachableError(InterruptionError):
    """No jax_passing switch answered at the configured address."""


class JoinError(PassingError):
    """The switch refused this rank, or other ranks didn't join in time."""


class AuthenticationError(JoinError):
    """A host and a switch don't have the same key: one of them has none, or that of another job."""


class NoSlotsError(JoinError, InterruptionError):
    """All slots of the switch are taken. If there is a standby, sums go there instead."""


class SwitchDrainingError(NoSlotsError):
    """The switch's operator drains it: jobs that were there go on, and no other is admitted. If there is a standby,
    sums go there instead."""


class TooFewHostsError(JoinError, InterruptionError):
    """Too few hosts of a job that meet came in time."""


class SwitchLostError(InterruptionError):
    """The switch closed the connection, died, or fell silent."""


class HostLostError(InterruptionError):
    """Other hosts died, fell silent, or left. `ranks` names them."""

    def __init__(self, message: str, ranks: Sequence[int] = ()):
        super().__init__(message)
        self.ranks = tuple(ranks)


class RankZeroError(PassingError):
    """The function that rank 0 ran in `on_rank_zero` raised an exception. The session continues."""


class HostJoinedError(InterruptionError):
    """A host wants to join an elastic session: call `session.rejoin`, so that all hosts meet again."""


class DeadlineExceededError(InterruptionError):
    """A sum made no progress for `deadline_s`."""


class WrongSumError(PassingError):
    """A result isn't the sum of what all hosts sent: a switch adds wrongly, or somebody forges packets."""


class EndedByOperatorError(PassingError):
    """A switch's operator, or a holder of the job's key, ended the job, or put this host out of it."""


class NonFiniteError(PassingError):
    """A host brought NaN or an infinity into a sum of a session with `check_nans`. The message names the host, the leaf
    and the source line."""


class ProgramMismatchError(PassingError):
    """Hosts run programs whose sums differ, which all hosts hear at once; or hold different bits in what their program
    takes for equal, such as parameters; or executions or devices of one host meet in a sum although they don't belong
    together."""


class ProtocolError(PassingError):
    """A host can't follow rank 0's order of sums: a bug in this package, or foreign data on the control connection."""


class ClosedError(PassingError):
    """The session was shut down while a sum was pending, or while another thread joined again."""


class UnvaryingInputError(UsageError):
    """The input is the same on all devices of the axis: JAX may have summed it already."""


class AcceleratorError(PassingError):
    """The driver of a GPU is missing or refused what a sum needs, or XLA moved the arrays of a sum that was running."""


class ExperimentalWarning(UserWarning):
    """A program sums over hosts on devices of a kind on which nobody has run this package yet."""


class InsideHostWarning(UserWarning):
    """A collective stays inside this host, but may be meant to go over all hosts. It isn't an error, as it may be
    right."""


class UnfinishedHandlesWarning(UserWarning):
    """A session ended while handles of `psum_start` weren't finished: their sums are gone. It isn't an error, as a
    pipeline may not need its last sums."""


def names(ranks: Sequence[int]) -> str:
    """Lists ranks, which are in ascending order, for an error message: "ranks 1, 4 to 9"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    several = (f"{run[0]} to {run[-1]}" if len(run) > 3 else ", ".join(map(str, run)) for run in runs)
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(several)


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def rate(gbit: float) -> str:
    """Writes "9.4 Gbit/s", "88.6 Mbit/s" or "0.9 kbit/s"."""
    for unit, times in (("G", 1), ("M", 1e3)):
        if gbit * times >= 0.9995:  # which three digits round to 1
            return f"{gbit * times:.3g} {unit}bit/s"
    return f"{gbit * 1e6:.3g} kbit/s"


def printable(text: str) -> str:
    """Escapes characters by which what strangers say could begin a line of its own, or move the terminal's cursor."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def gist(error: BaseException) -> str:
    """Describes an exception on one line, to be followed by a full stop: of JAX's paragraphs the first one."""
    first = " ".join(str(error).strip().partition("\n\n")[0].split())
    return f"{type(error).__name__}: {first}"[:1000].rstrip(".: ")


def _family(base: type[PassingError]) -> dict[str, type[PassingError]]:
    family = {base.__name__: base}
    for derived in base.__subclasses__():
        family |= _family(derived)
    return family


_BY_KIND = _family(PassingError)
# XLA's status code may come before the kind, and XLA's own context after the message.
_KIND_IN_TEXT = re.compile(rf"\b({'|'.join(_BY_KIND)}): (.*)", re.DOTALL)

_DISPATCHING = "Error dispatching computation: "


@dataclass(frozen=True)
class Failure:
    """Describes a failure that is passed on: from C++, over the control connection, or inside a text of XLA."""

    kind: str  # the name of an exception of this module
    message: str
    ranks: tuple[int, ...] = ()  # those that are lost, or that alone can't go on

    @property
    def is_interruption(self) -> bool:
        """Says whether an elastic session goes on after it."""
        return issubclass(_BY_KIND.get(self.kind, PassingError), InterruptionError)

    def exception(self) -> PassingError:
        """Makes a new exception each time: an exception that is raised twice would collect both tracebacks. Another
        host may have written the text, which may have several lines."""
        text = "\n".join(map(printable, self.message.split("\n")))
        if self.kind == HostLostError.__name__:
            return HostLostError(text, self.ranks)
        return _BY_KIND.get(self.kind, PassingError)(text)


def failure_of(error: PassingError) -> Failure:
    """Describes an exception, from which `Failure.exception` makes one that is alike."""
    return Failure(type(error).__name__, str(error), getattr(error, "ranks", ()))


def failure_in(text: str) -> Failure | None:
    """Finds "<Kind>: <message>" of one of our errors in the text of another error."""
    found = _KIND_IN_TEXT.search(text)
    return Failure(found[1], found[2].strip()) if found else None


def is_kind(kind: str) -> bool:
    return kind in _BY_KIND


def _no_failure() -> Failure | None:
    return None


_failure_of_session: Callable[[], Failure | None] = _no_failure


def ask_for_failure(failure_of_session: Callable[[], Failure | None]) -> None:
    """Registers a function that says why the open session has failed, or None; `typed` calls it. The session's module
    registers it, because this module can't import that one."""
    global _failure_of_session
    _failure_of_session = failure_of_session


def typed(error: BaseException) -> PassingError | None:
    """Returns the error of ours that `error`, raised by JAX, stands for; None if it has another cause."""
    # If jax isn't imported, this isn't an error of jax, and the switch process must not import jax for this check.
    jax = sys.modules.get("jax")
    # A program that fails while it is dispatched, on the caller's thread, raises a ValueError with the same text.
    if jax is None or isinstance(error, PassingError) or not isinstance(error, jax.errors.JaxRuntimeError | ValueError):
        return None
    known = _failure_of_session()
    failure = failure_in(str(error))
    if failure is None and not isinstance(error, jax.errors.JaxRuntimeError):
        return None
    if known is not None and (failure is None or failure.kind == known.kind):
        return known.exception()  # the session knows the ranks, and why errors of JAX follow
    return failure.exception() if failure else None


@contextmanager
def translate() -> Iterator[None]:
    """Raises an error that passed through XLA as our exception, such as HostLostError instead of JaxRuntimeError."""
    try:
        yield
    except Exception as error:
        ours = typed(error)
        if ours is None:
            raise
        raise_instead(ours, error)


@contextmanager
def logged(text: str) -> Iterator[None]:
    """Logs an exception with this text: the caller has to go on in any case."""
    try:
        yield
    except Exception:
        logging.getLogger("jax_passing").exception("%s", text)


def repeats_itself(error: BaseException) -> bool:
    """Tells whether XLA's text says the same for each program that was dispatched after the one that failed: a hundred
    of them make a line of several thousand characters."""
    return str(error).count(_DISPATCHING) > 1


def raise_instead(ours: PassingError, error: BaseException) -> NoReturn:
    """Raises our error for that of JAX, which is shown as its cause unless it repeats itself."""
    if repeats_itself(error):
        raise ours.with_traceback(error.__traceback__) from None
    raise ours from error
