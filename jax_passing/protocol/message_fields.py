"""Messages' fields have these types and bounds: whatever a message says is limited in size."""

from typing import Annotated

from msgspec import Meta

from jax_passing.config import RANKS_MAX, SHARDS_MAX
from jax_passing.protocol.keys import KEY_BYTES, NONCE_BYTES
from jax_passing.threads import THREADS_MAX

LEVELS_MAX = 8
FACTS_MAX = 16
TEXT_MAX = 16 * 1024  # characters; who composes a text of what others say cuts it
LINE_BYTES_MAX = 64 * 1024
RELAY_BYTES_MAX = 1024 * 1024
RELAYED_ORDER, RELAYED_PROGRAM = b"\0", b"\1"
# Base64 takes 4 bytes for 3; the rest of the line is short.
RELAY_LINE_BYTES_MAX = RELAY_BYTES_MAX * 4 // 3 + 1024

Version = Annotated[int, Meta(ge=0, le=1 << 31)]  # a fact of a host has room for its digits
Port = Annotated[int, Meta(ge=1, le=65535)]
Rank = Annotated[int, Meta(ge=0, lt=RANKS_MAX)]
RankSet = Annotated[tuple[Rank, ...], Meta(max_length=RANKS_MAX)]
ShardSet = Annotated[tuple[Annotated[int, Meta(ge=0, lt=SHARDS_MAX)], ...], Meta(max_length=SHARDS_MAX)]
Threads = Annotated[int, Meta(ge=1, le=THREADS_MAX)]  # a power of two
Plane = Annotated[int, Meta(ge=0, lt=THREADS_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
# A job's 128, and our suffix. Names are told to other hosts: a control character could write into their terminals.
Name = Annotated[str, Meta(min_length=1, max_length=160, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z")]
JobName = Annotated[str, Meta(max_length=128)]  # of a user; empty if none is meant
REASON_MAX = 500
Reason = Annotated[str, Meta(max_length=REASON_MAX)]  # a text for people
SumName = Annotated[str, Meta(max_length=200)]  # its source location stands first; empty if nobody knows it
HostName = Annotated[str, Meta(max_length=64, pattern=r"^[ -~]*\Z")]  # ASCII, for people; may be empty
Id = Annotated[int, Meta(ge=1, le=65535)]
SlotCount = Annotated[int, Meta(ge=1, le=1 << 16)]  # a power of two
Lanes = Annotated[int, Meta(ge=3, le=65535)]  # an int64 takes three
Nonce = Annotated[int, Meta(ge=0, lt=1 << 32)]
Path = Annotated[tuple[Name, ...], Meta(max_length=LEVELS_MAX)]
SeatId = Annotated[int, Meta(ge=0, lt=1 << 32)]  # of one connection
MeetingId = Annotated[int, Meta(ge=0, lt=1 << 62)]  # random: two switches may each hold a meeting of one job
FactName = Annotated[str, Meta(min_length=1, max_length=64)]
FactValue = Annotated[str, Meta(max_length=256)]  # so that all of them are well below LINE_BYTES_MAX
Facts = Annotated[dict[FactName, FactValue], Meta(max_length=FACTS_MAX)]
# A host draws it for an epoch; empty if it masks nothing.
HostNonce = Annotated[bytes, Meta(max_length=NONCE_BYTES)]
Secret = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
