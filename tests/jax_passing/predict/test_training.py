"""Simulated training, against times worked out by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest

from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.errors import ConfigError
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.models import NAMES, TABLE, Bucket, Model, load
from jax_passing.predict.pace import Pace, Stragglers, mean_step_s, step_ends_s
from jax_passing.predict.sums import Costs, Prediction
from jax_passing.predict.training import Training, train

# Three layers with a gradient of 1 MiB each; a forward pass of a third. One bucket a layer.
MODEL = Model("three", 9.0, (Bucket(5 / 9, 2**20), Bucket(7 / 9, 2**20), Bucket(1.0, 2**20)))
COSTS = Costs("passing", Cluster(4, 2), 0.0, Prediction(1 / 2**20, 1.0, "the host's link"))
TRAINING = Training(model=MODEL, rows=1, flops_per_s=1.0)


def step_s(training, seconds_per_sum):
    return train(training, replace(COSTS, of_byte=replace(COSTS.of_byte, time_s=seconds_per_sum / 2**20))).step_s


def test_sums_travel_while_earlier_layers_compute():
    """9 s of computation. Backward passes of layers end after 5, 7 and 9 s."""
    assert step_s(TRAINING, 1.0) == pytest.approx(10.0)  # the last sum alone is in sight
    assert step_s(TRAINING, 2.0) == pytest.approx(11.0)
    assert step_s(TRAINING, 10.0) == pytest.approx(35.0)  # one after the other from 5 s on
    assert step_s(replace(TRAINING, overlap=False), 1.0) == pytest.approx(12.0)


def test_throughput_and_efficiency():
    found = train(replace(TRAINING, rows=2), COSTS)
    assert found.compute_s == pytest.approx(18.0)
    assert found.rows_per_s == pytest.approx(2 * 4 * 2 / found.step_s)
    assert found.efficiency == pytest.approx(18 / 19)


@pytest.mark.parametrize(
    ("name", "parameters", "gflop_forward"),
    # Multiply-adds count as two operations. Those of images are the publications'; GPT-2 has 2 operations for each
    # parameter of the layers and of the vocabulary, and those of attention, for 1024 tokens.
    [
        ("alexnet", 61_100_840, 2 * 0.72),
        ("vgg16", 138_357_544, 2 * 15.5),
        ("resnet50", 25_557_032, 2 * 4.1),
        ("gpt2-small", 124_439_808, 2 * 1024 * 123.5e-3 + 12 * 4 * 1024**2 * 768e-9),
        ("gpt2-xl", 1_557_611_200, 2 * 1024 * 1.5559e0 + 48 * 4 * 1024**2 * 1600e-9),
    ],
)
def test_the_table_of_models(name, parameters, gflop_forward):
    model = load(name)
    assert model.gradient_bytes == 4 * parameters
    assert model.flops / 3 / 1e9 == pytest.approx(gflop_forward, rel=0.12)
    ready = [bucket.ready for bucket in model.buckets]
    assert ready == sorted(ready)
    assert 0.33 < ready[0] < ready[-1] == 1.0


def test_the_tables_buckets_are_those_of_overlap():
    table = json.loads(TABLE.read_text())
    assert table.pop("bucket_bytes") == DEFAULT_BUCKET_BYTES, "run benchmarks/training/buckets_of_models.py"
    assert table.keys() == set(NAMES)


def paced(pace, stragglers=None, hosts=4, sums_s=1.0):
    """Steps of 3 s, whose sums take `sums_s`."""
    return mean_step_s(pace, hosts, stragglers or Stragglers(), 3.0, 3.0 + sums_s, sums_s)


def test_paces_hide_sums():
    assert paced(Pace()) == 4.0
    assert paced(Pace(delay=1)) == pytest.approx(3.0)  # hidden behind the next step
    assert paced(Pace(delay=1), sums_s=5.0) == pytest.approx(5.0)  # sums one after the other are the bound
    assert paced(Pace(every=4)) == pytest.approx(3.25)  # a quarter of a sum a step


def test_seldom_sums_are_all_counted():
    assert paced(Pace(every=100)) == pytest.approx(3.01)
    assert paced(Pace(every=256)) == pytest.approx(3 + 1 / 256)


def test_parts_travel_one_after_the_other_behind_steps():
    """With diloco(every=4, fragments=2, delay=1): a part starts after each second step, and has a step to arrive."""

    def ends_s(sums_s):
        return step_ends_s(Pace(1, 4, 2), 3, Stragglers(), 8, 2.5, 0.5, sums_s)

    assert ends_s(6.0) == [3.0 * step for step in range(1, 9)]
    assert ends_s(10.0) == [3, 6, 11, 14, 19, 22, 27, 30]
    assert step_ends_s(Pace(every=0), 3, Stragglers(), 8, 2.5, 0.5, 10.0) == ends_s(6.0)


def test_paces_under_stragglers():
    always, in_turns = Stragglers(1, 2.0), Stragglers(1, 2.0, in_turns=True)
    assert paced(Pace(delay=3), always) == pytest.approx(6.0)  # nothing helps against a host that is always slow
    assert paced(Pace(every=8), always) == pytest.approx(6 + 1 / 8)
    # Each host is slow in one of four steps, so none can be faster than 15 s for four steps.
    assert paced(Pace(delay=1), in_turns) == pytest.approx(3.75)
    slower = Stragglers(1, 5.0, in_turns=True)
    assert (15 + 9) / 4 <= paced(Pace(delay=3), slower) < paced(Pace(delay=1), slower) < 15.0
    assert paced(Pace(every=4), in_turns) == pytest.approx((5 * 3.0 + 1) / 4)


def test_stragglers_take_turns():
    slow = [np.flatnonzero(Stragglers(2, 3.0, in_turns=True).factors(5, step) == 3.0).tolist() for step in range(3)]
    assert slow == [[0, 1], [2, 3], [0, 4]]
    assert Stragglers(1, 3.0).factors(3, 7).tolist() == [1.0, 1.0, 3.0]
    assert Stragglers(9, 3.0).factors(2, 7).tolist() == [3.0, 3.0]


def test_synchronous_training_waits_for_the_slowest():
    slow = replace(TRAINING, stragglers=Stragglers(1, 2.0))
    assert step_s(slow, 1.0) == pytest.approx(19.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"rows": 0}, "rows \\(1 or more, not 0\\)"), ({"flops_per_s": 0.0}, "not 0.0")],
)
def test_training_that_cant_be_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        replace(TRAINING, **wrong)


def test_unknown_models_and_stragglers_are_refused():
    with pytest.raises(ConfigError, match="no model 'bert'. Take one of gpt2-small"):
        load("bert")
    with pytest.raises(ConfigError, match="1 or more times as long, not 0.5"):
        Stragglers(1, 0.5)
