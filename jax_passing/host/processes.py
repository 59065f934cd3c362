"""The processes of `jax.distributed` tell each other, by its coordinator, what they are about to compute together."""

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from jax_passing._compat.process import coordinator, told_in
from jax_passing.errors import ConfigError, PassingError, UsageError

DEADLINE_S = 300.0  # as long as jax.distributed.initialize waits

Fact = tuple[str, str]
"""Something that is compared, and how it is shown."""

_meetings: tuple[Any, Counter[str]] = (None, Counter())  # how many there were, by coordinator and name


def told(
    what: str, own: str, processes: Sequence[int], error: type[PassingError], deadline_s: float | None = None
) -> dict[int, str]:
    """Returns what each of the processes says, which all call this, in the same order as each other.

    Args:
      what: the user has called.
      own: what this process says.
      processes: in ascending order; this one is among them.
      error: raised on all of them if not all have called this within `deadline_s`; by default DEADLINE_S.
    """
    client, deadline_s = coordinator(), deadline_s or DEADLINE_S
    if client is None:
        raise error(f"{what} goes over several processes, which tell each other by jax.distributed: initialize that.")
    meeting = hashlib.sha256(f"{what} {processes}".encode()).hexdigest()[:32]
    number = _next_number(client, meeting)
    prefix = f"jax_passing/{meeting}/{number}"
    client.key_value_set(f"{prefix}/{jax.process_index()}", own)
    try:
        client.wait_at_barrier(prefix, int(1000 * deadline_s), list(processes))
    except jax.errors.JaxRuntimeError as reason:
        absent = [process for process in processes if process not in _said(client, prefix)]
        others = f"{processes_text(absent, capital=False)} didn't" if absent else "others came later than that"
        raise error(
            f"{processes_text(processes)} have to call {what} together: {others}, within {deadline_s:g} s of process "
            f"{jax.process_index()}'s call. Call it on all of them, in the same order as their other calls."
        ) from reason
    said = {process: text for process, text in _said(client, prefix).items() if process in processes}
    if len(said) < len(processes):
        absent = [process for process in processes if process not in said]
        raise error(
            f"The coordinator of jax.distributed has lost what {processes_text(absent, capital=False)} said in {what}. "
            "Let nobody but the job's processes reach it."
        )
    if number:  # all have read what was said the last time
        client.key_value_delete(f"jax_passing/{meeting}/{number - 1}/{jax.process_index()}")
    return said


def told_unless_refused(
    what: str, aim: str, own: Any, processes: Sequence[int], deadline_s: float | None = None
) -> dict[int, Any]:
    """Does the same as `told` with values that JSON can write, where another process may be in `refusals_told`.

    Raises UsageError on all processes if one of them has refused. `aim`: the message says that it can't do this.
    """
    said = told(what, json.dumps([None, own]), processes, UsageError, deadline_s)
    everything = {process: _decoded(text, process, what) for process, text in said.items()}
    for process, (refusal, _) in sorted(everything.items()):
        if refusal is not None:
            raise UsageError(f"Process {process} can't {aim}, so no other does: {refusal}")
    return {process: value for process, (_, value) in everything.items()}


@contextlib.contextmanager
def refusals_told(what: str, processes: Sequence[int], deadline_s: float | None = None) -> Iterator[None]:
    """Surrounds what precedes `told_unless_refused`: if it raises, the other processes, which wait there, learn why."""
    try:
        yield
    except Exception as reason:
        if len(processes) > 1 and jax.process_index() in processes:
            with contextlib.suppress(UsageError):  # the others may not come; `reason` is the error to be raised
                told(what, json.dumps([f"{type(reason).__name__}: {reason}", None]), processes, UsageError, deadline_s)
        raise


def differences(said: Mapping[int, Mapping[str, Sequence[str]]]) -> list[str]:
    """Lists the facts that differ, and which process has what. `said`: by process, its facts by name."""
    found = []
    for name in dict.fromkeys(name for facts in said.values() for name in facts):
        who: dict[Any, list[int]] = {}
        for process, facts in sorted(said.items()):
            key, shown = facts.get(name, ("", "nothing"))
            who.setdefault((key, shown if key in ("", shown) else f"{shown} ({key[:8]})"), []).append(process)
        if len({key for key, _ in who}) > 1:
            having = [f"{processes_text(own, capital=False)}: {shown}" for (_, shown), own in who.items()]
            found.append(f"{name} ({'; '.join(having)})")
    return found


def processes_text(processes: Sequence[int], *, capital: bool = True) -> str:
    noun = "process" if len(processes) == 1 else "processes"
    return f"{noun.capitalize() if capital else noun} {', '.join(map(str, processes))}"


def compared_devices(is_for_jax: bool, strategy: str) -> int:
    """Returns how many devices this host has, which all hosts of a job have to have; or 0 if it needn't be so: JAX's
    own collectives, for which a session is opened, may go over hosts that differ in it."""
    return len(jax.local_devices()) if not is_for_jax or strategy == "flat" or _have_as_many_devices() else 0


def _have_as_many_devices() -> bool:
    return len(set(Counter(device.process_index for device in jax.devices("cpu")).values())) == 1


def check_devices() -> None:
    """Raises ConfigError if not all processes have as many devices."""
    if not _have_as_many_devices():
        raise ConfigError(
            "The hosts of this job have different numbers of devices. JAX's own collectives go over them, but "
            "jax_passing's functions need as many on each (JAX_NUM_CPU_DEVICES)."
        )


def _said(client: Any, prefix: str) -> dict[int, str]:
    told = told_in(client, f"{prefix}/")
    return {int(process): text for process, text in told.items() if re.fullmatch("[0-9]{1,9}", process)}


def _decoded(text: str, process: int, what: str) -> tuple[str | None, Any]:
    with contextlib.suppress(ValueError):
        match json.loads(text):
            case [None | str() as refusal, value]:
                return refusal, value
    raise UsageError(
        f"The coordinator of jax.distributed has something else from process {process} than what it says when it calls "
        f"{what}. Install the same version of jax_passing on all of them, and let nobody else reach the coordinator."
    )


def _next_number(client: Any, meeting: str) -> int:
    global _meetings
    if _meetings[0] is not client:  # jax.distributed was initialized anew, in all processes
        _meetings = (client, Counter())
    number = _meetings[1][meeting]
    _meetings[1][meeting] += 1
    return number
