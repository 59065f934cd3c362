"""The switch's process has the control plane's server, and the data plane that it drives."""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from jax_passing.config import address_text
from jax_passing.errors import ConfigError
from jax_passing.protocol import keys
from jax_passing.protocol.alike import version_of
from jax_passing.protocol.packet import LANES_AT_MTU_1500
from jax_passing.switch.data_planes.data_plane import DataPlane
from jax_passing.switch.data_planes.device import read_device
from jax_passing.switch.data_planes.ebpf import EbpfDataPlane
from jax_passing.switch.data_planes.p4 import P4DataPlane
from jax_passing.switch.data_planes.pipeline import DeviceError
from jax_passing.switch.data_planes.pipelines.bmv2 import Bmv2
from jax_passing.switch.data_planes.software import SoftwareDataPlane
from jax_passing.switch.data_planes.tofino import TofinoDataPlane
from jax_passing.switch.server.control_server import ControlServer
from jax_passing.switch.server.descriptors import connections_that_fit
from jax_passing.switch.server.log_limit import LogLimit
from jax_passing.switch.server.output import LogHandler, write_line
from jax_passing.switch.server.settings import SwitchSettings
from jax_passing.switch.server.supervisor import Supervisor
from jax_passing.switch.status import page_server
from jax_passing.switch.status.page_server import PageServer
from jax_passing.threads import default_threads

if TYPE_CHECKING:
    from jax_passing.switch.status.metrics_server import MetricsServer

log = logging.getLogger("jax_passing.switch")

BACKLOG = 256
LOG_PERIOD_S = 1.0
ANY_PORT_TRIES = 16
_LISTEN_ADVICE = {
    errno.EADDRINUSE: "Is another switch running there?",
    errno.EACCES: "Ports below 1024 need root, or CAP_NET_BIND_SERVICE: choose another one.",
}


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket on the first address that `host` stands for: packets and connections need the same
    one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
    except socket.gaierror as error:
        unknown = f"the name {host!r} can't be resolved: {error.strerror}"
        raise ConfigError(f"Can't listen on {host}:{port}: {unknown}. Give an address of this machine.") from error
    except OSError as error:
        number = error.errno or 0
        advice = _LISTEN_ADVICE.get(number, "Give an address of this machine.")
        raise ConfigError(f"Can't listen on {address_text(host, port)}: {os.strerror(number)}. {advice}") from error


def _make_data_plane(host: str, port: int, settings: SwitchSettings) -> DataPlane:
    size = {"slot_total": settings.slot_total, "lanes_per_chunk": settings.lanes_per_chunk}
    if settings.data_plane == "software":
        return _make_software(host, port, settings)
    assert settings.device is not None
    if settings.data_plane == "ebpf":
        return EbpfDataPlane(host, port, settings.device.split(","), **size, multicast=settings.multicast)
    device = read_device(settings.device)
    try:
        if settings.data_plane == "bmv2":
            return P4DataPlane(device, Bmv2(device.runtime_address))
        from jax_passing.switch.data_planes.pipelines.p4runtime import P4Runtime  # loads grpc

        pipeline = P4Runtime(device)
        return (TofinoDataPlane if pipeline.has_table("admission") else P4DataPlane)(device, pipeline)
    except DeviceError as error:
        raise ConfigError(f"Can't serve the device of {settings.device}: {error}.") from error


def _make_software(host: str, port: int, settings: SwitchSettings) -> SoftwareDataPlane:
    """Raises OSError if a port is taken. Unless `threads` are given, fewer will do where others have the next ports."""
    count = wanted = settings.threads or min(default_threads(), settings.slots_per_job)
    problem: OSError | None = None
    while True:
        try:
            made = SoftwareDataPlane(
                host,
                port,
                slot_total=settings.slot_total,
                lanes_per_chunk=settings.lanes_per_chunk,
                multicast=settings.multicast,
                threads=count,
            )
        except OSError as error:
            if count == 1 or settings.threads is not None:
                raise
            problem, count = error, count // 2
        else:
            if problem is not None:
                log.warning(
                    "%d in place of %d threads add up, as not all following ports are free (%s)", count, wanted, problem
                )
            return made


def _open(settings: SwitchSettings) -> tuple[socket.socket, DataPlane]:
    """Returns where hosts connect, and what adds up their packets at the same port number, the only one that firewalls
    have to open. If any port will do, another one is tried where UDP's is taken."""
    host, port = settings.listen
    for tries_left in reversed(range(1 if port else ANY_PORT_TRIES)):
        listener = _listen(host, port)
        own_host, own_port = listener.getsockname()[:2]
        try:
            return listener, _make_data_plane(own_host, own_port, settings)
        except BaseException as error:
            listener.close()
            if not isinstance(error, OSError):
                raise
            if error.errno != errno.EADDRINUSE or not tries_left:
                why = os.strerror(error.errno) if error.errno else error
                ports, follow = f"port {own_port}", ""
                if (count := settings.threads or 1) > 1:
                    ports, follow = f"ports {own_port} to {own_port + count - 1}", " and to those that follow"
                raise ConfigError(
                    f"Can't take UDP {ports} of {own_host}: {why}. Packets go to the port where hosts connect{follow}: "
                    "end what has it, such as a thread of another switch, or give another one (--listen)."
                ) from error
    raise AssertionError


