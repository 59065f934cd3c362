"""Settings: arguments over JAX_PASSING_* variables over a TOML file, each checked and traced to its source."""

import difflib
import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jax_passing import job_names
from jax_passing.errors import ConfigError

PREFIX = "JAX_PASSING_"
RANKS_MAX = 1024  # of a job, over all switches of a tree
SHARDS_MAX = 64  # one on every host
DEVICES_SUFFIX = "/devices"  # of the job that devices join beside their hosts' one (host/ranks.py)
STRATEGIES = ("passing", "flat", "native", "auto")
AXIS_NAMES_CHARACTERS_MAX = 256  # with their commas: they travel in a join


@dataclass(frozen=True)
class Settings:
    """What a session needs to know. `switch` is None for a single host."""

    switch: tuple[tuple[str, int], ...] | None = None
    """One, or several over which the job is striped: in the same order on all hosts."""
    job: str | None = None
    """Name that the hosts of one run share; None without a switch."""
    rank: int = 0
    world_size: int = 1
    deadline_s: float = 60.0
    """A sum, and the wait for the other ranks at shutdown, fails after this time."""
    warn_s: float = 5.0
    """A sum that takes longer is reported in the log."""
    join_deadline_s: float = 60.0
    """How long to wait for the switch and the other ranks to appear."""
    strategy: str = "passing"
    """How sums are carried out that don't say: one of STRATEGIES."""
    link_gbit: float | None = None
    """Rate of this host's link, for `auto`; None: as the network card says."""
    axis_name: tuple[str, ...] = ()
    """Axes of local meshes, pmap or vmap that go on over the hosts."""


def parse_address(text: str) -> tuple[str, int]:
    """Splits "host:port" or "[v6]:port". Raises ValueError."""
    host, colon, port = str(text).strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    named = re.fullmatch(r"[\w.%:-]+", host) is not None  # a name, IPv4, or IPv6 with its interface
    if not colon or not named or not _may_resolve(host) or not port.isdecimal() or int(port) > 65535:
        raise ValueError("expected HOST:PORT, for example 10.0.0.1:7171")
    return host, int(port)


def parse_peer(text: str) -> tuple[str, int]:
    """The same for an address that others connect to as it stands: port 0 is none. Raises ValueError."""
    address = parse_address(text)
    if address[1] == 0:
        raise ValueError("expected a port from 1 to 65535")
    return address


def _may_resolve(host: str) -> bool:
    """What isn't so, for example "a..b", makes the resolver raise UnicodeError, not OSError."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def unicast_address(host: str) -> str:
    """The same, if it is the IP address of one machine: to ask DNS would stop everything else in an event loop.

    Raises:
      ValueError: it is a name, or packets to it would go to many.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{host[:80]!r} is no IP address") from None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    plain = mapped or address
    if plain.is_multicast or plain.is_unspecified or plain == ipaddress.IPv4Address("255.255.255.255"):
        raise ValueError(f"{host} isn't the IP address of one machine")
    return host


def address_text(host: str, port: int) -> str:
    """What parse_address splits."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_switches(text: str) -> tuple[tuple[str, int], ...]:
    """Splits "host:port,host:port". Raises ValueError."""
    items = str(text).split(",")
    addresses: list[tuple[str, int]] = []
    for item in items:
        try:
            address = parse_address(item)
        except ValueError as error:
            raise ValueError(f"{error}, or several of them with commas; got {item.strip()!r}") from error
        if address[1] == 0:
            raise ValueError(f"expected a port from 1 to 65535; got {item.strip()!r}")
        if address in addresses:
            raise ValueError(f"expected each switch once; {item.strip()} is there twice")
        addresses.append(address)
    if len(addresses) > SHARDS_MAX:
        raise ValueError(f"expected at most {SHARDS_MAX} switches; got {len(addresses)}")
    return tuple(addresses)


def _job(value: Any) -> str:
    name = "" if isinstance(value, dict | list) else str(value)  # TOML's tables and arrays are no names
    if not 1 <= len(name) <= 128 or not name.isprintable():
        raise ValueError("expected a name of 1 to 128 printable characters")
    if name.endswith(DEVICES_SUFFIX):
        raise ValueError(f"expected another name: with {DEVICES_SUFFIX!r} at its end it is the devices' of a job")
    return name


def axis_names(value: Any) -> tuple[str, ...]:
    """Names from "d,i" or ("d", "i"). Raises ValueError."""
    names = tuple(item.strip() for item in value.split(",")) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("expected the name of an axis, or several of them")
    for name in names:
        if not name or not name.isprintable() or "," in name or name != name.strip():
            raise ValueError(f"expected names of printable characters without commas; got {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"expected each axis once; {name!r} is there twice")
    if len(",".join(names)) > AXIS_NAMES_CHARACTERS_MAX:
        raise ValueError(f"expected at most {AXIS_NAMES_CHARACTERS_MAX} characters, commas between names included")
    return tuple(names)


def _integer(lowest: int, highest: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        # operator.index would be stricter, but variables are text.
        number = int(str(value)) if not isinstance(value, bool) else lowest - 1
        if not lowest <= number <= highest:
            raise ValueError(f"expected an integer from {lowest} to {highest}")
        return number

    return parse


def _seconds(value: Any) -> float:
    seconds = _number(value)
    if not 0 < seconds <= 86400:
        raise ValueError("expected seconds, above 0 and at most 86400")
    return seconds


def _number(value: Any) -> float:
    """NaN if it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan


def strategy(value: Any) -> str:
    """The name of a strategy. Raises ValueError."""
    if value not in STRATEGIES:
        raise ValueError(f"expected one of {', '.join(STRATEGIES)}")
    return str(value)


