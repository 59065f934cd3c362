"""JAX programs that know nothing of us, on several hosts whose collectives go over gloo or over a switch."""

import os
from pathlib import Path

import ml_dtypes
import numpy as np

from jax_passing.for_jax import environment
from support.jobs.cluster import COMPILED_FAST, PROGRAMS, Cluster, Process, finish, free_address

OURS = {
    **environment.variables(),
    # They come from jax.distributed.
    "JAX_PASSING_RANK": "",
    "JAX_PASSING_WORLD_SIZE": "",
}
GLOO = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}


def start(
    cluster: Cluster,
    program: str,
    *args: str,
    way: dict[str, str] = OURS,
    hosts: int = 2,
    devices: int = 1,
    env: dict[str, str] | None = None,
) -> list[Process]:
    coordinator = free_address()
    # The programs import each other, and where PYTHONSAFEPATH is set Python doesn't look beside a script.
    paths = os.pathsep.join([str(PROGRAMS / "for_jax"), *filter(None, [os.environ.get("PYTHONPATH")])])
    started = []
    for rank in range(hosts):
        own = {
            "PYTHONPATH": paths,
            "HOST_RANK": str(rank),
            "HOST_COUNT": str(hosts),
            "COORDINATOR": coordinator,
            **way,
            **(env or {}),
        }
        started += cluster.start(f"for_jax/{program}", *args, hosts=1, devices=devices, env=own)
    return started


def results(
    cluster: Cluster, folder: Path, names: list[str], way: dict[str, str], hosts: int, devices: int, env: dict[str, str]
) -> dict[str, np.ndarray]:
    """Returns what the programs give on all hosts; where several hosts have the same, it must be so bit for bit."""
    folder.mkdir()
    started = start(
        cluster, "every.py", str(folder), *names, way=way, hosts=hosts, devices=devices, env=COMPILED_FAST | env
    )
    finish(started)
    found: dict[str, np.ndarray] = {}
    for name in names:
        for rank in range(hosts):
            with np.load(folder / f"{name}.{rank}.npz") as file:
                for key in file.files:
                    told = file[key]
                    first = found.setdefault(f"{name} {key}", told)
                    assert first.tobytes() == told.tobytes(), f"{name} {key}: host {rank}'s bits differ"
    return found


def widened(key: str, array: np.ndarray) -> np.ndarray:
    """Returns numbers that can be subtracted, of the bits of dtypes that numpy doesn't know."""
    name = key.rpartition("|")[2]
    return array.view(getattr(ml_dtypes, name, array.dtype)).astype(np.complex128)


def _by_name(found: dict[str, np.ndarray]) -> dict[str, tuple[np.ndarray, float]]:
    """Returns results with their bounds, which each run computes from its own numbers."""
    return {key.rpartition("|")[0]: (array, float(key.rpartition("|")[2])) for key, array in found.items()}


def compare(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> tuple[int, int]:
    """Returns how many results were compared within their bound, and how many bit for bit."""
    by_name, theirs_by_name = _by_name(ours), _by_name(theirs)
    assert by_name.keys() == theirs_by_name.keys()
    near = same = 0
    wrong = []
    for key, (mine, own_bound) in by_name.items():
        other, other_bound = theirs_by_name[key]
        bound = max(own_bound, other_bound)
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape), key
        if bound == 0:
            same += 1
            if mine.tobytes() != other.tobytes():
                wrong.append(f"{key}: other bits, {mine} and {other}")
        else:
            near += 1
            distance = np.abs(widened(key, mine) - widened(key, other)).max(initial=0)
            if not distance <= bound:
                wrong.append(f"{key}: {distance} apart")
    assert not wrong, "\n".join(wrong)
    return near, same
