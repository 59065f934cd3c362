"""The description of a sum that this process's handlers read: one text for each call of a compiled program."""

from dataclasses import dataclass, fields
from typing import Any

from jax_passing.collective.naming.sites import Site

ANY_WORLD_SIZE = 0  # the session is elastic; xla_ffi/host/sums/sum_spec.h has the same number


@dataclass(frozen=True)
class SumSpec:
    """A sum over the hosts, or a visit: the call beside a loop or branch that counts executions.

    The attributes stand in the text in this order, which xla_ffi/host/sums/sum_spec.h expects. `ordinal` and `site`
    mean nothing to other hosts. A second text has what only GPUs need (lowering/gpu/gpu_spec.py).

    Attributes:
      ordinal: tells this process's modules of one program apart.
      program: name of the module, and count of devices.
      site: which psum of the module it is; orders sums that look alike.
      identity: what the program says about this sum, as JSON without line breaks; empty: this is a visit.
      site_name: the name for people.
      dtype: the elements' type; a complex number is two elements.
      leaf_elements: how many each leaf has.
      member_count: devices that are added up, over all hosts; with any world size, of each host.
      local_member_count: how many of these are in this process.
      replica_count: devices of this process that make the same call for one member.
      op: "sum" or "max".
      wire_dtype: how floats travel: one of WIRES in config.py; "full" for other dtypes.
      residuals: its calls bring arrays for the leaves' residuals, too.
      world_size: ranks at the switch that the program is compiled for, or ANY_WORLD_SIZE.
      flat: each device is a rank, not each host.
      conditional: it lies in a loop or branch, which not every execution may come to.
      moves: what a host gives and needs. "all"; "gather": it gives its devices' rows of each leaf, and zeros for the
        others, which it needs; "scatter": it gives all, and needs its devices' rows; "broadcast": as "gather", of one
        row, that of device `root`.
      rows_inside: rows of one host that follow one another, and then those of the next host: a device's number among
        the members of this process doesn't count the hosts; 0: it counts all devices.
      rows_alone: the calls bring (moves "gather") or take (moves "scatter") the devices' own rows instead of leaves.
      early: the sum before it in the program may be under way when its calls come, but on some hosts they may come
        later (lowering/order.py).
      root: whose row it is.
      devices: those of a mesh that spans processes; empty: this process's, which are known when they meet.
    """

    ordinal: int
    program: str
    site: int = 0
    identity: str = ""
    site_name: str = ""
    dtype: str = "float32"
    leaf_elements: tuple[int, ...] = ()
    member_count: int = 1
    local_member_count: int = 1
    replica_count: int = 1
    op: str = "sum"
    wire_dtype: str = "full"
    residuals: bool = False
    world_size: int = 1
    flat: bool = False
    conditional: bool = False
    moves: str = "all"
    rows_inside: int = 0
    rows_alone: bool = False
    early: bool = False
    root: int = 0
    devices: str = ""

    @classmethod
    def of(cls, site: Site, /, **more: Any) -> "SumSpec":
        """Returns the description of a site: the fields that both have, and these."""
        common = {field.name for field in fields(cls)} & {field.name for field in fields(Site)}
        return cls(**{name: getattr(site, name) for name in common} | more)

    def encode(self) -> str:
        return lines(self)


def lines(spec: Any) -> str:
    """Returns the text of a dataclass: lines "name=value"."""
    return "".join(f"{field.name}={_text(getattr(spec, field.name))}\n" for field in fields(spec))


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
