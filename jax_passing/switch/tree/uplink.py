"""A rack's switch as a member of its parent: the way there, for one epoch of a job."""

import logging
from functools import partial

import msgspec

from jax_passing import _native
from jax_passing.config import address_text
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Outside, Timer
from jax_passing.switch.data_planes.data_plane import DataPlane
from jax_passing.switch.jobs.admission import least
from jax_passing.switch.jobs.epoch_states import State
from jax_passing.switch.jobs.epochs import Epoch, Member, ParentListener
from jax_passing.switch.tree.parent_conversation import ParentConversation
from jax_passing.switch.tree.parent_greeting import CONNECT_TIMEOUT_S
from jax_passing.switch.tree.questions import Questions

log = logging.getLogger("jax_passing.switch")

RETRY_S = 0.25


class Uplink:
    """Lasts until the epoch is over. While that forms, a parent that is away may come back: it is called again.

    Attributes:
      name: the parent's address, for people.
    """

    def __init__(
        self,
        parent: tuple[str, int],
        epoch: Epoch,
        listener: ParentListener,
        questions: Questions,
        data_plane: DataPlane,
        outside: Outside,
        secret: str,
        key: bytes | None,
    ):
        """`secret`: our switch's instance, as only the parent may know it. `key`: the job's, if this switch has one."""
        self._parent = parent
        self._epoch = epoch
        self._listener = listener
        self._key = key
        self._outside = outside
        self.name = address_text(*parent)
        self._new_conversation = partial(
            ParentConversation, self, epoch, listener, questions, data_plane, outside, secret, key, self._on_lost
        )
        self._conversation = self._new_conversation()
        self._retry: Timer | None = None
        self._problem = "it hasn't answered yet"

    def start(self) -> None:
        self._outside.connect(self._parent, CONNECT_TIMEOUT_S, self._conversation, self._epoch.job.name, self._key)

    def _on_lost(self, problem: str) -> None:
        self._problem = problem
        log.info("%s: parent at %s: %s", self._epoch, self.name, problem)
        self._conversation = self._new_conversation()
        self._listener.parent_lost(self._epoch, problem)
        if self._epoch.state is not State.OVER:
            self._retry = self._outside.call_later(RETRY_S, self.start)

    def close(self) -> None:
        """The epoch is over."""
        if self._retry is not None:
            self._retry.cancel()
        self._conversation.end()

    @property
    def is_connected(self) -> bool:
        return self._conversation.is_joined

    @property
    def data_address(self) -> tuple[str, int]:
        return self._conversation.data_address

    @property
    def socket(self) -> _native.UdpSocket | None:
        return self._conversation.socket

    def send(self, message: messages.Message) -> bool:
        """Never waits. False if the parent has stopped reading. Without a connection it is told when there is one."""
        return self._conversation.send(message)

    def tell_of(self, member: Member, rank: int) -> None:
        """A rank of ours is here."""
        join = member.ranks[rank]
        wait_s = max(0.01, member.join_until[rank] - self._outside.now())
        link_gbit = least(join.link_gbit, self._conversation.link_gbit)
        self.send(msgspec.structs.replace(join, wait_s=wait_s, link_gbit=link_gbit))

    def explain(self, text: str) -> str:
        """Why hosts wait in vain: `text` says for what."""
        if not self.is_connected:
            return (
                f"The switch at {self._epoch.own_name} can't reach its parent, the switch at {self.name} "
                f"({self._problem}): {text}. Is that switch running, and is --parent its address?"
            )
        return f"The switch at {self.name}, parent of the one at {self._epoch.own_name}, doesn't answer: {text}."

    def check_group(self, is_heard: bool) -> None:
        """While the epoch runs: whether results come by multicast."""
        self._conversation.check_group(is_heard)
