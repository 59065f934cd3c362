"""The settings of a switch: arguments over variables over a TOML file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from jax_passing.config import SWITCH_PREFIX, Address, Gbit, Peer
from jax_passing.errors import ConfigError
from jax_passing.protocol.packet import LANES_MAX, PORT
from jax_passing.settings_parser import Sources, as_type, convert, gather, integer, one_of, parsed
from jax_passing.switch.quotas import CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS
from jax_passing.switch.slot_partition import is_power_of_two

DATA_PLANES = ("software", "ebpf", "bmv2", "p4runtime")
# A port's capture ring holds some 30 frames, of any length: no more than this many chunks of a host are in flight.
BMV2_SLOTS_PER_JOB = 32

_OF_THE_PROGRAM = ("slot_total", "lanes_per_chunk", "multicast")
_SOURCES = Sources(SWITCH_PREFIX, argument=lambda name: f"--{name.replace('_', '-')}")


def _power_of_two(value: Any) -> int:
    number: int = as_type(value, int)
    if not is_power_of_two(number):
        raise ValueError
    return number


@dataclass(frozen=True)
class SwitchSettings:
    """`listen`: port 0 takes any free one. `lease_s`: a host that is silent for so long is lost. `slots_per_address`:
    in all for the jobs that have a member there; None: half of the switch's. `connections_per_address`: at once.
    `link_gbit`: rate of the one link that this switch stands behind; None: it has a port for each host. `multicast`:
    results go that way where all hosts of a job hear it. `data_plane`: what adds up packets; `device`: for ebpf the
    network devices behind which the hosts are, comma-separated, else the file that describes the device
    (docs/data_planes.md). `parent`: the switch one level up, where the sums of this one are added to others'; None at
    the root. `key_file`: whoever joins must have its job's key, which is derived from the key in this file; the same in
    all switches of a tree. None: anybody may join."""

    listen: Address = ("0.0.0.0", PORT)
    slot_total: Annotated[int, integer(1, 1 << 16)] = 16384  # 16 bits on the wire
    slots_per_job: Annotated[int, parsed(_power_of_two, "a power of two")] = 1024
    lanes_per_chunk: Annotated[int, integer(3, LANES_MAX)] = LANES_MAX  # an int64 takes three
    lease_s: Annotated[float, Meta(ge=0.1, le=86400, description="seconds, from 0.1 to 86400")] = 30.0
    slots_per_address: Annotated[int, integer(1, 1 << 16)] | None = None
    connections_per_address: Annotated[int, integer(1, CONNECTIONS_MAX)] = CONNECTIONS_PER_ADDRESS
    link_gbit: Gbit | None = None
    multicast: Annotated[bool, Meta(description="true or false")] = True
    data_plane: Annotated[str, one_of(DATA_PLANES)] = "software"
    device: Annotated[str, Meta(description="text")] | None = None
    parent: Peer | None = None
    key_file: Annotated[Path, parsed(Path, "the name of a file")] | None = None


def resolve(
    arguments: Mapping[str, Any], config: str | Path | None, *, environment: Mapping[str, str] = os.environ
) -> SwitchSettings:
    """Arguments (None: not given) over variables over the TOML file. Raises ConfigError that names the setting and its
    source."""
    given = gather(SwitchSettings, _SOURCES, arguments, config, environment)
    resolved = convert(SwitchSettings, given)
    sources = {key: one.source for key, one in given.items()}
    _check_device(resolved, sources)
    settings = SwitchSettings(**resolved)
    if settings.slots_per_job > settings.slot_total:
        per_job, total = (
            f"{key} ({value}, {sources.get(key, 'default')})"
            for key, value in (("slots_per_job", settings.slots_per_job), ("slot_total", settings.slot_total))
        )
        raise ConfigError(f"{per_job} is above {total}.")
    if settings.slots_per_address is not None and settings.slots_per_address < settings.slots_per_job:
        raise ConfigError(
            f"slots_per_address ({settings.slots_per_address}, {sources['slots_per_address']}) is below slots_per_job "
            f"({settings.slots_per_job}, {sources.get('slots_per_job', 'default')}): no job could start."
        )
    return settings


def _check_device(resolved: dict[str, Any], sources: Mapping[str, str]) -> None:
    data_plane = resolved.get("data_plane", "software")
    if data_plane == "software":
        if "device" in resolved:
            others = ", ".join(DATA_PLANES[1:-1]) + " or " + DATA_PLANES[-1]
            raise ConfigError(
                f"The software data plane has no device: leave it out ({sources['device']}), or add --data-plane "
                f"{others}."
            )
        return
    chosen = f"Data plane {data_plane} ({sources['data_plane']})"
    if data_plane == "ebpf":
        if "device" not in resolved:
            raise ConfigError(f"{chosen} needs --device: the network devices behind which the hosts are.")
        if "parent" in resolved:
            raise ConfigError(f"{chosen} has no parent ({sources['parent']}): in a tree it can be the root only.")
        return
    if "device" not in resolved:
        raise ConfigError(f"{chosen} needs --device DEVICE.toml (docs/data_planes.md).")
    fixed = [f"{key} ({sources[key]})" for key in _OF_THE_PROGRAM if key in resolved]
    if fixed:
        raise ConfigError(f"{' and '.join(fixed)}: fixed by the program that the device runs. Leave it out.")
    if data_plane == "bmv2":
        resolved.setdefault("slots_per_job", BMV2_SLOTS_PER_JOB)
