"""Works out which devices of a mesh add up, and which of them belong to this process. Pure."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jax_passing.errors import ConfigError


@dataclass(frozen=True)
class Placement:
    """One process's part in the sums of one psum. A *group* of devices is summed apart from the other groups.

    Attributes:
      member_count: parts that a group adds up, in all processes of the mesh.
      local_member_count: of these, in this process.
      replica_count: devices of this process that hold the same part of the same group.
      local: every process that holds any of a group's parts holds them all.
      process_count: processes of the mesh.
    """

    member_count: int
    local_member_count: int
    replica_count: int
    local: bool
    process_count: int


def place(
    processes: np.ndarray,
    axis_sizes: Mapping[Hashable, int],
    manual_axes: frozenset[Hashable],
    axes: Sequence[Hashable],
    process: int,
) -> Placement:
    """Returns the part of `process` in a psum over `axes`.

    Args:
      processes: int[device], the process of each of the mesh's devices in row-major order.
      axis_sizes: the mesh's axes in order. Without any, all devices run the same.
      manual_axes: the axes that are visible to the program; devices along the others are replicas.
      axes: manual axes to sum over.
      process: this one.

    Raises:
      ConfigError: the sum would add up some processes of the mesh but not all, or unequally. Alike in every process.
    """
    names = list(axis_sizes)
    order = [a for a in names if a in manual_axes and a not in axes] + list(axes)
    order += [a for a in names if a not in manual_axes]
    members = int(np.prod([axis_sizes[a] for a in axes], dtype=int))
    groups = int(np.prod([axis_sizes[a] for a in names if a in manual_axes and a not in axes], dtype=int))
    by_axis = processes.reshape(tuple(axis_sizes.values()) or (-1,))
    if names:
        by_axis = by_axis.transpose([names.index(a) for a in order])
    table = by_axis.reshape(groups, members, -1)  # process of (group, member, replica)

    everyone = sorted(set(table.ravel().tolist()))
    counts = {p: (table == p).sum(axis=2) for p in everyone}  # replicas in process p of (group, member)
    parts: dict[int, tuple[int, int]] = {}
    kinds = set()
    for p, count in counts.items():
        shares = {(int((row > 0).sum()), int(row.max())) for row in count if row.any()}
        regular = len(shares) == 1 and all(set(row[row > 0].tolist()) == {row.max()} for row in count if row.any())
        if not regular:
            raise _error(axes, "gives its processes unequal parts")
        parts[p] = shares.pop()
    for group in range(groups):
        present = [p for p in everyone if counts[p][group].any()]
        if all(counts[p][group].all() for p in present):
            kinds.add("local")
        elif len(present) == len(everyone) and all(
            sum(counts[p][group, m] > 0 for p in present) == 1 for m in range(members)
        ):
            kinds.add("across")
        else:
            raise _error(axes, f"adds up processes {present} of {everyone}")
    if len(kinds) != 1:
        raise _error(axes, "adds up all processes for some of its parts and none for others")
    local_member_count, replica_count = parts[process]
    return Placement(members, local_member_count, replica_count, kinds == {"local"}, len(everyone))


def _error(axes: Sequence[Hashable], what: str) -> ConfigError:
    return ConfigError(
        f"psum over {tuple(axes)} {what}; jax_passing sums over all processes of the mesh or within each of them: "
        "use jax.lax.psum for this one"
    )