def gbit(value: Any) -> float:
    """A link's rate. Raises ValueError."""
    rate = _number(value)
    if not 0 < rate <= 1e5:
        raise ValueError("expected Gbit/s, above 0 and at most 100000")
    return rate


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "switch": parse_switches,
    "job": _job,
    "rank": _integer(0, RANKS_MAX - 1),
    "world_size": _integer(1, RANKS_MAX),
    "deadline_s": _seconds,
    "warn_s": _seconds,
    "join_deadline_s": _seconds,
    "strategy": strategy,
    "link_gbit": gbit,
    "axis_name": axis_names,
}
assert set(_PARSERS) == {field.name for field in fields(Settings)}


def read_toml(path: str | Path, source: str) -> dict[str, Any]:
    """Reads a TOML file. Raises ConfigError that names `source`, where the path came from."""
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"Can't read the settings file {path} ({source}): {error}.") from error


def did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"Did you mean {close[0]}?" if close else f"Known are {', '.join(known)}."


def _collect(
    arguments: Mapping[str, Any], environment: Mapping[str, str], config: str | Path | None
) -> dict[str, tuple[Any, str]]:
    """Raw values with their sources, the strongest source of each."""
    values: dict[str, tuple[Any, str]] = {}
    path, source = config, "argument config"
    if path is None and environment.get(PREFIX + "CONFIG"):
        path, source = environment[PREFIX + "CONFIG"], PREFIX + "CONFIG"
    if path is not None:
        for key, value in read_toml(path, source).items():
            if key not in _PARSERS:
                raise ConfigError(f"Unknown setting {key!r} in {path}. {did_you_mean(key, list(_PARSERS))}")
            values[key] = value, f"file {path}"
    variables = {PREFIX + key.upper(): key for key in _PARSERS}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or variable == PREFIX + "CONFIG" or text == "":
            continue
        if variable not in variables:
            raise ConfigError(f"Unknown variable {variable}. {did_you_mean(variable, [*variables, PREFIX + 'CONFIG'])}")
        values[variables[variable]] = text, f"variable {variable}"
    for key, value in arguments.items():
        if key not in _PARSERS:
            raise ConfigError(f"Unknown argument {key!r}. {did_you_mean(key, list(_PARSERS))}")
        if value is not None:
            values[key] = value, f"argument {key}"
    return values


def _parse(key: str, value: Any, source: str) -> Any:
    """Raises ConfigError."""
    try:
        return _PARSERS[key](value)
    except (TypeError, ValueError) as error:
        reason = str(error) if str(error).startswith("expected") else "it has the wrong type"
        raise ConfigError(f"Bad value {value!r} of {key} ({source}): {reason}.") from error


def _no_process() -> tuple[int, int, str] | None:
    return None


def resolve(
    arguments: Mapping[str, Any],
    config: str | Path | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    process_in_cluster: Callable[[], tuple[int, int, str] | None] = _no_process,
) -> tuple[Settings, dict[str, str]]:
    """Resolves all settings and where each came from.

    Args:
      arguments: settings by name; None means "not given".
      config: path of a TOML file; its keys are the settings' names.
      environment: variables.
      process_in_cluster: asked when rank or world size are given nowhere; returns (rank, world size, who said so).

    Raises:
      ConfigError: naming the setting and its source.
    """
    resolved: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, (value, source) in _collect(arguments, environment, config).items():
        resolved[key], sources[key] = _parse(key, value, source), source
    if "rank" not in resolved or "world_size" not in resolved:
        found = process_in_cluster()
        if found is not None:
            for key, value in (("rank", found[0]), ("world_size", found[1])):
                if key not in resolved:
                    resolved[key], sources[key] = value, found[2]
    if "job" not in resolved and (name := job_names.found(environment, resolved.get("rank", 0))) is not None:
        resolved["job"], sources["job"] = _parse("job", *name), name[1]
    settings = Settings(**resolved)
    _check(settings, sources)
    return settings, {field.name: sources.get(field.name, "default") for field in fields(Settings)}


def _check(settings: Settings, sources: Mapping[str, str]) -> None:
    """Settings that make no sense together."""
    if settings.switch is not None:
        missing = [key for key in ("rank", "world_size") if key not in sources]
        if missing:
            names = " and ".join(PREFIX + key.upper() for key in missing)
            raise ConfigError(
                f"A switch is configured ({sources['switch']}), but {' and '.join(missing)} given nowhere: no launcher "
                f"that jax.distributed knows was found. Start the script with `jax-passing run`, or set {names}."
            )
        if settings.job is None:
            raise ConfigError(
                f"A switch is configured ({sources['switch']}), but job given nowhere: no launcher that tells all "
                f"hosts the id of their run was found. Write jax_passing.init(job='NAME') or set {PREFIX}JOB=NAME: the "
                "same name on all hosts of this run, another one for every other run, or they would sum up each "
                "other's numbers."
            )
    elif settings.world_size > 1:
        raise ConfigError(
            f"A world of {settings.world_size} ranks ({sources['world_size']}) needs a switch. Start one with "
            f"`jax-passing switch --listen HOST:PORT` and set {PREFIX}SWITCH=HOST:PORT, or use `jax-passing run`."
        )
    if settings.world_size > RANKS_MAX:
        raise ConfigError(
            f"World size {settings.world_size} ({sources['world_size']}): a job has at most {RANKS_MAX} ranks."
        )
    if not 0 <= settings.rank < settings.world_size:
        raise ConfigError(
            f"Rank {settings.rank} ({sources.get('rank', 'default')}) isn't below the world size "
            f"{settings.world_size} ({sources.get('world_size', 'default')}). Ranks count from 0."
        )
