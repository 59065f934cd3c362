"""The switch process: the control plane, and the data plane that it drives."""

import asyncio
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from jax_passing.config import SWITCH_PREFIX, Address, Gbit, Peer, address_text
from jax_passing.errors import ConfigError
from jax_passing.protocol.control_messages import RELAY_LINE_BYTES_MAX
from jax_passing.protocol.packet import LANES_MAX, PORT
from jax_passing.settings_parser import Sources, as_type, convert, gather, integer, one_of, parsed
from jax_passing.switch.control_plane import ControlPlane
from jax_passing.switch.data_plane import DataPlane
from jax_passing.switch.data_planes.bmv2 import Bmv2
from jax_passing.switch.data_planes.device import read_device
from jax_passing.switch.data_planes.ebpf import EbpfDataPlane
from jax_passing.switch.data_planes.p4 import P4DataPlane
from jax_passing.switch.data_planes.pipeline import PipelineError
from jax_passing.switch.data_planes.software import SoftwareDataPlane
from jax_passing.switch.data_planes.tofino import TofinoDataPlane

log = logging.getLogger("jax_passing.switch")

BACKLOG = 256
DATA_PLANES = ("software", "ebpf", "bmv2", "p4runtime")


def _power_of_two(value: Any) -> int:
    number: int = as_type(value, int)
    if number < 1 or number & (number - 1):
        raise ValueError
    return number


@dataclass(frozen=True)
class SwitchSettings:
    """`listen`: port 0 takes any free one. `lease_s`: a host that is silent for so long is lost. `link_gbit`: rate of
    the one link that this switch stands behind; None: it has a port for each host. `multicast`: results go that way
    where all hosts of a job hear it. `data_plane`: what adds up packets; `device`: for ebpf the network devices
    behind which the hosts are, comma-separated, else the file that describes the device (docs/data_planes.md).
    `parent`: the switch one level up, where the sums of this one are added to others'; None at the root."""

    listen: Address = ("0.0.0.0", PORT)
    slot_total: Annotated[int, integer(1, 1 << 16)] = 16384  # 16 bits on the wire
    slots_per_job: Annotated[int, parsed(_power_of_two, "a power of two")] = 1024
    lanes_per_chunk: Annotated[int, integer(3, LANES_MAX)] = LANES_MAX  # an int64 takes three
    lease_s: Annotated[float, Meta(ge=0.1, le=86400, description="seconds, from 0.1 to 86400")] = 30.0
    link_gbit: Gbit | None = None
    multicast: Annotated[bool, Meta(description="true or false")] = True
    data_plane: Annotated[str, one_of(DATA_PLANES)] = "software"
    device: Annotated[str, Meta(description="text")] | None = None
    parent: Peer | None = None


_OF_THE_PROGRAM = ("slot_total", "lanes_per_chunk", "multicast")
# A port's capture ring holds some 30 frames, of any length: no more than this many chunks of a host are in flight.
BMV2_SLOTS_PER_JOB = 32


_SOURCES = Sources(SWITCH_PREFIX, argument=lambda name: f"--{name.replace('_', '-')}")


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


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket on the first address that `host` stands for: packets and connections need the same one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"Can't listen on {host}:{port}: {error}. Is another switch running there?") from error


def _software(host: str, port: int, settings: SwitchSettings) -> SoftwareDataPlane:
    """On the control plane's port number if it is free for UDP too: one number to open in firewalls."""
    software = partial(
        SoftwareDataPlane,
        slot_total=settings.slot_total,
        lanes_per_chunk=settings.lanes_per_chunk,
        multicast=settings.multicast,
    )
    try:
        return software(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        data_plane = software(host, 0)
        log.warning("UDP port %d is taken; packets go to %d", port, data_plane.port)
        return data_plane


def _make_data_plane(host: str, port: int, settings: SwitchSettings) -> DataPlane:
    if settings.data_plane == "software":
        return _software(host, port, settings)
    assert settings.device is not None
    if settings.data_plane == "ebpf":
        try:
            return EbpfDataPlane(
                host,
                port,
                settings.device.split(","),
                slot_total=settings.slot_total,
                lanes_per_chunk=settings.lanes_per_chunk,
                multicast=settings.multicast,
            )
        except OSError as error:
            raise ConfigError(f"Can't take UDP port {port} of {host}: {error}. Is another switch there?") from error
    device = read_device(settings.device)
    try:
        if settings.data_plane == "bmv2":
            return P4DataPlane(device, Bmv2(device.runtime_address))
        from jax_passing.switch.data_planes.p4runtime import P4Runtime  # loads grpc

        pipeline = P4Runtime(device)
        return (TofinoDataPlane if pipeline.has_table("admission") else P4DataPlane)(device, pipeline)
    except PipelineError as error:
        raise ConfigError(f"Can't serve the device of {settings.device}: {error}.") from error


async def serve(
    settings: SwitchSettings,
    stop: asyncio.Event,
    on_listening: Callable[[str], None],
) -> dict[str, int]:
    """Serves until `stop` is set; returns counters. Calls `on_listening` with "host:port" once hosts may come."""
    with _listen(*settings.listen) as listener:
        host, port = listener.getsockname()[:2]
        data_plane = _make_data_plane(host, port, settings)
        try:
            plane = ControlPlane(
                data_plane,
                lease_s=settings.lease_s,
                slots_per_job=settings.slots_per_job,
                link_gbit=settings.link_gbit,
                parent=settings.parent,
            )
            server = await asyncio.start_server(plane.serve, sock=listener, limit=RELAY_LINE_BYTES_MAX)
            watcher = asyncio.create_task(plane.watch())
            on_listening(address_text(host, port))
            await asyncio.wait([watcher, stopped := asyncio.create_task(stop.wait())], return_when="FIRST_COMPLETED")
            server.close()
            await plane.shut_down()
            for task in (watcher, stopped):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            return {**plane.stats(), **data_plane.stats()}
        finally:
            data_plane.close()


def run(settings: SwitchSettings) -> None:
    """Serves until SIGTERM or SIGINT. Prints where it listens first, and counters last."""

    async def until_signal() -> dict[str, int]:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await serve(settings, stop, lambda address: print(f"listening on {address}", flush=True))

    counters = asyncio.run(until_signal())
    print(
        "shut down: " + (", ".join(f"{name} {count}" for name, count in counters.items() if count) or "idle"),
        flush=True,
    )
