"""A switch has its settings from arguments over variables over a TOML file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from jax_passing.config import LEASE_S, SWITCH_PREFIX, Address, Gbit, LeaseSeconds, Local, Peer
from jax_passing.errors import ConfigError
from jax_passing.protocol.packet import LANES_AT_MTU_1500, LANES_MAX, PORT
from jax_passing.settings_parser import Sources, convert, gather, integer, one_of, parsed, power_of_two
from jax_passing.switch.jobs.quotas import CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS
from jax_passing.threads import Threads

DATA_PLANES = ("software", "ebpf", "bmv2", "p4runtime")
# A port's capture ring holds 32 frames of any length. So many chunks of a host in flight leave room for ARP, IPv6 and
# what the host says to others.
BMV2_SLOTS_PER_JOB = 16

_OF_THE_PROGRAM = ("slot_total", "lanes_per_chunk", "multicast")
_SOURCES = Sources(SWITCH_PREFIX, argument=lambda name: f"--{name.replace('_', '-')}")


@dataclass(frozen=True)
class SwitchSettings:
    """A switch needs to know these. `jax-passing switch --help` says the same in short."""

    listen: Address = ("0.0.0.0", PORT)
    """Where it listens. Port 0 takes any that is free."""
    slot_total: Annotated[int, integer(1, 1 << 16)] = 16384  # 16 bits on the wire
    slots_per_job: Annotated[int, parsed(power_of_two, "a power of two")] = 1024
    lanes_per_chunk: Annotated[int, integer(3, LANES_MAX)] = LANES_AT_MTU_1500  # an int64 takes three
    lease_s: LeaseSeconds = LEASE_S
    """A host that is silent for so long is lost, if its session hasn't a shorter lease."""
    slots_per_address: Annotated[int, integer(1, 1 << 16)] | None = None
    """How many slots the jobs with a member at one address may have together; None: half of the switch's."""
    connections_per_address: Annotated[int, integer(1, CONNECTIONS_MAX)] = CONNECTIONS_PER_ADDRESS
    """How many connections one address may have at once."""
    link_gbit: Gbit | None = None
    """The rate of the one link behind which the switch stands; None: it has a port for each host."""
    multicast: Annotated[bool, Meta(description="true or false")] = True
    """Whether results go by multicast if all hosts of a job hear that."""
    data_plane: Annotated[str, one_of(DATA_PLANES)] = "software"
    """What adds up packets."""
    device: Annotated[str, Meta(description="text")] | None = None
    """Where the data plane runs: for ebpf the network devices behind which the hosts are, separated by commas,
    otherwise the file that describes the device (docs/data_planes/overview.md)."""
    parent: Peer | None = None
    """The switch one level up, which adds the sums of this one to those of others; None: this one is the root."""
    threads: Threads | None = None
    """The threads that add up packets, each at a port of its own: that of `listen`, and those that follow; None:
    `default_threads`."""
    key_file: Annotated[Path, parsed(Path, "the name of a file")] | None = None
    """Hosts must have their job's key, which is derived from the key in this file. All switches of a tree have
    the same one. None: anybody may join."""
    metrics: Local | None = None
    """Where the switch tells its metrics, and whether it admits jobs, by HTTP; None: nowhere."""
    page: Local | None = None
    """Where a web page shows what the switch and its jobs are doing; None: nowhere."""


def resolve(
    arguments: Mapping[str, Any], config: str | Path | None, *, environment: Mapping[str, str] = os.environ
) -> SwitchSettings:
    """Settles the settings: an argument counts more than a variable, and a variable more than the TOML file. An
    argument that is None wasn't given. Raises a ConfigError that names the setting and where it comes from."""
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
    if settings.threads is not None and settings.threads > settings.slots_per_job:
        raise ConfigError(
            f"threads ({settings.threads}, {sources['threads']}) is above slots_per_job ({settings.slots_per_job}, "
            f"{sources.get('slots_per_job', 'default')}): each thread needs slots of a job."
        )
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
    if resolved.get("threads", 1) != 1:
        raise ConfigError(f"{chosen} has no threads ({sources['threads']}): only the software data plane has.")
    if data_plane == "ebpf":
        if "device" not in resolved:
            raise ConfigError(f"{chosen} needs --device: the network devices behind which the hosts are.")
        if "parent" in resolved:
            raise ConfigError(f"{chosen} has no parent ({sources['parent']}): in a tree it can be the root only.")
        return
    if "device" not in resolved:
        raise ConfigError(f"{chosen} needs --device DEVICE.toml (docs/data_planes/overview.md).")
    fixed = [f"{key} ({sources[key]})" for key in _OF_THE_PROGRAM if key in resolved]
    if fixed:
        raise ConfigError(f"{' and '.join(fixed)}: fixed by the program that the device runs. Leave it out.")
    if data_plane == "bmv2":
        resolved.setdefault("slots_per_job", BMV2_SLOTS_PER_JOB)
