"""Operators on the switch's own machine need no key: a Unix socket tells whose process connects.

A connection by TCP from this machine would prove nothing: it may come from a forwarder that root runs for strangers.
"""

import asyncio
import logging
import socket

import msgspec

from jax_passing.config import address_text
from jax_passing.errors import JoinError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import local_operators
from jax_passing.switch.jobs.admission import RefusalError
from jax_passing.switch.operators.operator import Operator

log = logging.getLogger("jax_passing.switch")

COMMAND_S = 10.0


class LocalOperators:
    """Listens for commands of this machine's operators. `operator`: carries them out."""

    def __init__(self, operator: Operator):
        self._operator = operator
        self._own_name = ""
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """Listens from now on. Where the name of the socket is taken the switch works without: it can still be ended by
        signals."""
        self._own_name = address_text(host, port)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(local_operators.socket_name(host, port))
            limit = messages.LINE_BYTES_MAX
            self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=limit)
        except OSError as error:
            listener.close()
            log.warning("operators on this machine need the switch's key: its Unix socket can't be had (%s)", error)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            user = local_operators.user_of(writer.get_extra_info("socket"))
            async with asyncio.timeout(COMMAND_S):
                writer.write(messages.encode(await self._answer(reader, user)))
                await writer.drain()
        except (OSError, ValueError, msgspec.DecodeError) as error:  # TimeoutError is an OSError
            log.debug("an operator on this machine: %s", error)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, user: int) -> messages.Done | messages.Refused:
        who = f"user {user} on the switch's machine"
        try:
            if not local_operators.is_trusted(user):
                raise RefusalError("The operator is the user that runs the switch, or root.")
            # Only now: a service of names may take seconds, and all jobs would wait as often as strangers ask.
            who = f"{local_operators.name_of(user)} on the switch's machine"
            command = messages.decode_from_member(await reader.readline())
            if not isinstance(command, messages.Command):
                raise msgspec.DecodeError(f"{type(command).__name__} isn't a command")
            return self._operator.carry_out(command, who, self._own_name, None)
        except RefusalError as refusal:
            log.warning("refused %s: %s", who, refusal)
            return messages.Refused(JoinError.__name__, str(refusal))
