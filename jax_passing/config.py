"""Reads a host's settings, and the kinds of values that a switch's settings have too: addresses and rates."""

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from jax_passing import job_names, launchers
from jax_passing.errors import ConfigError
from jax_passing.settings_parser import Given, Sources, convert, gather, integer, one_of, parsed
from jax_passing.threads import Threads

PREFIX = "JAX_PASSING_"
FOR_JAX = PREFIX + "FOR_JAX"  # isn't a setting of a session: it has JAX's own collectives open one
SWITCH_PREFIX = "JAX_PASSING_SWITCH_"  # begins a switch's variables: hosts on the switch's machine ignore these
# All of a switch's variables: any other name with this prefix is a mistyped variable of a host.
_OF_SWITCHES = """config connections_per_address data_plane device key_file lanes_per_chunk lease_s link_gbit listen
metrics multicast page parent slot_total slots_per_address slots_per_job threads"""
SWITCH_SETTINGS = tuple(_OF_SWITCHES.split())
RANKS_MAX = 1024  # in a job, over all switches of a tree
SHARDS_MAX = 64  # in a job: the planes of all its switches
STRATEGIES = ("passing", "flat", "native", "auto")
WIRES = ("full", "int16", "int8", "int4")  # how floats travel: docs/internals/fixed_point.md
RANKS_MAX_OF_WIRE = {"full": RANKS_MAX, "int16": RANKS_MAX, "int8": 127, "int4": 7}  # whose sum has room in the bits
LEASE_S = 30.0
# A lifeline says that a host lives, whatever holds its interpreter (docs/operate/switches.md).
ELASTIC_LEASE_S = 1.0
AXIS_NAMES_CHARACTERS_MAX = 256  # with their commas, the room of a join


def parse_address(text: str) -> tuple[str, int]:
    """Splits "host:port" or "[v6]:port". Raises ValueError."""
    host, colon, port = str(text).strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    named = re.fullmatch(r"[\w.%:-]+", host)  # a name, IPv4, or IPv6 with its interface
    if not colon or named is None or not _may_resolve(host) or not port.isdecimal() or int(port) > 65535:
        raise ValueError("expected HOST:PORT, for example 10.0.0.1:7171")
    return host, int(port)


def parse_local(text: str) -> tuple[str, int]:
    """Splits "host:port"; a port alone is one of this machine for itself. Raises ValueError."""
    text = str(text).strip()
    try:
        return parse_address(f"127.0.0.1:{text}" if text.isdecimal() else text)
    except ValueError:
        raise ValueError("expected PORT, which only this machine reaches, or HOST:PORT") from None


def parse_peer(text: str) -> tuple[str, int]:
    """Splits the address of a peer to connect to, whose port can't be 0. Raises ValueError."""
    address = parse_address(text)
    if address[1] == 0:
        raise ValueError("expected HOST:PORT with a port from 1 to 65535")
    # Python's sockets tell such an address without its interface, so packets to it couldn't be sent.
    if address[0].lower().startswith("fe80:"):
        raise ValueError("expected HOST:PORT with an address that is valid beyond one link, unlike fe80::...")
    return address


