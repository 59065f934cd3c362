"""Says how a host's program differs from rank 0's, and what to do about it. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import msgspec

from jax_passing.protocol import control_messages as messages

SHOWN_MAX = 4  # locations, leaves or operations
TREE_MAX = 8  # leaves of a tree that is shown whole
_TEXT_MAX = 6 * 1024
_PART_MAX = 300
# These keys of an identity say which sum it is.
_WHERE = frozenset({"place", "further", "call", "calls", "nth", "kind", "bucket", "stream"})

_SAME_PROGRAMS = (
    "All hosts must run the same programs in the same order, with the same sums: start the same script on all of them, "
    "and look for a branch that depends on the rank or on a host's own data."
)
_SAME_TREE = "Sum the same tree on all hosts."
_SAME_SHAPES = "Sum arrays of the same shapes and dtypes on all hosts: pad what is shorter on one of them, or cast it."
_SAME_MODULE = (
    "Put each of the equal calls on a line of its own, or in a jax.named_scope of its own; or make the hosts' programs "
    "equal: the same operations and shapes, the same jaxlib, the same kind of processor."
)


class Compared(Protocol):
    """A program."""

    @property
    def name(self) -> str: ...
    @property
    def devices(self) -> str: ...
    @property
    def stream(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def identities(self) -> Sequence[str]: ...
    @property
    def digest(self) -> str: ...


def difference(own: Compared, rank_0s: Compared, rank: int, number: int) -> str:
    """Describes how two unequal programs differ, and what to do about it.

    Args:
      own: this host's.
      rank_0s: rank 0's.
      rank: this host's.
      number: the index of the programs in their device's queue.
    """
    stream = f" in stream {own.stream!r}" if own.stream else ""
    where = f"program {number} with sums over hosts on devices {own.devices}{stream}"
    if own.name != rank_0s.name:
        what = (
            f"Instead of rank 0's {rank_0s.name}, which sums at {_location_texts(_sums(rank_0s))}, rank {rank} runs "
            f"{own.name} ({where}), which sums at {_location_texts(_sums(own))}"
        )
        remedies = [_SAME_PROGRAMS]
    elif (own.identities, own.digest) != (rank_0s.identities, rank_0s.digest):
        whats, remedies = _sums_differ(own, rank_0s, rank)
        what = f"In {own.name} ({where}): {'; '.join(whats)}"
    else:
        what = f"In {own.name} ({where}): {_modules_differ(own, rank_0s, rank)}"
        remedies = [_SAME_MODULE]
    return f"Hosts run different programs. {what[:_TEXT_MAX]}. {' '.join(dict.fromkeys(remedies))}"


def described(program: Compared) -> str:
    """Says which program it is. Shapes are part of it: a function may run in many, as where a batch is smaller."""
    sums = _sums(program)
    leaves = [f"{path} {dtype}".lstrip() for one in sums for path, dtype in one.leaves]
    what = _listed(leaves[:SHOWN_MAX], len(leaves))[:_PART_MAX]
    return f"{program.name} ({program.devices}), which sums {what} at {_location_texts(sums)}"


_fields = msgspec.json.Decoder(dict[str, Any])


def fields_of(identity: str) -> dict[str, Any]:
    """Reads the fields of an identity. Raises msgspec.DecodeError."""
    return messages.decode(_fields, identity)


_Location = tuple[tuple[str, ...], str]  # frames, and the letters of derivatives


class _Sum:
    """An identity, read leniently: it may have more keys, and comes over the network."""

    def __init__(self, identity: str):
        try:
            self.all = fields_of(identity)
        except msgspec.DecodeError:
            self.all = {"place": [identity[:_PART_MAX]]}
        calls = self.all.get("calls")
        stacks = [self.all.get("place"), *(calls if isinstance(calls, list) else [])]
        frames = [str(frame) for stack in stacks if isinstance(stack, list) for frame in stack if frame]
        self.where: _Location = tuple(frames), str(self.all.get("kind", ""))
        self.bucket = str(self.all.get("bucket", 0))
        leaves = self.all.get("leaves")
        pairs = [leaf for leaf in leaves if isinstance(leaf, list)] if isinstance(leaves, list) else []
        self.leaves = [(str(leaf[0]), str(leaf[1])) for leaf in pairs if len(leaf) == 2]

    @property
    def how(self) -> dict[str, str]:
        """Returns everything but which sum it is, and of what."""
        named = {key: value for key, value in self.all.items() if key not in _WHERE and key != "leaves"}
        return {key: value if isinstance(value, str) else str(value) for key, value in named.items()}


def location_of(identity: str) -> _Location:
    """Returns the key by which identities are sorted, so that the sums of a location stand together."""
    return _Sum(identity).where


def _sums(program: Compared) -> list[_Sum]:
    return [_Sum(identity) for identity in program.identities]


def _by_location(sums: Iterable[_Sum]) -> dict[_Location, list[_Sum]]:
    locations: dict[_Location, list[_Sum]] = {}
    for one in sums:
        locations.setdefault(one.where, []).append(one)
    return locations


def _sums_differ(own: Compared, rank_0s: Compared, rank: int) -> tuple[list[str], list[str]]:
    """Returns what differs, and what to do."""
    ours, theirs = _by_location(_sums(own)), _by_location(_sums(rank_0s))
    # Sums that were left out on one side may be there: nothing is said of locations from the last one on.
    ends = [max(sums, default=((), "")) for sums, program in ((ours, own), (theirs, rank_0s)) if program.digest]
    if ends:
        ours, theirs = ({at: each[at] for at in each if at < min(ends)} for each in (ours, theirs))
    whats: list[str] = []
    remedies: list[str] = []
    for location in [location for location in ours if location in theirs]:
        found = _location_differs(ours[location], theirs[location], rank)
        if found:
            text, remedy = found
            whats.append(f"at {_location_text(location, ours)} {text}")
            remedies.append(remedy)
    lone_ours = [location for location in ours if location not in theirs]
    lone_theirs = [location for location in theirs if location not in ours]
    for who, other, lone, there in (
        (f"rank {rank}", "rank 0", lone_ours, theirs),
        ("rank 0", f"rank {rank}", lone_theirs, ours),
    ):
        if lone:
            some = [_location_text(location, [*there, *lone]) for location in lone[:SHOWN_MAX]]
            whats.append(f"{who} sums at {_listed(some, len(lone))}, where {other} doesn't")
            remedies.append(_SAME_PROGRAMS)
    if not whats:
        whats = [f"they differ beyond the first {sum(map(len, ours.values()))} sums: hosts tell each other of no more"]
        remedies = [_SAME_PROGRAMS]
    if len(whats) > SHOWN_MAX:
        whats = [*whats[:SHOWN_MAX], f"and so do {len(whats) - SHOWN_MAX} other locations"]
    return whats, remedies


def _location_differs(ours: Sequence[_Sum], theirs: Sequence[_Sum], rank: int) -> tuple[str, str] | None:
    """Returns what differs in the sums of one location, and the remedy; None if they are equal."""
    if Counter(_canonical(one) for one in ours) == Counter(_canonical(one) for one in theirs):
        return None
    whats: list[str] = []
    remedies: list[str] = []
    for key in sorted({key for one in (*ours, *theirs) for key in one.how}):
        values = [_all_of(one.how.get(key, "nothing") for one in sums) for sums in (ours, theirs)]
        if values[0] != values[1]:
            whats.append(f"rank {rank} sums with {key} {values[0]}, rank 0 with {values[1]}")
            remedies.append(f"Give the same {key} on all hosts.")
    if leaves := _leaves_differ(_leaves(ours), _leaves(theirs), rank):
        whats.append(leaves[0])
        remedies.append(leaves[1])
    counts = [_calls(sums) for sums in (ours, theirs)]
    if counts[0] != counts[1]:
        times = [f"{count} time{'' if count == 1 else 's'}" for count in counts]
        whats.append(f"rank {rank} sums {times[0]}, rank 0 {times[1]}")
        remedies.append(_SAME_PROGRAMS)
    if not whats:
        whats.append(f"rank {rank} packs the same leaves into other buckets, or sums them in other calls, than rank 0")
        remedies.append(_SAME_PROGRAMS)
    return ", and ".join(whats), " ".join(dict.fromkeys(remedies))


def _canonical(one: _Sum) -> bytes:
    return msgspec.json.encode(one.all, order="deterministic")


def _calls(sums: Iterable[_Sum]) -> int:
    """Counts the calls; buckets of one call count once."""
    by_bucket = Counter(one.bucket for one in sums)
    return max(by_bucket.values())


def _leaves(sums: Iterable[_Sum]) -> dict[str, str]:
    """Returns types by path, whatever buckets they are in."""
    types: dict[str, set[str]] = {}
    for one in sums:
        for path, dtype in one.leaves:
            types.setdefault(path, set()).add(dtype)
    return {path: _all_of(several) for path, several in types.items()}


def _leaves_differ(ours: Mapping[str, str], theirs: Mapping[str, str], rank: int) -> tuple[str, str] | None:
    if ours.keys() != theirs.keys():
        if max(len(ours), len(theirs)) <= TREE_MAX:
            return f"rank {rank} sums {_tree(ours)}, rank 0 {_tree(theirs)}", _SAME_TREE
        parts = [
            f"{who} sums {_tree({path: one[path] for path in one if path not in other})}, which {whose} doesn't"
            for who, whose, one, other in (
                (f"rank {rank}", "rank 0", ours, theirs),
                ("rank 0", f"rank {rank}", theirs, ours),
            )
            if one.keys() - other.keys()
        ]
        return ", and ".join(parts), _SAME_TREE
    differ = [path for path in ours if ours[path] != theirs[path]]
    if not differ:
        return None
    some = [f"{path or 'an array'} as {ours[path]}, rank 0 as {theirs[path]}" for path in differ[:SHOWN_MAX]]
    return f"rank {rank} sums {_listed(some, len(differ), ' leaves')}", _SAME_SHAPES


def _tree(leaves: Mapping[str, str]) -> str:
    """Writes a tree like "{loss, memory}"."""
    if list(leaves) == [""]:
        return f"an array {leaves['']}"
    names = [re.sub(r"^\['([^'\]]*)'\]$", r"\1", path) for path in leaves]
    return "{" + _listed(names[:TREE_MAX], len(names)) + "}"


def _modules_differ(own: Compared, rank_0s: Compared, rank: int) -> str:
    """Describes how their compiled modules differ, as their fingerprints do."""
    copies = Counter(own.identities)
    alike = _by_location(_Sum(identity) for identity, count in copies.items() if count > 1)
    some = _listed([_location_text(location, alike) for location in list(alike)[:SHOWN_MAX]], len(alike))
    needed = (
        f"the sums at {some} are there several times, and only XLA's order tells them apart"
        if alike
        else "only XLA's order tells some of its sums apart"
    )
    parts: list[str] = []
    summaries = [program.fingerprint.partition(" ")[2].split("; ") for program in (own, rank_0s)]
    for ours, theirs in zip_longest(*summaries, fillvalue=""):
        if ours == theirs:
            continue
        operations = [_operations(part) for part in (ours, theirs)]
        if operations[0] is not None and operations[1] is not None:
            ours, theirs = _only(operations[0], operations[1]), _only(operations[1], operations[0])
        parts.append(f"rank {rank} has {ours[:_PART_MAX] or 'nothing'}, rank 0 {theirs[:_PART_MAX] or 'nothing'}")
    differ = "; ".join(parts) or "in something other than the numbers of operations and the shapes (constants, layouts)"
    return f"{needed}; for that the compiled modules must be equal, but they differ: {differ}"


def _operations(text: str) -> dict[str, str] | None:
    """Reads a text like "14 fusion, 3 dot"; None if it isn't of this kind."""
    parts = [re.fullmatch(r"(\d+) ([\w.-]+)", part) for part in text.split(", ")]
    return {found[2]: found[1] for found in parts if found} if all(parts) else None


def _only(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Returns our counts of the operations that both sides count differently."""
    names = [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]
    return _listed([f"{ours.get(name, 'no')} {name}" for name in names[: 2 * SHOWN_MAX]], len(names))


def _location_text(location: _Location, others: Collection[_Location] = ()) -> str:
    """Returns the innermost frame, with those around it if that isn't enough to tell it from others."""
    frames, kind = location
    same = [other for other in others if other[0][:1] == frames[:1] and other[0] != frames]
    shown = frames[:SHOWN_MAX] if same else frames[:1]
    text = ", called from ".join(shown)[:_PART_MAX] or "an unknown location"
    return f"{text} (in a derivative)" if kind else text


def _location_texts(sums: Iterable[_Sum]) -> str:
    locations = list(_by_location(sums))
    some = [_location_text(location, locations) for location in locations[:SHOWN_MAX]]
    return _listed(some, len(locations)) or "locations too long to tell"


def _all_of(values: Iterable[str]) -> str:
    return " and ".join(sorted(set(values)))


def _listed(some: Sequence[str], count: int, what: str = "") -> str:
    return ", ".join(some) + (f" and {count - len(some)} more{what}" if count > len(some) else "")
