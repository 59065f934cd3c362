"""An operator's command goes to a switch: by its socket on this machine, or over the network with a key."""

import socket
from contextlib import suppress
from pathlib import Path

import msgspec

from jax_passing.commands.status.asking import ANSWER_S, Asker
from jax_passing.config import address_text
from jax_passing.errors import AuthenticationError, PassingError, SwitchUnreachableError, printable
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import local_operators

_ANYWHERE = ("0.0.0.0", "::")


def tell(address: tuple[str, int], command: messages.Command, key_file: Path | None, job: str | None) -> messages.Done:
    """Tells the switch, and returns its answer. `job`: of which the key may be. Raises PassingError."""
    problem = "doesn't do that"
    if key_file is not None:
        answer = Asker.of(key_file, job).say(address, command, problem)
    elif (connected := _on_this_machine(address)) is not None:
        answer = _say(connected, command)
    else:
        raise AuthenticationError(
            f"No switch of this machine listens at {address_text(*address)}. Run this on the switch's machine, as the "
            "user that runs the switch or as root; or give its own key (--key-file), if it has one."
        )
    if isinstance(answer, messages.Refused):
        raise PassingError(f"The switch at {address_text(*address)} {problem}: {printable(answer.message)}")
    if not isinstance(answer, messages.Done):
        raise PassingError(f"The switch at {address_text(*address)} answers with {type(answer).__name__}.")
    return messages.Done(printable(answer.text), answer.jobs)


def _on_this_machine(address: tuple[str, int]) -> socket.socket | None:
    """Connects to the socket of the switch that listens at an address of this machine; None if there is none, or only
    one of another user than the switch's."""
    host, port = address
    try:
        family, _, _, _, (own, *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server((own, 0), family=family).close()  # raises OSError if the address isn't ours
    except OSError:
        return None
    for listening in (own, *_ANYWHERE):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(local_operators.socket_name(str(listening), port))
            if local_operators.user_of(connection) == local_operators.listening_user(str(listening), port):
                return connection
        except OSError:
            pass
        connection.close()
    return None


def _say(connection: socket.socket, command: messages.Command) -> messages.FromSwitch:
    with connection, connection.makefile("rb") as answers:
        try:
            with suppress(BrokenPipeError):  # it has refused this user already, and says so
                connection.sendall(messages.encode(command))
            return messages.decode_from_switch(answers.readline(messages.LINE_BYTES_MAX))
        except (OSError, msgspec.DecodeError) as error:
            raise SwitchUnreachableError(f"The switch of this machine doesn't answer ({error}).") from None
