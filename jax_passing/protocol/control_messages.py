"""A host and the control plane say this to each other, as newline-delimited JSON over TCP, one message a line.

The switch greets with Hello; the host answers with Join and waits for Welcome or Refused. From then on both may speak
at any time. With a key, all of that goes by TLS (`secure_channel.py`).

A *rack's switch* speaks to its parent as a host does, for all of its ranks, one connection for each epoch of a job:
RackJoin first, then a RankJoin for each rank. When all ranks are there, the root says Prepare, down through all levels;
Prepared comes back, and Welcome ends it.

The messages are in files by who says them, of which all names are here: `all_versions.py`, `host_messages.py`,
`meeting_messages.py` and `tree_messages.py`.
"""

# ruff: noqa: F403, F405

from contextlib import suppress
from typing import TypeVar

import msgspec

from jax_passing.protocol.all_versions import *
from jax_passing.protocol.host_messages import *
from jax_passing.protocol.meeting_messages import *
from jax_passing.protocol.message_fields import *
from jax_passing.protocol.tree_messages import *

T = TypeVar("T")


class _Versioned(msgspec.Struct, frozen=True):
    """This may be read of a first message of any version."""

    protocol_version: Version


FromHost = (
    Join
    | Meet
    | GroupReady
    | GroupHeard
    | GroupLost
    | Relay
    | Query
    | CountersQuery
    | StatusQuery
    | Command
    | Heartbeat
    | Lifeline
    | Leave
    | Fail
)
FromRack = RackJoin | RackMeet | RankJoin | RankGone | Prepared | Refused | Left | Ask | Answer
FromMember = FromHost | FromRack
FromSwitch = (
    Hello
    | Met
    | Rehearse
    | GroupOffer
    | Welcome
    | Refused
    | Relay
    | SlotState
    | Awaited
    | Counters
    | Status
    | Done
    | WriteRecord
    | Heartbeat
    | Left
    | Bye
    | Failed
)
FromParent = FromSwitch | RackMet | Prepare | Ask | Answer

_encoder = msgspec.json.Encoder()
_from_member = msgspec.json.Decoder(FromMember)
_foreign_first = msgspec.json.Decoder(ForeignJoin | ForeignRackJoin)
_versioned = msgspec.json.Decoder(_Versioned)
_from_switch = msgspec.json.Decoder(FromSwitch)
_from_parent = msgspec.json.Decoder(FromParent)


def encode(message: Message) -> bytes:
    """Returns one line."""
    return _encoder.encode(message) + b"\n"


def decode(decoder: msgspec.json.Decoder[T], line: bytes | str) -> T:
    """Decodes a line. Raises msgspec.DecodeError, whatever is wrong with the line. Bytes that aren't UTF-8 and brackets
    that nest too deeply are other errors to msgspec, and may come from the network as well."""
    try:
        return decoder.decode(line)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def decode_from_member(line: bytes) -> FromMember:
    """Decodes what a host or a rack's switch says. Raises msgspec.DecodeError (malformed) or its subclass
    ValidationError."""
    return decode(_from_member, line)


def decode_first(line: bytes) -> FromMember:
    """Decodes the first message of a member, which may be of another version. Raises ForeignVersionError if it is, and
    isn't understood."""
    try:
        return decode_from_member(line)
    except msgspec.ValidationError:
        with suppress(msgspec.DecodeError):
            join = decode(_foreign_first, line)
            if join.protocol_version != PROTOCOL_VERSION:
                ours = Join if isinstance(join, ForeignJoin) else RackJoin
                return ours(**msgspec.structs.asdict(join))
        _raise_if_foreign(line)
        raise


def decode_from_switch(line: bytes) -> FromSwitch:
    """Decodes what a host hears. Raises msgspec.DecodeError; ForeignVersionError if it is another version's
    greeting."""
    try:
        return decode(_from_switch, line)
    except msgspec.ValidationError:
        _raise_if_foreign(line)
        raise


def decode_from_parent(line: bytes) -> FromParent:
    """Decodes what a rack's switch hears. Raises as decode_from_switch."""
    try:
        return decode(_from_parent, line)
    except msgspec.ValidationError:
        _raise_if_foreign(line)
        raise


def _raise_if_foreign(line: bytes) -> None:
    try:
        version = decode(_versioned, line).protocol_version
    except msgspec.DecodeError:
        return
    if version != PROTOCOL_VERSION:
        raise ForeignVersionError(version)
