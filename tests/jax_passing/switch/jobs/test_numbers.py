"""A switch never numbers two epochs alike: pairs of a job's and an epoch's number don't repeat."""

from types import SimpleNamespace

import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs import numbers
from jax_passing.switch.jobs.admission import RefusalError
from jax_passing.switch.jobs.numbers import ID_MAX, Numbers
from support.switch.control import scenario


def beginning(first):
    """Numbers that begin after this one."""
    return Numbers(SimpleNamespace(random_bits=lambda count: first))


def test_numbers_of_jobs_wrap_and_are_never_zero_or_taken():
    drawn = beginning(ID_MAX - 1)
    assert [drawn.new_job({1}) for _ in range(3)] == [ID_MAX, 2, 3]
    with pytest.raises(RefusalError, match="restart it"):
        drawn.new_job(range(1, ID_MAX + 1))


def test_numbers_of_epochs_begin_anywhere():
    drawn = beginning(ID_MAX - 1)
    assert [drawn.new_epoch(7) for _ in range(3)] == [ID_MAX, 1, 2]


def test_a_job_that_has_had_all_epochs_has_no_more(monkeypatch):
    monkeypatch.setattr(numbers, "ID_MAX", 5)
    drawn, pairs = beginning(3), set()
    while True:
        try:
            job = drawn.new_job(())
        except RefusalError:
            break
        while not drawn.is_used_up(job):
            pairs.add((job, drawn.new_epoch(job)))
    assert pairs == {(job, epoch) for job in range(1, 6) for epoch in range(1, 6)}


@scenario()
async def test_a_job_goes_on_by_another_number_when_it_has_had_all_epochs(switch):
    pairs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers, "ID_MAX", 2)
        for _ in range(4):
            (host,), welcome = await switch.job(1)
            pairs.append((welcome.job_id, welcome.epoch))
            host.send(messages.Leave())
            assert await host.receive() == messages.Bye()
    assert pairs == [(1, 1), (1, 2), (2, 1), (2, 2)]
