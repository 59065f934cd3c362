"""Checks that the sessions of a mesh's processes sum each stage's gradients, and only these."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jax_passing.errors import UsageError
from jax_passing.host import session


class StageJob(NamedTuple):
    """Names the job in which a process sums gradients.

    Attributes:
      stage: the first row of the mesh that has a device of this process. It may be part of the job's name.
      rank: the rank of this process among those that share the row.
      world_size: the number of processes that share the row.
    """

    stage: int
    rank: int
    world_size: int


def stage_job(mesh: Mesh, stage_axis: str = "stage") -> StageJob:
    """Returns the job in which this process sums gradients, if the mesh spans several processes: arguments for `init`.

    The processes that share a stage are its ranks, in ascending order.
    """
    own = jax.process_index()
    for stage, processes in enumerate(_rows(mesh, stage_axis)):
        if own in processes:
            return StageJob(stage, processes.index(own), len(processes))
    raise UsageError("The mesh has no device of this process: leave the process out, or give it a part.")


class SessionInfo(NamedTuple):
    """The facts that other processes must know about a process's session.

    Attributes:
      job: name of the job.
      rank: rank of the process.
      world_size: number of hosts.
      is_declared: whether the data axis continues over the hosts.
    """

    job: str | None
    rank: int
    world_size: int
    is_declared: bool


def session_info(data_axis: str) -> SessionInfo | None:
    """Returns the facts about this process's session; None without a session."""
    open_one = session.current()
    if open_one is None:
        return None
    settings = open_one.settings
    return SessionInfo(settings.job, open_one.rank, open_one.world_size, data_axis in settings.axis_name)


def check_job(mesh: Mesh, stage_axis: str, data_axis: str) -> None:
    """Raises UsageError if this process's session, without regard to those of others, doesn't suit the mesh."""
    stage_job(mesh, stage_axis)  # raises if this process has no part of the mesh
    open_one = session.current()
    if open_one is not None and open_one.settings.world_size_min is not None:
        raise UsageError("A pipeline's hosts can't come and go: leave out init(world_size_min=...).")
    own = session_info(data_axis)
    is_alone = processes_of(mesh) == [jax.process_index()]
    if is_alone and own is not None and own.world_size > 1 and not own.is_declared:
        raise UsageError(
            f"The session has {own.world_size} hosts, but the data axis {data_axis!r} isn't among the axes that it "
            f"declares to continue over them ({', '.join(map(repr, _declared())) or 'none'}), so that each host "
            f"would train a model of its own. Write jax_passing.init(axis_name={data_axis!r}) on every host."
        )


def check_jobs(mesh: Mesh, stage_axis: str, data_axis: str, sessions: Mapping[int, SessionInfo | None]) -> None:
    """Raises UsageError if the sessions of the processes that the mesh spans don't suit it.

    All processes raise the same. A sum that some of them never join would hang in the middle of a step, and a sum of
    the processes of two stages would add gradients of different parameters.

    `sessions`: by process.
    """
    rows = _rows(mesh, stage_axis)
    if not suit(rows, sessions):
        lines = [
            f"process {process}, with {_rows_text(process, rows)}, has "
            + ("no session" if one is None else f"rank {one.rank} of {one.world_size} in job {one.job!r}")
            + (f", and declares {data_axis!r}" if one is not None and one.is_declared else "")
            for process, one in sorted(sessions.items())
        ]
        raise UsageError(
            "The sessions of the mesh's processes don't suit its stages. The processes that share a stage must be the "
            "ranks of one job, in ascending order, as jax_passing.stage_job(mesh) says. A process that has a stage by "
            "itself needs no session, or one of a single host. If its session has more hosts, it must declare the data "
            f"axis, and none of these hosts may have another part of this mesh. Here {'; '.join(lines)}."
        )


def suit(rows: Sequence[Sequence[int]], sessions: Mapping[int, SessionInfo | None]) -> bool:
    """Tells whether the sessions suit a mesh. `rows`: by row, the processes that have its devices, in ascending
    order."""
    for row in rows:
        hosts = [sessions[process] for process in row]
        first = hosts[0]
        if len(row) == 1:
            if first is None or first.world_size == 1:
                continue
            others = [one for process, one in sessions.items() if process != row[0]]
            if not first.is_declared or any(one is not None and one.job == first.job for one in others):
                return False
        elif any(hosts):
            job = None if first is None else first.job
            if hosts != [SessionInfo(job, rank, len(row), is_declared=False) for rank in range(len(row))]:
                return False
    return True


def processes_of(mesh: Mesh) -> list[int]:
    """Lists the processes that have any of the mesh's devices, in ascending order."""
    return sorted({device.process_index for device in mesh.devices.flat})


def _rows(mesh: Mesh, stage_axis: str) -> list[list[int]]:
    rows = np.moveaxis(mesh.devices, mesh.axis_names.index(stage_axis), 0)
    return [sorted({device.process_index for device in row.flat}) for row in rows]


def _declared() -> Sequence[str]:
    open_one = session.current()
    return () if open_one is None else open_one.settings.axis_name


def _rows_text(process: int, rows: Sequence[Sequence[int]]) -> str:
    own = [str(number) for number, row in enumerate(rows) if process in row]
    return f"row{'s' if len(own) > 1 else ''} {', '.join(own)}"
