"""Whether the sessions of a mesh's processes sum what a pipeline wants summed: each stage's gradients by themselves."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_passing.errors import PipelineError
from jax_passing.host import session

_TEXT_BYTES = 2048  # of a Member; a job's name has at most 128 characters


class StageJob(NamedTuple):
    """
    Attributes:
      stage: the first row of the mesh that has a device of this process. It may be part of the job's name.
      rank: of this process among those that share the row.
      world_size: their number.
    """

    stage: int
    rank: int
    world_size: int


def stage_job(mesh: Mesh, stage_axis: str = "stage") -> StageJob:
    """The job in which this process sums gradients, if the mesh spans several processes: what `init` wants to know.

    The processes that share a stage are its ranks, in ascending order.
    """
    own = jax.process_index()
    for stage, processes in enumerate(_rows(mesh, stage_axis)):
        if own in processes:
            return StageJob(stage, processes.index(own), len(processes))
    raise PipelineError("The mesh has no device of this process: leave the process out, or give it a part.")


class Member(NamedTuple):
    """What a process says of its session.

    Attributes:
      job: its name.
      rank: of the process.
      world_size: number of hosts.
      is_declared: whether the data axis continues over the hosts.
    """

    job: str | None
    rank: int
    world_size: int
    is_declared: bool


def member(data_axis: str) -> Member | None:
    """This process; None without a session."""
    open_one = session.current()
    if open_one is None:
        return None
    settings = open_one.settings
    return Member(settings.job, open_one.rank, open_one.world_size, data_axis in settings.axis_name)


def check_jobs(mesh: Mesh, stage_axis: str, data_axis: str) -> None:
    """Every process that has a part of the mesh calls this, and all of them raise the same.

    A sum that some of them never join would hang in the middle of a step, and one that joins two stages' processes
    would add gradients of different parameters.

    Raises PipelineError if a session doesn't suit the mesh.
    """
    stage_job(mesh, stage_axis)  # this process has a part of the mesh
    open_one = session.current()
    if open_one is not None and open_one.settings.world_size_min is not None:
        raise PipelineError("A pipeline's hosts can't come and go: leave out init(world_size_min=...).")
    own = member(data_axis)
    rows = _rows(mesh, stage_axis)
    if {process for row in rows for process in row} == {jax.process_index()}:
        if own is not None and own.world_size > 1 and not own.is_declared:
            raise PipelineError(
                f"The session has {own.world_size} hosts, but the data axis {data_axis!r} isn't among the axes that it "
                f"declares to continue over them ({', '.join(map(repr, _declared())) or 'none'}), so that each host "
                f"would train a model of its own. Write jax_passing.init(axis_name={data_axis!r}) on every host."
            )
        return
    members = _exchanged(mesh, own)
    if not suit(rows, members):
        lines = [
            f"process {process}, with {_stages_text(process, rows)}, has "
            + ("no session" if one is None else f"rank {one.rank} of {one.world_size} in job {one.job!r}")
            + (f", and declares {data_axis!r}" if one is not None and one.is_declared else "")
            for process, one in sorted(members.items())
        ]
        raise PipelineError(
            "The sessions of the mesh's processes don't suit its stages. The processes that share a stage are the "
            "ranks of one job, in ascending order, as jax_passing.stage_job(mesh) says. A stage inside of one process "
            "needs no session, or one of a single host; if there are more, it declares the data axis, and none of them "
            f"has another part of this mesh. Here {'; '.join(lines)}."
        )


def suit(rows: Sequence[Sequence[int]], members: Mapping[int, Member | None]) -> bool:
    """`rows`: by row of the mesh, the processes that have its devices, in ascending order."""
    for row in rows:
        hosts = [members[process] for process in row]
        first = hosts[0]
        if len(row) == 1:
            if first is None or first.world_size == 1:
                continue
            others = [one for process, one in members.items() if process != row[0]]
            if not first.is_declared or any(one is not None and one.job == first.job for one in others):
                return False
        elif any(hosts):
            job = None if first is None else first.job
            if hosts != [Member(job, rank, len(row), is_declared=False) for rank in range(len(row))]:
                return False
    return True


def _rows(mesh: Mesh, stage_axis: str) -> list[list[int]]:
    rows = np.moveaxis(mesh.devices, mesh.axis_names.index(stage_axis), 0)
    return [sorted({device.process_index for device in row.flat}) for row in rows]


def _declared() -> Sequence[str]:
    open_one = session.current()
    return () if open_one is None else open_one.settings.axis_name


def _stages_text(process: int, rows: Sequence[Sequence[int]]) -> str:
    own = [str(number) for number, row in enumerate(rows) if process in row]
    return f"row{'s' if len(own) > 1 else ''} {', '.join(own)}"


def _exchanged(mesh: Mesh, own: Member | None) -> dict[int, Member | None]:
    """By process of the mesh. All of them call this."""
    text = json.dumps(own).encode().ljust(_TEXT_BYTES)
    words = np.frombuffer(text, np.int32)[np.newaxis]
    devices = Mesh(mesh.devices.reshape(-1), ("device",))
    by_device = NamedSharding(devices, PartitionSpec("device"))
    pieces = [jax.device_put(words, device) for device in by_device.addressable_devices]
    array = jax.make_array_from_single_device_arrays((devices.size, words.size), by_device, pieces, dtype=words.dtype)
    everywhere = NamedSharding(devices, PartitionSpec())
    # All devices are waited for, or what they do next would meet this on other processes' ones.
    gathered = jax.block_until_ready(jax.jit(lambda given: given, out_shardings=everywhere)(array))
    texts: Any = np.asarray(gathered.addressable_data(0))
    members: dict[int, Member | None] = {}
    for device, words in zip(devices.devices.flat, texts, strict=True):
        fields = json.loads(words.tobytes())
        members[device.process_index] = None if fields is None else Member(*fields)
    return members
