"""A host of the fault campaign: joins a job, sums until something breaks, says what it got, waits for the next job."""

import os
import time
from typing import Any

import numpy as np

import jax_passing
from support.jax.lockstep import MARK, attempt, serve

SUMS_BEFORE_FAULTS = 3  # then it is told that this host sums: its programs are compiled, and known to all

session: jax_passing.Session | None = None


def _counts() -> dict[str, int]:
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}


def _join(settings: dict[str, Any]) -> float:
    global session
    began = time.monotonic()
    session = jax_passing.init(**settings)
    return time.monotonic() - began


def _sum(elements: int, dtype: str) -> dict[str, Any]:
    """Until the session fails."""
    assert session is not None
    own = (np.arange(elements) % 1009 * (session.rank + 1)).astype(dtype)
    of_all = (np.arange(elements) % 1009 * (session.world_size * (session.world_size + 1) // 2)).astype(dtype)
    sums = wrong = 0
    error: jax_passing.errors.PassingError | None = None
    while error is None:
        step = np.asarray(sums % 7, dtype)
        try:
            got = jax_passing.process_sum(own + step)
        except jax_passing.errors.PassingError as raised:
            at, error = time.monotonic(), raised
        else:
            wrong += not np.array_equal(got, of_all + step * session.world_size)
            sums += 1
            if sums == SUMS_BEFORE_FAULTS:
                print(MARK + '{"sums": true}', flush=True)
    session.shutdown()
    found = {"error": type(error).__name__, "text": str(error), "ranks": getattr(error, "ranks", ())}
    return {**found, "at": at, "sums": sums, "wrong": wrong, **_counts()}


def handle(question: dict[str, Any]) -> dict[str, Any]:
    match question:
        case {"do": "join", "settings": settings}:
            return attempt(lambda: _join(settings))
        case {"do": "sum", "elements": elements, "dtype": dtype}:
            return attempt(lambda: _sum(elements, dtype))
        case _:
            return {}


serve(handle)