def _may_resolve(host: str) -> bool:
    """Tells whether the resolver takes the name: for others, such as "a..b", it raises UnicodeError, not OSError."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def unicast_address(host: str) -> str:
    """Returns `host` if it is the IP address of one machine. Names aren't looked up, as DNS would block an event loop.

    Raises:
      ValueError: it is a name, or packets to it would go to many machines.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{host[:80]!r} isn't an IP address") from None
    plain = (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address
    if plain.is_multicast or plain.is_unspecified or plain == ipaddress.IPv4Address("255.255.255.255"):
        raise ValueError(f"{host} isn't the IP address of one machine")
    return host


def address_text(host: str, port: int) -> str:
    """Writes an address as `parse_address` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_switches(text: str) -> tuple[tuple[str, int], ...]:
    """Splits "host:port,host:port". Raises ValueError."""
    addresses: list[tuple[str, int]] = []
    for item in str(text).split(","):
        try:
            address = parse_peer(item)
        except ValueError as error:
            raise ValueError(f"{error}, or several of them with commas; got {item.strip()!r}") from error
        if address in addresses:
            raise ValueError(f"expected each switch once; {item.strip()} is there twice")
        addresses.append(address)
    if len(addresses) > SHARDS_MAX:
        raise ValueError(f"expected at most {SHARDS_MAX} switches; got {len(addresses)}")
    return tuple(addresses)


def _job(value: Any) -> str:
    name = "" if isinstance(value, dict | list) else str(value)  # TOML's tables and arrays are no names
    job_names.check(name)
    return name


def _file(value: Any) -> Path:
    """Returns the absolute path, so that it stays right if the program changes its folder."""
    return Path(value).absolute()


def axis_names(value: Any) -> tuple[str, ...]:
    """Reads the names of axes from "d,i" or ("d", "i"). Raises ValueError."""
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


Seconds = Annotated[float, Meta(gt=0, le=86400, description="seconds, above 0 and at most 86400")]
LeaseSeconds = Annotated[float, Meta(ge=0.1, le=86400, description="seconds, from 0.1 to 86400")]
Gbit = Annotated[float, Meta(gt=0, le=1e5, description="Gbit/s, above 0 and at most 100000")]
Address = Annotated[tuple[str, int], parsed(parse_address)]
Local = Annotated[tuple[str, int], parsed(parse_local)]
Peer = Annotated[tuple[str, int], parsed(parse_peer)]


@dataclass(frozen=True)
class Settings:
    """Holds the settings of a session. `switch` is None for a single host."""

    switch: Annotated[tuple[tuple[str, int], ...], parsed(parse_switches)] | None = None
    """The switch, or several that share the job's sums, in the same order on all hosts."""
    job: Annotated[str, parsed(_job)] | None = None
    """The name that the hosts of one run share; None without a switch."""
    rank: Annotated[int, integer(0, RANKS_MAX - 1)] = 0
    world_size: Annotated[int, integer(1, RANKS_MAX)] = 1
    deadline_s: Seconds = 60.0
    """A sum, and the wait for the other ranks at shutdown, fails after this time."""
    warn_s: Seconds = 4.0
    """A sum that takes longer is reported in the log."""
    join_deadline_s: Seconds = 60.0
    """How long to wait for the switch and the other ranks to appear."""
    strategy: Annotated[str, one_of(STRATEGIES)] = "passing"  # of sums that name none
    wire_dtype: Annotated[str, one_of(WIRES)] = "full"  # how floats of the sums that don't say so travel
    seed: Annotated[int, integer(0, 2**63 - 1)] = 0
    """The seed of the random rounding of floats that travel as integers of a few bits."""
    link_gbit: Gbit | None = None
    """The rate of this host's link, for `auto`; None: as the network card says."""
    key_file: Annotated[Path, parsed(_file, "the name of a file")] | None = None
    """The file with the job's key, if the switch wants one (docs/operate/switches.md)."""
    hosts_key_file: Annotated[Path, parsed(_file, "the name of a file")] | None = None
    confidential: Annotated[bool, Meta(description="true or false")] | None = None
    """Only hosts can read sums, by a key that no switch has; None: if there is one (docs/operate/confidential.md)."""
    check_sums: Annotated[bool, Meta(description="true or false")] | None = None
    """Hosts check results; None: if sums are confidential, or a key is set, and some switch can't check tags."""
    check_equal: Annotated[bool, Meta(description="true or false")] = True
    """Hosts compare the values that their programs take for equal, such as parameters, where these first come."""
    check_nans: Annotated[bool, Meta(description="true or false")] = False
    """NaN and infinities that a host brings into a sum fail the session, by name."""
    axis_name: Annotated[tuple[str, ...], parsed(axis_names)] = ()
    """The axes of local meshes, pmap or vmap that continue over the hosts."""
    world_size_min: Annotated[int, integer(1, RANKS_MAX)] | None = None
    """The fewest hosts that go on after a failure; None: the session isn't elastic."""
    rejoin_wait_s: Annotated[float, Meta(ge=0, le=86400, description="seconds, from 0 to 86400")] = 0.0
    """How long an elastic session's hosts that meet again wait for others to replace those that are lost."""
    standby: Annotated[tuple[tuple[str, int], ...], parsed(parse_switches)] = ()
    """Switches, each of which replaces all of `switch` if that is lost or has no slots left."""
    lease_s: LeaseSeconds | None = None
    """A host that is silent for so long is lost to its switch, and a silent switch to the host; None: `lease`."""
    threads: Threads | None = None  # that carry sums, at most as many as each host wants; None: `default_threads`
    metrics: Local | None = None  # where this host tells its metrics by HTTP; None: nowhere
    record_folder: Annotated[Path, parsed(_file, "the name of a folder")] | None = None
    """Where flight records are written; None: to one in the system's folder for temporary files."""

    @property
    def is_confidential(self) -> bool:
        return self.hosts_key_file is not None and self.confidential is not False

    @property
    def lease(self) -> float:
        """Returns `lease_s`, or its default. A false alarm costs an elastic session at most a step, and any other one
        its run."""
        return self.lease_s or (LEASE_S if self.world_size_min is None else ELASTIC_LEASE_S)


_SOURCES = Sources(
    PREFIX, argument="argument {}".format, others=[FOR_JAX, *(SWITCH_PREFIX + name.upper() for name in SWITCH_SETTINGS)]
)


def settings_given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are given somewhere, for callers that open no session: other settings may still be
    found when a session is opened. Raises ConfigError."""
    given = gather(Settings, _SOURCES, arguments, None, os.environ)
    resolved = convert(Settings, given)
    _check_against_each_other(resolved, {key: one.source for key, one in given.items()})
    return resolved


def resolve(
    arguments: Mapping[str, Any],
    config: str | Path | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    process_in_cluster: Callable[[], tuple[int, int, str] | None] = lambda: None,
) -> tuple[Settings, dict[str, str]]:
    """Resolves all settings and where each came from.

    Args:
      arguments: settings by name; None means "not given".
      config: path of a TOML file; its keys are the settings' names.
      environment: variables.
      process_in_cluster: called if rank or world size aren't given; returns (rank, world size, source), or None.

    Raises:
      ConfigError: a setting is wrong or missing; the message names the setting and its source.
    """
    given = gather(Settings, _SOURCES, arguments, config, environment)
    resolved = convert(Settings, given)
    sources = {key: one.source for key, one in given.items()}
    is_size_given = "world_size" in resolved
    if "rank" not in resolved or "world_size" not in resolved:
        found = process_in_cluster()
        if found is not None:
            for key, value in (("rank", found[0]), ("world_size", found[1])):
                if key not in resolved:
                    resolved[key], sources[key] = value, found[2]
        elif resolved.get("world_size") == 1:
            sources["rank"] = sources["world_size"]  # it is the default, 0
    if "job" not in resolved and (name := launchers.run_name(environment, resolved.get("rank", 0))) is not None:
        resolved |= convert(Settings, {"job": Given(*name)})
        sources["job"] = name[1]
    settings = Settings(**resolved)
    _check_whole(settings, sources, environment)
    if settings.switch is not None and settings.world_size == 1 and not is_size_given:
        raise alone(
            sources["switch"],
            sources["world_size"],
            f"{launchers.advice(environment)}; or set {PREFIX}RANK and {PREFIX}WORLD_SIZE in each process, as where "
            "Ray or dask start them",
        )
    _check_against_each_other(vars(settings), sources)
    return settings, {field.name: sources.get(field.name, "default") for field in fields(Settings)}


def alone(switch: str, who: str, how: str) -> ConfigError:
    """Makes the error of a process that has a switch, but would train by itself without anybody having asked for that.

    Args:
      switch: its address, or where that was given.
      who: says that this process is the only one.
      how: says how there would be several.
    """
    return ConfigError(
        f"A switch is configured ({switch}), but this process is the only one ({who}), and would train by itself. "
        f"{how}. If a world of one is what you want, set {PREFIX}WORLD_SIZE=1."
    )


def _check_whole(settings: Settings, sources: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raises ConfigError if a setting is missing that others need."""
    if settings.switch is not None:
        missing = [key for key in ("rank", "world_size") if key not in sources]
        if missing:
            names = " and ".join(PREFIX + key.upper() for key in missing)
            raise ConfigError(
                f"A switch is configured ({sources['switch']}), but nothing gives {' and '.join(missing)}, and no "
                f"launcher was found that says so. {launchers.advice(environment)}; or set {names}."
            )
        if settings.job is None:
            raise ConfigError(
                f"A switch is configured ({sources['switch']}), but nothing gives job: no launcher that tells all "
                f"hosts the id of their run was found. Write jax_passing.init(job='NAME') or set {PREFIX}JOB=NAME: the "
                "same name on all hosts of this run, another one for every other run, or they would sum up each "
                "other's numbers."
            )
    elif settings.world_size > 1:
        raise ConfigError(
            f"A world of {settings.world_size} ranks ({sources['world_size']}) needs a switch. Start one with "
            f"`jax-passing switch` and set {PREFIX}SWITCH=HOST:PORT, or use `jax-passing run`, or jax_passing.ray.init."
        )
    if settings.confidential and settings.switch is not None and settings.hosts_key_file is None:
        raise ConfigError(
            f"Sums are to be confidential ({sources['confidential']}), but this host has no key for that. Make one by "
            f"`jax-passing key --hosts`, and give every host of the job a file with it ({PREFIX}HOSTS_KEY_FILE)."
        )
    if settings.strategy == "native" and settings.is_confidential and settings.switch is not None:
        raise ConfigError(
            f"Strategy 'native' ({sources['strategy']}) sums in the clear, despite the key for confidential sums "
            f"({sources['hosts_key_file']}): use strategy='passing'."
        )
    if settings.standby and settings.switch is None:
        raise ConfigError(f"A standby is given ({sources['standby']}), but no switch that it could replace.")


def _check_against_each_other(settings: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    """Raises ConfigError if settings contradict each other. Missing ones, and None, contradict nothing."""
    rank, world_size, world_size_min = (settings.get(key) for key in ("rank", "world_size", "world_size_min"))
    if world_size_min is not None and world_size is not None and world_size_min > world_size:
        raise ConfigError(
            f"world_size_min {world_size_min} ({sources['world_size_min']}) is above the world size "
            f"{world_size} ({sources.get('world_size', 'default')})."
        )
    if twice := [address for address in settings.get("standby", ()) if address in (settings.get("switch") or ())]:
        raise ConfigError(
            f"{address_text(*twice[0])} is a standby ({sources['standby']}), and also in the list of switches "
            f"({sources['switch']}): give another switch as a standby."
        )
    if world_size is not None and world_size > RANKS_MAX:
        raise ConfigError(f"World size {world_size} ({sources['world_size']}): a job has at most {RANKS_MAX} ranks.")
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise ConfigError(
            f"Rank {rank} ({sources.get('rank', 'default')}) isn't below the world size "
            f"{world_size} ({sources.get('world_size', 'default')}). Ranks count from 0."
        )
