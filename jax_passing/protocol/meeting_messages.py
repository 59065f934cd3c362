"""This is said by hosts that meet before they join, and to them (docs/train/elastic.md)."""

from typing import Annotated

import msgspec
from msgspec import Meta

from jax_passing.config import LEASE_S, RANKS_MAX, LeaseSeconds, Seconds
from jax_passing.protocol.all_versions import Message
from jax_passing.protocol.message_fields import FactName, Facts, MeetingId, Name, Rank, Reason, ShardSet, Version


class Interruption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host's last epoch ended so: by this `kind` of error, with this text, at these switches, so long ago."""

    kind: FactName
    text: Reason
    switches: Reason
    ago_s: Annotated[float, Meta(ge=0, le=86400)]


class Meet(Message, frozen=True):
    """A host says this first, to the first of its switches, before it joins: I wait to meet the others
    (docs/train/elastic.md).

    The connection is the host's seat in the job, and stays open until its session ends: the others wait for a host with
    a seat. Comes again on it for each meeting, and voids the one before.

    `rank`: the one that it had, or that its launcher gave it. `step`: the last one that it completed, if it has the
    state after it. `meeting`: the last one that it was in, 0 if none, and `hosts` how many of those that were there it
    doesn't know to be lost. `world_size`: how many hosts the job wants, `world_size_min`: the fewest.
    `quorum`: how many of that meeting must be here, lest others of them meet somewhere else. `wait_s`: how long it
    waits for more than the hosts that must be waited for, `deadline_s`: in all. `aside`: it waits at a switch that goes
    before this one, too, and would rather meet there. `rehearses`: it hasn't compiled its programs yet, and does so by
    itself if the job runs without it. `started_as`: the rank that its launcher gave it. `lease_s`, `alike`: as in Join.
    `ready`: else it only says that it lives, and will wait. `dark`: those of its switches, as indices, that don't
    answer, where the others may do. `interruption`: why it meets the others again. A switch where they didn't run
    before knows it by nobody else.
    """

    protocol_version: Version
    job: Name
    instance: Name
    rank: Rank
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    world_size_min: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    deadline_s: Seconds
    wait_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    step: Annotated[int, Meta(ge=0, lt=1 << 62)] | None = None
    meeting: MeetingId = 0
    hosts: Annotated[int, Meta(ge=0, le=RANKS_MAX)] = 0
    quorum: Annotated[int, Meta(ge=0, le=RANKS_MAX)] = 0
    aside: bool = False
    lease_s: LeaseSeconds = LEASE_S
    rehearses: bool = False
    started_as: Rank | None = None
    alike: Facts = msgspec.field(default_factory=dict)
    ready: bool = True
    dark: ShardSet = ()
    interruption: Interruption | None = None


class Rehearse(Message, frozen=True):
    """The switch tells a host that wants to meet the others of a job which runs: compile your programs, as in a job of
    so many hosts, and say Meet again when you are done. Nobody waits for it until then."""

    world_size: Annotated[int, Meta(ge=2, le=RANKS_MAX)]


class Met(Message, frozen=True):
    """The switch tells all hosts that meet their rank and world size.

    `survivors`: the ranks below have the state after `step`, or after the next one; None: nobody has any. `dark`: those
    of their switches that don't answer one of them, or more: they join at the others.
    """

    meeting: MeetingId
    rank: Rank
    world_size: Annotated[int, Meta(ge=1, le=RANKS_MAX)]
    survivors: Annotated[int, Meta(ge=0, le=RANKS_MAX)]
    step: Annotated[int, Meta(ge=0)] | None = None
    dark: ShardSet = ()
