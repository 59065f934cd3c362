"""The description of a sum that this process's handlers read: one text for each call of a compiled program."""

from dataclasses import dataclass, fields
from typing import Any

ANY_WORLD_SIZE = 0  # the session is elastic; xla_ffi/ffi/sum_spec.h has the same number
ANY_DEVICE = -1  # in place of a GPU's number; xla_ffi/ffi/cuda_sums.h has the same


@dataclass(frozen=True)
class SumSpec:
    """A sum over the hosts, or a visit: the call beside a loop or branch that counts executions.

    The attributes stand in the text in this order, which xla_ffi/ffi/sum_spec.cc expects. Those from `on_gpu` on, like
    `ordinal` and `site`, mean nothing to other hosts.

    Attributes:
      ordinal: tells this process's modules of one program apart.
      program: name of the module, and count of devices.
      site: which psum of the module it is; orders sums that look alike.
      identity: what the program says about this sum, as JSON without line breaks; empty: this is a visit.
      site_name: the name for people.
      dtype: the elements' type; a complex number is two elements.
      op: "sum" or "max".
      wire: how floats travel: one of WIRES in config.py; "full" for other dtypes.
      leaf_elements: how many each leaf has.
      member_count: devices that are added up, over all hosts; with any world size, of each host.
      local_member_count: how many of these are in this process.
      replica_count: devices of this process that make the same call for one member.
      world_size: ranks at the switch that the program is compiled for, or ANY_WORLD_SIZE.
      flat: each device is a rank, not each host.
      conditional: it lies in a loop or branch, which not every execution may come to.
      devices: those of a mesh that spans processes; empty: this process's, which are known when they meet.
      on_gpu: the program runs on GPUs.
      overlap_group: the first of the sums that may be under way together, as their program has them in one call: its
        `site`. XLA may call them in any order. It is for GPUs: on CPU XLA calls sums when they may start.
      slice_elements: not 0: this host's members add up their elements before they come, and each comes with a slice of
        so many elements.
      residuals: its calls bring arrays for the leaves' residuals, too.
      gpus: the numbers of the mesh's devices: ids where it spans processes, else indices among this process's;
        ANY_DEVICE stands for every device.
      gpu_groups, gpu_members, gpu_slices: the group, the member and the slice of each of `gpus`.
    """

    ordinal: int
    program: str
    site: int = 0
    identity: str = ""
    site_name: str = ""
    dtype: str = "float32"
    op: str = "sum"
    wire: str = "full"
    leaf_elements: tuple[int, ...] = ()
    member_count: int = 1
    local_member_count: int = 1
    replica_count: int = 1
    world_size: int = 1
    flat: bool = False
    conditional: bool = False
    devices: str = ""
    on_gpu: bool = False
    overlap_group: int = 0
    slice_elements: int = 0
    residuals: bool = False
    gpus: tuple[int, ...] = ()
    gpu_groups: tuple[int, ...] = ()
    gpu_members: tuple[int, ...] = ()
    gpu_slices: tuple[int, ...] = ()

    def encode(self) -> str:
        """Lines "name=value"."""
        return "".join(f"{field.name}={_text(getattr(self, field.name))}\n" for field in fields(self))


def _text(value: Any) -> str:
    if isinstance(value, str):
        assert "\n" not in value, value
        return value
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(int(value))


def values_of(text: str) -> dict[str, str]:
    """The values of an encoded spec, by name."""
    return dict(line.split("=", 1) for line in text.split("\n") if line)


def beginning(program: str, ordinal: int) -> str:
    """Returns how the encoded spec of every sum of a module begins."""
    return "".join(SumSpec(ordinal, program).encode().splitlines(keepends=True)[:2])
