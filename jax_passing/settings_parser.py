"""Reads settings of hosts, switches and device files: each value from its strongest source, checked by its type.

A class (a dataclass, or msgspec's Struct) lists the settings of one reader. msgspec converts each value to the type of
its field. The type's `Meta` has the words for error messages ("expected an integer from 0 to 1023"), and a parser for
text that msgspec can't read (an address).
"""

import difflib
import numbers
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Meta

from jax_passing.errors import ConfigError

# If a namespace has a Service called jax-passing-switch, Kubernetes sets such variables in all of its pods:
# JAX_PASSING_SWITCH_SERVICE_HOST, JAX_PASSING_SWITCH_PORT_7171_TCP_ADDR and others.
_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")

SHOWN_CHARACTERS_MAX = 200  # of a bad value, which may be a long list of a device's neighbours


def integer(lowest: int, highest: int) -> Meta:
    return Meta(ge=lowest, le=highest, description=f"an integer from {lowest} to {highest}")


def parsed(parse: Callable[[Any], Any], description: str | None = None) -> Meta:
    """Returns the Meta of a value that `parse` reads. `parse` raises ValueError; a text that doesn't begin with
    "expected" is replaced by the description."""
    return Meta(description=description, extra={"parse": parse})


def one_of(names: tuple[str, ...]) -> Meta:
    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError(f"expected one of {', '.join(names)}")
        return str(value)

    return parsed(parse)


@dataclass(frozen=True)
class Given:
    """Holds a value that was given for a setting, not yet checked. `source`: where it was given, for messages."""

    value: Any
    source: str


@dataclass(frozen=True)
class Sources:
    """Describes the sources of one reader's settings, besides its file.

    Attributes:
      prefix: begins the names of its variables, which end with the settings' names in capitals.
      argument: returns what users call the argument for a setting.
      others: variables with this prefix that belong to another reader.
    """

    prefix: str
    argument: Callable[[str], str]
    others: Sequence[str] = ()


def read_toml(path: str | Path, source: str) -> dict[str, Any]:
    """Reads a TOML file. Raises ConfigError that names `source`, where the path came from."""
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:  # the last is raised by a thousand nested arrays
        raise ConfigError(f"Can't read the settings file {path} ({source}): {error}.") from error


def did_you_mean(name: str, known: list[str]) -> str:
    longer = [one for one in known if one.startswith(f"{name}_")]  # a part of the name, as "wire" for "wire_dtype"
    close = longer if len(longer) == 1 else difflib.get_close_matches(name, known, 1)
    return f"Did you mean {close[0]}?" if close else f"Known are {', '.join(known)}."


def names_of(kind: type) -> list[str]:
    return list(typing.get_type_hints(kind))


def from_file(kind: type, path: str | Path, source: str) -> dict[str, Given]:
    """Reads settings from a TOML file with their names as keys. Raises ConfigError. `source`: where the path came
    from."""
    given = {key: Given(value, f"file {path}") for key, value in read_toml(path, source).items()}
    _check_names("setting", {key: f" ({one.source})" for key, one in given.items()}, names_of(kind))
    return given


def gather(
    kind: type,
    sources: Sources,
    arguments: Mapping[str, Any],
    config: str | Path | None,
    environment: Mapping[str, str],
) -> dict[str, Given]:
    """Gathers the settings that are given: arguments (unless None) win over variables (unless empty), and these over a
    file. Raises ConfigError."""
    given: dict[str, Given] = {}
    path, source = config, sources.argument("config")
    if path is None and environment.get(sources.prefix + "CONFIG"):
        path, source = environment[sources.prefix + "CONFIG"], f"variable {sources.prefix}CONFIG"
    if path is not None:
        given |= from_file(kind, path, source)
    given |= _from_variables(kind, sources, environment)
    _check_names("argument", dict.fromkeys(arguments, ""), names_of(kind))
    return given | {key: Given(value, sources.argument(key)) for key, value in arguments.items() if value is not None}


def _from_variables(kind: type, sources: Sources, environment: Mapping[str, str]) -> dict[str, Given]:
    known = {sources.prefix + name.upper(): name for name in names_of(kind)}
    config = sources.prefix + "CONFIG"
    ours = {
        variable: text
        for variable, text in environment.items()
        if variable.startswith(sources.prefix)
        and variable not in sources.others
        and variable != config
        and text != ""
        and not _is_of_kubernetes(variable, environment)
    }
    _check_names("variable", dict.fromkeys(ours, ""), [*known, config])
    return {known[variable]: Given(text, f"variable {variable}") for variable, text in ours.items()}


def _is_of_kubernetes(variable: str, environment: Mapping[str, str]) -> bool:
    return "KUBERNETES_SERVICE_HOST" in environment and _KUBERNETES.search(variable) is not None


def _check_names(what: str, suffixes: Mapping[str, str], known: list[str]) -> None:
    """Raises ConfigError if a name isn't known. `suffixes`: by name, the text to write behind it."""
    for name, suffix in suffixes.items():
        if name not in known:
            shown = name if what == "variable" else repr(name)
            raise ConfigError(f"Unknown {what} {shown}{suffix}. {did_you_mean(name, known)}")


def convert(kind: type, given: Mapping[str, Given]) -> dict[str, Any]:
    """Converts values to the types of `kind`. Raises ConfigError, which names the setting and its source."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {key: _convert(_without_none(hints[key]), key, one) for key, one in given.items()}


def _convert(hint: Any, name: str, given: Given) -> Any:
    meta = next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Meta)), Meta())
    try:
        return meta.extra["parse"](given.value) if meta.extra is not None else as_type(given.value, hint)
    except (TypeError, ValueError) as error:
        if meta.description is not None:
            reason = f"expected {meta.description}"
        elif isinstance(error, msgspec.ValidationError) or str(error).startswith("expected"):
            reason = str(error)[0].lower() + str(error)[1:]
        else:
            reason = "it has the wrong type"
        shown = repr(given.value)
        shown = shown if len(shown) <= SHOWN_CHARACTERS_MAX else shown[:SHOWN_CHARACTERS_MAX] + "…"
        raise ConfigError(f"Bad value {shown} of {name} ({given.source}): {reason}.") from error


def as_type(value: Any, hint: Any) -> Any:
    """Converts a value to a type. Text is parsed, because variables are always text. Raises ValueError."""
    if isinstance(value, str):
        return msgspec.convert(value.strip(), hint, strict=False)
    if isinstance(value, bool):
        return msgspec.convert(value, hint)
    if isinstance(value, numbers.Integral):  # also one of NumPy
        return msgspec.convert(int(value), hint)
    return msgspec.convert(float(value) if isinstance(value, numbers.Real) else value, hint)


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def power_of_two(value: Any) -> int:
    """Reads such a number. Raises ValueError."""
    number: int = as_type(value, int)
    if not is_power_of_two(number):
        raise ValueError
    return number


def _without_none(hint: Any) -> Any:
    """Returns X for `X | None`: settings that aren't given aren't converted, and the text "null" isn't None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return hint