def _banner(settings: SwitchSettings, data_plane: DataPlane, address: str) -> str:
    """Says what is started, in one line."""
    lanes = data_plane.lanes_per_chunk
    parts = [
        f"jax-passing {version_of('jax_passing')}: a switch at {address}",
        f"data plane {settings.data_plane}" + (f" ({settings.device})" if settings.device else ""),
        f"{data_plane.slot_total * data_plane.planes} slots of {min(lanes, LANES_AT_MTU_1500)} lanes, "
        f"{settings.slots_per_job} a job",
        *([f"{data_plane.planes} threads"] if data_plane.planes > 1 else []),
        *([f"up to {lanes} lanes in a packet, where paths carry these"] if lanes > LANES_AT_MTU_1500 else []),
        f"lease {settings.lease_s:g} s",
        f"key from {settings.key_file}" if settings.key_file else "no key: anybody may join",
    ]
    if settings.parent is not None:
        parts.append(f"parent {address_text(*settings.parent)}")
    return "; ".join(parts)


class Running(NamedTuple):
    """A switch runs at `address`, "host:port".

    Attributes:
      counters: tells those so far.
      reload: reads the key file again. Raises ConfigError, and the key stays as it was.
    """

    address: str
    counters: Callable[[], dict[str, int]]
    reload: Callable[[], None]


def _open_metrics(settings: SwitchSettings) -> socket.socket | None:
    """Opens where metrics are told, if anywhere. Raises ConfigError."""
    if settings.metrics is None:
        return None
    from jax_passing.metrics import exposition  # not every switch needs it

    return exposition.listen(settings.metrics)


async def _serve_metrics(listener: socket.socket, server: ControlServer) -> "MetricsServer":
    from jax_passing.switch.status.metrics_server import MetricsServer

    metrics = MetricsServer(server.plane.report)
    await metrics.serve(listener)
    return metrics


async def serve(
    settings: SwitchSettings,
    stop: asyncio.Event,
    on_listening: Callable[[Running], None],
    counts: Counter[str] | None = None,
) -> dict[str, int]:
    """Serves until `stop` is set; returns counters. Calls `on_listening` once hosts may come. `counts`: others'
    counters, which are told with those of the switch."""
    metrics = _open_metrics(settings)
    page_listener = None if settings.page is None else page_server.listen(*settings.page)
    switch_key = keys.read_key(settings.key_file, keys.SWITCH)
    connections_max = connections_that_fit(has_parent=settings.parent is not None)
    listener, data_plane = _open(settings)
    with listener:
        try:
            address = address_text(*listener.getsockname()[:2])
            log.info("%s", _banner(settings, data_plane, address))
            server = ControlServer(data_plane, settings, switch_key, connections_max, counts)
            await server.listen(listener)
            told: list[MetricsServer | PageServer] = [] if metrics is None else [await _serve_metrics(metrics, server)]
            if page_listener is not None and settings.page is not None:
                page = PageServer(server.plane.report, server.plane.history, settings.page[0], address)
                await page.serve(page_listener)
                told.append(page)

            def reload() -> None:
                server.plane.change_key(keys.read_key(settings.key_file, keys.SWITCH))

            on_listening(Running(address, lambda: {**server.stats(), **data_plane.stats()}, reload))
            await stop.wait()
            for each in told:
                each.close()
            await server.shut_down()
            return {**server.stats(), **data_plane.stats()}
        finally:
            data_plane.close()


def run(settings: SwitchSettings) -> None:
    """Serves until SIGTERM, SIGINT, or SIGHUP unless nohup ignores that. Prints where it listens first, counters so far
    at each SIGUSR1, and counters last. Reads its key file again at each SIGUSR2. Tells a supervisor how it is."""

    counts: Counter[str] = Counter()
    limit, supervisor = LogLimit(counts), Supervisor()
    for handler in logging.getLogger().handlers:
        handler.addFilter(limit)
        if isinstance(handler, LogHandler):
            handler.counts = counts

    async def until_signal() -> dict[str, int]:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            supervisor.ends()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, end)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, lambda: None)  # else it is the end, before there is something to tell

        def listening(running: Running) -> None:
            def reload() -> None:
                supervisor.reloads()
                _reload(running)
                supervisor.serves(serves)

            serves = f"listening on {running.address}"
            loop.add_signal_handler(signal.SIGUSR1, lambda: _print_counters("so far", running.counters()))
            loop.add_signal_handler(signal.SIGUSR2, reload)
            _print(serves)
            supervisor.serves(serves)
            if supervisor.beat_s is not None:
                beat(supervisor.beat_s)

        def beat(every_s: float) -> None:
            supervisor.lives()
            loop.call_later(every_s, beat, every_s)

        def tell_of_left_out() -> None:
            limit.tell(time.time())
            loop.call_later(LOG_PERIOD_S, tell_of_left_out)

        tell_of_left_out()
        return await serve(settings, stop, listening, counts)

    counters = asyncio.run(until_signal())
    limit.tell_all()
    _print_counters("shut down", counters)


def _reload(running: Running) -> None:
    try:
        running.reload()
    except ConfigError as error:
        log.error("the key stays as it was: %s", error)
    else:
        log.info("the key was read again; other settings change with a restart")


def _print_counters(when: str, counters: dict[str, int]) -> None:
    _print(f"{when}: " + (", ".join(f"{name} {count}" for name, count in counters.items() if count) or "idle"))


def _print(line: str) -> None:
    if not write_line(sys.stdout, line):
        log.warning("standard output doesn't take this: %s", line)
