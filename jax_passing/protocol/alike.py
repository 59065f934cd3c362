"""All hosts of a job must be alike in these facts. Where they aren't, this is what to say."""

import os
import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata

from jax_passing.config import Settings, address_text
from jax_passing.errors import names
from jax_passing.protocol import keys

DEVICES, SWITCHES = "devices", "switches"
HASH_SEED = "PYTHONHASHSEED"
HOSTS_KEY = "hosts' key of confidential sums"
PROTOCOL = "protocol version"  # of a host whose version isn't the switch's: its other facts mean nothing here
_PACKAGES = {"jax": "jax", "jaxlib": "jaxlib", "jax_passing": "jax-passing"}
_SAME_VERSIONS = "install the same versions on all of them"
_ADVICE = {
    "axis_name": "declare the same in jax_passing.init(axis_name=…) or JAX_PASSING_AXIS_NAME",
    "world_size_min": "set the same in jax_passing.init(world_size_min=…) or JAX_PASSING_WORLD_SIZE_MIN",
    "standby": "list the same in jax_passing.init(standby=…) or JAX_PASSING_STANDBY",
    "strategy": "set the same in jax_passing.init(strategy=…) or JAX_PASSING_STRATEGY",
    "wire_dtype": "set the same in jax_passing.init(wire_dtype=…) or JAX_PASSING_WIRE_DTYPE",
    "check_sums": "set the same in jax_passing.init(check_sums=…) or JAX_PASSING_CHECK_SUMS",
    "check_equal": "set the same in jax_passing.init(check_equal=…) or JAX_PASSING_CHECK_EQUAL (false on hosts with "
    "CPUs alone if others have GPUs or TPUs, which compare nothing)",
    "check_nans": "set the same in jax_passing.init(check_nans=…) or JAX_PASSING_CHECK_NANS",
    HASH_SEED: "set the same on all of them, or none",
    HOSTS_KEY: "give all the same file (JAX_PASSING_HOSTS_KEY_FILE), or none",
    DEVICES: "give each as many devices (JAX_NUM_CPU_DEVICES)",
    SWITCHES: "list equally many (JAX_PASSING_SWITCH)",
    **dict.fromkeys(_PACKAGES, _SAME_VERSIONS),
}
_SHOWN_MAX = 4  # values of one fact
_FACT_CHARACTERS_MAX = 256  # of a message's fact
_TEXT_MAX = 8 * 1024  # less than messages take


def facts(settings: Settings, device_count: int, hosts_key: bytes | None = None) -> dict[str, str]:
    """Returns this host's facts, by name. `device_count`: of its devices; 0 if that isn't known. `hosts_key`: of
    confidential sums. Asks the installed packages' own metadata: importing them would load JAX."""
    ours = {
        "axis_name": ",".join(settings.axis_name),
        "strategy": settings.strategy,
        "wire_dtype": settings.wire_dtype,
        "check_sums": {None: "", True: "true", False: "false"}[settings.check_sums],
        "check_equal": str(settings.check_equal).lower(),
        "check_nans": "true" if settings.check_nans else "",
        DEVICES: str(device_count or ""),
        SWITCHES: str(len(settings.switch or ())) if len(settings.switch or ()) > 1 else "",
        HOSTS_KEY: "" if hosts_key is None else keys.digest(hosts_key),
        "world_size_min": str(settings.world_size_min or ""),
        "standby": ",".join(address_text(*address) for address in settings.standby)[:_FACT_CHARACTERS_MAX],
        HASH_SEED: hash_seed(),
        **{name: version_of(package) for name, package in _PACKAGES.items()},
    }
    return {name: value for name, value in ours.items() if value}


def hash_seed() -> str:
    """Returns what puts Python's sets of texts into the same order on all hosts; empty if nothing does."""
    seed = os.environ.get(HASH_SEED, "")
    return seed if seed.isdecimal() else ""


@cache  # it is read from a file, and parsed
def version_of(package: str) -> str:
    """Returns the version of an installed package; empty if it isn't installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _shown(fact: str, value: str, with_name: bool) -> str:
    if not value:
        return f"no {fact}" if with_name else "none"
    plain = value if re.fullmatch(r"[\w.+-]+", value) else repr(value)
    if not with_name:
        return plain
    return f"{plain} {fact}" if fact in (DEVICES, SWITCHES) else f"{fact} {plain}"


def differences(job: str, by_rank: Mapping[int, Mapping[str, str]]) -> str:
    """Says in what the hosts' facts differ, each by its name; empty if they are alike."""
    sentences: list[str] = []
    advice: dict[str, None] = {}
    for fact in sorted({name for theirs in by_rank.values() for name in theirs}):
        groups: dict[str, list[int]] = {}
        for rank in sorted(by_rank):
            groups.setdefault(by_rank[rank].get(fact, ""), []).append(rank)
        if len(groups) == 1:
            continue
        # The highest first: most people take the lowest ranks' value for the right one.
        (value, ranks), *others = reversed(groups.items())
        who = names(ranks).capitalize() + ("" if sentences else f" of job {job!r}")
        has = "has" if len(ranks) == 1 else "have"
        parts = [f"{who} {has} {_shown(fact, value, True)}"]
        for value, ranks in others[-_SHOWN_MAX:]:
            parts.append(f"{names(ranks)} {'has' if len(ranks) == 1 else 'have'} {_shown(fact, value, False)}")
        sentences.append(", ".join(parts) + ".")
        advice[_ADVICE.get(fact, _SAME_VERSIONS)] = None
        if sum(map(len, sentences)) > _TEXT_MAX:
            break  # strangers may have as many facts as they like, and each takes a look at all ranks
    return _with_advice(sentences, advice)


def difference_of_newcomer(job: str, own: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Says in what a newcomer isn't like the hosts that run the job, which are alike; empty if it is."""
    sentences: list[str] = []
    advice: dict[str, None] = {}
    for fact in sorted(own.keys() | theirs.keys()):
        if own.get(fact, "") == theirs.get(fact, ""):
            continue
        has = f"This host has {_shown(fact, own.get(fact, ''), True)}"
        sentences.append(f"{has}, the hosts that run job {job!r} have {_shown(fact, theirs.get(fact, ''), False)}.")
        advice[_ADVICE.get(fact, _SAME_VERSIONS)] = None
    return _with_advice(sentences, advice)


def _with_advice(sentences: list[str], advice: Mapping[str, None]) -> str:
    if not sentences:
        return ""
    this = "this" if len(sentences) == 1 else "these"
    text = " ".join(sentences)[:_TEXT_MAX]
    return f"{text} All hosts of a job must be alike in {this}: {'; '.join(advice)}."


def protocol_difference(switch: str, switch_version: int, who: str, version: int, them: str) -> str:
    """Says that two speak different versions. `switch`: its address. `who`: speaks the other version; `them`: the same
    in short."""
    older = them if version < switch_version else "the switch"
    return (
        f"The switch at {switch} speaks protocol version {switch_version}, {who} version {version}. Upgrade "
        f"jax_passing on {older}: all hosts and switches of a job need the same version."
    )
