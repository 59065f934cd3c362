"""Programs that rank 0 tells of: each is malformed or compared, and what is said of a difference can be sent.

The input is lines, a program each: of rank 0, or of this host if the line begins with a "!".
"""

import msgspec

from jax_passing.errors import is_kind
from jax_passing.host import programs
from jax_passing.protocol import control_messages as messages

RANK = 1


def test_one_input(data: bytes) -> None:
    ledger = programs.Ledger(RANK)
    for line in data.split(b"\n")[:8]:
        try:
            program = programs.decode(line.removeprefix(b"!"))
        except msgspec.DecodeError as error:
            str(error).encode()
            continue
        assert programs.decode(programs.encode(program)) == program
        failure = ledger.own(program) if line.startswith(b"!") else ledger.rank_0s(program)
        if failure is not None:
            assert is_kind(failure.kind)
            _send(messages.Fail(failure.kind, failure.message))
    _send(messages.Fail("DeadlineExceededError", ledger.waiting()[: messages.TEXT_MAX]))


def _send(message: messages.Fail) -> None:
    line = messages.encode(message)
    assert messages.decode_from_member(line) == message
    assert len(line) <= messages.LINE_BYTES_MAX, len(line)
