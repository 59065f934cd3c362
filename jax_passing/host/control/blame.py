"""Only the wrong host of an elastic session ends: these functions say which one that is. Pure."""

import dataclasses

from jax_passing.errors import AcceleratorError, Failure, HostLostError, ProgramMismatchError, names
from jax_passing.host.control.context import HostContext

_OF_ONE_HOST = {AcceleratorError.__name__}


def as_found(failure: Failure, rank: int, context: HostContext, *, in_sums: bool = False) -> Failure:
    """Blames a failure that this host has found. `ranks` of what is no interruption are those that alone can't go on;
    none: all hosts are wrong together.

    Hosts that run the job have run the same programs so far, so a newcomer is the one whose program differs from rank
    0's, or that can't follow the others. If they differ from each other nobody knows who is right. `in_sums`: all hosts
    find it, as that parameters differ.
    """
    newcomers = context.newcomers
    if context.met is None or failure.is_interruption or failure.ranks:
        return failure
    if rank in newcomers or failure.kind in _OF_ONE_HOST:
        return dataclasses.replace(failure, ranks=(rank,))
    if in_sums and failure.kind == ProgramMismatchError.__name__:
        return dataclasses.replace(failure, ranks=tuple(newcomers))
    return failure


def for_host(failure: Failure, rank: int, context: HostContext) -> Failure:
    """Returns what a failure of the job means for this host: one that is another host's own is that host's loss."""
    if context.met is None:
        return failure
    if failure.is_interruption:
        return dataclasses.replace(failure, message=to_go_on(failure.message))
    if not failure.ranks or rank in failure.ranks:
        return failure
    who = names(failure.ranks)
    text = (
        f"R{who[1:]} can't go on in this job. {failure.kind}: {failure.message} Call session.rejoin on every other "
        "host, to go on without it."
    )
    return Failure(HostLostError.__name__, text, failure.ranks)


def to_go_on(text: str) -> str:
    """Says what to do in an elastic session. Switches and hosts write their errors for any session."""
    for call in ("call", "Call"):
        text = text.replace(f"{call} jax_passing.init again", f"{call} session.rejoin")
    return text
