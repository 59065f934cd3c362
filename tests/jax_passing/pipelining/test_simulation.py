"""Simulated steps, against times worked out by hand."""

from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jax_passing.errors import UsageError
from jax_passing.partitioning.plan import StageFacts
from jax_passing.partitioning.stages import Piece
from jax_passing.pipelining.schedules import interleaved, one_f_one_b, zb_h1
from jax_passing.pipelining.simulation import simulate
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.sums import predict
from support.pages import blocks, page

FACTS = StageFacts(
    location="",
    compute_s=3.0,
    forward_s=1.0,
    busy_s=3.0,
    flops=0.0,
    params=0,  # the simulation uses the pieces
    again_s=0.0,
    memory_bytes=0.0,
    sent_bytes=0.0,
    sent_count=1,
)
CLUSTER = Cluster(hosts=4, link_gbit=1.0)


@dataclass
class Planned:
    """The attributes of a plan that a simulation uses. All parameters have the same number of elements.

    Attributes:
      leaves: by stage, the parameters that it uses; if there are none, there is nothing to sum.
    """

    facts: list[StageFacts]
    leaves: list[list[int]] | None = None
    elements: int = 0

    @property
    def stages(self):
        leaves = self.leaves or [[]] * len(self.facts)
        return [SimpleNamespace(pieces=[Piece(f"['{leaf}']", leaf) for leaf in own]) for own in leaves]

    @property
    def params_shapes(self):
        return [jax.ShapeDtypeStruct((self.elements,), jnp.float32)] * len(self.facts)


def sum_s(elements):
    return predict(CLUSTER, "passing", elements).time_s


def test_without_sums_a_step_takes_the_schedules_time():
    plan = Planned([FACTS] * 3)
    step = simulate(plan, one_f_one_b(3, 6), CLUSTER)
    assert (step.time_s, step.work_s, step.sums_s) == (pytest.approx(18 + 6), 18, 0)
    assert simulate(plan, zb_h1(3, 6), CLUSTER).time_s == pytest.approx(18 + 2)


def test_sending_between_stages_delays_those_that_wait():
    plan = Planned([replace(FACTS, sent_bytes=125e6)] * 2)  # a second at 1 Gbit/s
    step = simulate(plan, one_f_one_b(2, 1), CLUSTER, stage_link_gbit=1.0)
    assert step.compute_s == pytest.approx(1 + 1 + 3 + 1 + 2)


def test_sums_of_data_parallelism_are_hidden_but_for_the_last():
    elements = 50_000_000
    plan = Planned([FACTS] * 4, [[0], [1], [2], [3]], elements)
    schedule = interleaved(1, 1, 4)
    hidden = simulate(plan, schedule, CLUSTER)
    assert sum_s(elements) < 2  # so that each is over before the next can begin
    assert hidden.compute_s == pytest.approx(12)
    assert hidden.time_s == pytest.approx(12 + sum_s(elements))
    assert hidden.hidden == pytest.approx(0.75)
    apart = simulate(plan, schedule, CLUSTER, overlap=False)
    assert apart.time_s == pytest.approx(12 + 4 * sum_s(elements))
    assert apart.hidden == pytest.approx(0)


def test_sums_share_the_link_of_a_host():
    elements = 100_000_000
    plan = Planned([FACTS] * 4, [[0], [1], [2], [3]], elements)
    step = simulate(plan, interleaved(1, 1, 4), CLUSTER)
    assert sum_s(elements) > 2
    assert step.time_s == pytest.approx(4 + 2 + 4 * sum_s(elements))  # from the first gradient on the link is busy


def test_a_bucket_waits_for_all_of_its_gradients():
    elements = 100_000_000
    plan = Planned([FACTS] * 4, [[0], [1], [2], [3]], elements)
    step = simulate(plan, interleaved(1, 1, 4), CLUSTER, bucket_bytes=8 * elements)
    # The last stage's gradients are a bucket by themselves, as the first one is small. Those of the two stages before
    # are one, which is complete at 10 s.
    assert 6 + sum_s(elements) < 10
    assert step.time_s == pytest.approx(10 + sum_s(2 * elements) + sum_s(elements))


def test_sums_take_processor_time_from_the_computation_beside_them():
    elements = 50_000_000
    cluster = replace(CLUSTER, shared_cores=2)
    one = predict(cluster, "passing", elements)
    assert 0.1 < one.shared_processors_s < one.time_s < 2  # each is over before the next one can begin
    plan = Planned([FACTS] * 4, [[0], [1], [2], [3]], elements)
    step = simulate(plan, interleaved(1, 1, 4), cluster)
    assert step.compute_s == pytest.approx(12 + 3 * one.shared_processors_s)
    assert step.time_s == pytest.approx(step.compute_s + one.time_s)
    assert simulate(plan, interleaved(1, 1, 4), cluster, overlap=False).compute_s == pytest.approx(12)


def test_a_parameter_that_stages_of_a_device_share_is_summed_once():
    elements = 100_000_000
    plan = Planned([FACTS] * 4, [[0], [], [], [0]], elements)
    together = simulate(plan, interleaved(1, 1, 4), CLUSTER)
    assert (together.time_s, together.sums_s) == pytest.approx((12 + sum_s(elements), sum_s(elements)))
    apart = simulate(plan, one_f_one_b(4, 1), CLUSTER)
    assert apart.sums_s == pytest.approx(2 * sum_s(elements))


def test_a_schedule_for_another_plan():
    with pytest.raises(UsageError, match="for 2 stages; the plan has 3"):
        simulate(Planned([FACTS] * 3), one_f_one_b(2, 4), CLUSTER)


def test_the_example_of_the_docs(capsys):
    pairs = pairwise(blocks(page("scale.md")))
    program, printed = next(pair for pair in pairs if "jax_passing.simulate" in pair[0].text)
    exec(compile(program.text, "simulated.py", "exec"), {})
    assert capsys.readouterr().out == printed.text
