"""A host that comes to a job which runs compiles its programs before the others wait for it."""

import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_passing
from jax_passing.errors import HostJoinedError, translate
from jax_passing.host import rehearsal
from jax_passing.host.control.joining import Joining
from jax_passing.host.control.loop import Loop
from support.switch.in_process import settings_of, until

ELASTIC = {"world_size": 2, "world_size_min": 1}
VALUES = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5000)), jnp.float32)


class Other:
    """Another process's host, without sums."""

    def __init__(self, running, **changes):
        self._loop = Loop()
        self._loop.instance = "another process"
        settings = settings_of(running, 0, **ELASTIC, join_deadline_s=1.0, **changes)
        self._joining = Joining(self._loop, settings, len(jax.local_devices()))
        self.joined = self.join(None)

    def join(self, step):
        self.joined = self._loop.wait(lambda *outcomes: self._joining.join(step, (), *outcomes))
        return self.joined

    @property
    def failure(self):
        return self.joined.ranks.failure

    def die(self):
        self._loop.call(self._joining.close)

    def end(self):
        self.die()
        self._loop.close()


@pytest.fixture
def other(running, monkeypatch, request):
    """The job runs with this host, and this process hasn't compiled anything. The parameter is more settings."""
    monkeypatch.setattr(rehearsal, "_has_compiled", False)
    one = Other(running, **getattr(request, "param", {}))
    yield one
    one.end()


def init(running, **changes):
    return jax_passing.init(running.address, rank=0, **ELASTIC, **changes)


def over_axis(function):
    return jax.jit(jax.vmap(lambda x: function(x, "d"), axis_name="d"))


def test_a_newcomer_compiles_what_it_then_runs_and_the_others_go_on(running, other, caplog):
    mean, first = over_axis(jax_passing.pmean), over_axis(jax_passing.broadcast)
    with pytest.raises(ZeroDivisionError), init(running) as session:
        assert session.is_rehearsing
        assert "rank=1 world_size=2" in repr(session)
        assert repr(session).endswith("(rehearses)>")
        assert (session.step, session.survivors) == (None, 0), "as if the job began now"
        np.testing.assert_array_equal(first(VALUES)[1], VALUES[0])
        np.testing.assert_allclose(mean(VALUES)[0], (VALUES[0] + VALUES[1]) / 4, atol=1e-6)
        assert jax_passing.process_sum(7) == 7
        jax_passing.barrier()
        jax_passing.on_rank_zero(lambda: pytest.fail("this is another host's to do"))
        with pytest.raises(HostJoinedError, match=r"call session\.rejoin"), translate():
            for _ in range(1000):
                mean(VALUES).block_until_ready()
                time.sleep(0.02)
        assert isinstance(session.error, HostJoinedError)
        assert session.stats()["sums_completed"] > 10
        assert other.failure is None
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(lambda: (until(lambda: other.failure), other.join(4)))
            assert session.rejoin(12) == 4, "its own steps don't count"
            assert again.result()[1].survivors == 1
        assert not session.is_rehearsing
        assert (session.rank, session.world_size, session.survivors, session.step) == (1, 2, 1, 4)
        with jax.log_compiles():
            first(VALUES)  # waits for the other host
            mean(VALUES)
        assert "compilation" not in caplog.text
        _ = 1 // 0


def test_who_has_compiled_already_joins_at_once(running, other):
    rehearsal.note_job()
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(lambda: (until(lambda: other.failure), other.join(4)))
        session = init(running)
        again.result()
    assert (session.is_rehearsing, session.survivors, session.step) == (False, 1, 4)


def test_a_program_that_ends_before_it_has_joined_hears_so_and_harms_nobody(running, other):
    with pytest.raises(HostJoinedError, match="ended before it joined job 'test'"), init(running):
        over_axis(jax_passing.pmean)(VALUES)
    with pytest.raises(ZeroDivisionError), init(running) as session:
        assert session.is_rehearsing, "nothing is compiled yet"
        _ = 1 // 0
    assert other.failure is None


def test_a_job_that_is_over_meanwhile_begins_anew(running, other):
    with init(running, join_deadline_s=2) as session:
        assert session.is_rehearsing
        other.die()
        assert session.rejoin(3) is None
        assert (session.rank, session.world_size, session.survivors) == (0, 1, 0)
        over_axis(jax_passing.pmean)(VALUES).block_until_ready()


@pytest.mark.parametrize("other", [{"strategy": "flat"}], indirect=True)
def test_every_strategy_rehearses(running, other):
    """Devices have ranks of their own with this one."""
    with pytest.raises(HostJoinedError), init(running, strategy="flat") as session:
        assert session.device_ranks == len(jax.local_devices())
        mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec("d")
        total = jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=spec, out_specs=spec)
        np.testing.assert_array_equal(jax.jit(total)(jnp.ones(8)), 8)
