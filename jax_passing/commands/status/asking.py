"""Switches are asked for their status, all at once."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from jax_passing import job_names
from jax_passing.config import address_text
from jax_passing.errors import AuthenticationError, ConfigError, PassingError, SwitchUnreachableError, printable
from jax_passing.host.control.control_connection import ControlConnection
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys
from jax_passing.protocol.overview import Document

ANSWER_S = 10.0
_KEY_ADVICE = "Give the switch's own key (--key-file), or the key of a job and its name (--key-file and --job)."


@dataclass(frozen=True)
class Asker:
    """Asks with this key, if there is one. `job`: whose key it is, or that of the operator."""

    job: str
    key: bytes | None

    @classmethod
    def of(cls, key_file: Path | None, job: str | None) -> "Asker":
        """Raises ConfigError if the file has no key, or one of a job that isn't named."""
        if key_file is None:
            return cls(job or job_names.OPERATOR, None)
        kind, key = keys.read_any_key(key_file)
        if kind == keys.SWITCH:
            return cls(job_names.OPERATOR, keys.job_key(key, job_names.OPERATOR))
        if job is None:
            raise ConfigError(f"{key_file} has the key of a job: say of which one (--job).")
        return cls(job, key)

    def ask(self, address: tuple[str, int], *, records: bool = False) -> Document:
        """Returns the status of a switch. `records`: its last events, too, and it asks its hosts to write their flight
        records. Raises PassingError."""
        name = address_text(*address)
        query = messages.StatusQuery(messages.PROTOCOL_VERSION, records)
        answer = self.say(address, query, "doesn't tell its status")
        if not isinstance(answer, messages.Status):
            raise PassingError(f"The switch at {name} answers with {type(answer).__name__}, not with its status.")
        return answer.document

    def say(self, address: tuple[str, int], message: messages.Message, problem: str) -> messages.FromSwitch:
        """Says this to a switch, and returns its answer. Raises PassingError, which says that the switch has this
        `problem`, if it refuses or doesn't understand."""
        name = address_text(*address)
        try:
            connection = ControlConnection(address, key=self.key, job=self.job)
        except AuthenticationError:
            keys_differ = "wants a key" if self.key is None else "has another key than this one, or none"
            raise AuthenticationError(f"The switch at {name} {keys_differ}. {_KEY_ADVICE}") from None
        try:
            connection.send(message)
            answer = connection.receive(time.monotonic() + ANSWER_S)
        except (OSError, msgspec.DecodeError) as error:
            version = connection.hello.protocol_version
            older = f": it speaks protocol version {version}, we {messages.PROTOCOL_VERSION}"
            hint = older if version != messages.PROTOCOL_VERSION else ""
            raise SwitchUnreachableError(f"The switch at {name} {problem}{hint} ({error}).") from None
        finally:
            connection.close()
        if isinstance(answer, messages.Refused):
            raise PassingError(f"The switch at {name} {problem}: {printable(answer.message)}")
        return answer


def ask_all(
    asker: Asker, addresses: Sequence[tuple[str, int]], *, records: bool = False
) -> dict[str, Document | PassingError]:
    """Returns the status of each switch, or why it isn't known, by its address."""

    def ask(address: tuple[str, int]) -> Document | PassingError:
        try:
            return asker.ask(address, records=records)
        except PassingError as error:
            return error

    with ThreadPoolExecutor(len(addresses)) as pool:
        return dict(zip((address_text(*one) for one in addresses), pool.map(ask, addresses), strict=True))
