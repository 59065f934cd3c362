"""A rack's switch calls its parent, for hosts that join and for hosts that meet."""

import ssl
from collections.abc import Callable

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.caller import CONNECT_TIMEOUT_S, Caller, CallEvent, KeyMismatchError
from jax_passing.protocol.outside import Outside
from jax_passing.protocol.packet import PORT
from jax_passing.switch.jobs.admission import RefusalError


class ParentCall(Caller):
    """A rack's call of its parent. What it reports as lost is a RefusalError where the two switches don't suit each
    other, however often one calls."""

    def __init__(
        self,
        outside: Outside,
        parent: tuple[str, int],
        report: Callable[[CallEvent], None],
        *,
        own_name: str,
        job: str,
        key: bytes | None,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ):
        """`own_name`: the address of this switch, for people."""
        self._own_name = own_name
        super().__init__(outside, parent, report, job=job, key=key, timeout_s=timeout_s)

    def decode(self, line: bytes) -> messages.FromParent:
        return messages.decode_from_parent(line)

    def to_foreign(self) -> messages.RackJoin:
        """So that the parent's log has it, too. Nobody has proved to be the parent: our secret instance isn't said."""
        instance = f"{self._outside.random_bits(128):032x}"
        return messages.RackJoin(messages.PROTOCOL_VERSION, self.job, instance, self._own_name, PORT)

    def worded(self, error: Exception) -> Exception:
        match error:
            case KeyMismatchError(switch_has_key=has_key):
                one, other = (self.name, f"the one at {self._own_name}")[:: 1 if has_key else -1]
                return RefusalError(
                    f"Of the switches, {one} has a key, and {other} has none: start both with the same --key-file."
                )
            case messages.ForeignVersionError(version=version):
                own = f"the switch at {self._own_name}", messages.PROTOCOL_VERSION
                return RefusalError(protocol_difference(self.name, version, *own, "that switch"))
            case ssl.SSLError() if not self.is_secured:
                return ConnectionError(
                    f"it doesn't have the same key: start all switches of a tree with the same --key-file ({error})"
                )
        return error


def cant_reach(own_name: str, parent: str, problem: object, vain: str = "") -> str:
    """Says, for people, that the switch at `own_name` can't reach its parent. `vain`: what waits for it."""
    return (
        f"The switch at {own_name} can't reach its parent, the switch at {parent} ({problem}){vain}. Is that switch "
        "running, and is --parent its address?"
    )
