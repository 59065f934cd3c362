"""The description of a sum has a second text for GPUs: which devices of the host add up how."""

from dataclasses import dataclass

from jax_passing.collective.naming.sum_spec import lines

ANY_DEVICE = -1  # in place of a GPU's number; xla_ffi/ffi/cuda/sums.h has the same


@dataclass(frozen=True)
class GpuSpec:
    """The attributes stand in the text in this order, which xla_ffi/ffi/cuda/spec.cc expects.

    Attributes:
      overlap_group: the first of the sums that may be under way together, as their program has them in one call:
        `SumSpec.site` of it. XLA may call them in any order.
      slice_elements: the length of the slice with which each of this host's members comes, if they add up their
        elements before they come; else 0.
      gpus: the numbers of the mesh's devices: ids where it spans processes, else indices among this process's;
        ANY_DEVICE stands for every device.
      groups, members, slices: the group, the member and the slice of each of `gpus`.
    """

    overlap_group: int
    slice_elements: int
    gpus: tuple[int, ...]
    groups: tuple[int, ...]
    members: tuple[int, ...]
    slices: tuple[int, ...]

    def encode(self) -> str:
        return lines(self)
