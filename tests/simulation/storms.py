"""Trainings in which anything is lost at any time, drawn from seeds."""

from collections import Counter

from jax_passing.protocol import control_messages as messages
from simulation.runner import what_was_raised
from simulation.silence import silence
from simulation.training import STRAGGLES_MAX_S, Training


def storm(seed):
    """Anything at any time. Hosts that are lost are started again, some of them. In one of five nothing happens but
    that two hosts are lost, the second while another one comes, which may compile for long."""
    two_are_lost = seed % 5 == 3
    layout = {"standby": seed % 2 == 0, "shards": 3 if seed % 5 == 1 else 1}
    training = Training(
        seed,
        hosts=2 + seed // 2 % 3,
        least=1 + seed // 6 % 2,
        straggling=0.01,
        compiling=0.8 if two_are_lost else 0.3,
        **layout,
    )
    random = training.world.random
    if two_are_lost:
        training.world.call_later(random.uniform(3.0, 6.0), lambda: lose(training))
        return training
    for _ in range(random.randint(1, 5)):
        training.world.call_later(random.uniform(0, 20.0), lambda: strike(training))
    return training


def lose(training, again=True):
    """One that runs dies. Another one takes its place, and meanwhile one more dies."""
    random, running = training.world.random, [host for host in training.hosts if host.phase == "running"]
    if len(running) < 2:
        return
    (host := random.choice(running)).die()
    if again:
        training.start(host.rank)
        training.world.call_later(random.uniform(1.0, 3.0), lambda: lose(training, again=False))


def strike(training):
    random, alive = training.world.random, training.alive()
    if not alive:
        return
    if training.has_state and random.random() < 0.3:
        training.start(random.randrange(training.wanted), random.choice(["wire", "program", "meet"]))
    host, what = random.choice(alive), random.random()
    if what < 0.5:
        host.die() if what < 0.4 else put_out(training, host)
        if random.random() < 0.8:
            training.world.call_later(random.uniform(0, 5.0), lambda: training.start(host.rank))
    elif what < 0.7:
        training.is_calm = False
        host.stop(random.uniform(0.01, STRAGGLES_MAX_S))
    elif what < 0.8:
        switch = random.choice(training.switches)
        training.is_calm = False
        switch.go_down(is_noticed=random.random() < 0.7)
        training.world.call_later(random.uniform(0, 5.0), switch.begin)
    elif what < 0.85:
        training.is_calm = False
        random.choice(training.switches).pause(random.uniform(0.1, STRAGGLES_MAX_S))
    elif what < 0.93:
        for other in random.sample(alive, random.randint(1, len(alive))):
            part(training, other, random.randrange(len(training.switches)), random.uniform(0.1, STRAGGLES_MAX_S))
    else:
        training.cut(host, random.randrange(len(training.switches)), random.uniform(0.1, 10.0))


def put_out(training, host):
    """The operator of a switch puts a host out that runs there. One that doesn't run dies."""
    switch = training.switch_of(*host.epoch[0]) if host.phase == "running" else None
    if switch is None:
        host.die()
        return
    host.is_put_out = True
    command = messages.Command(messages.PROTOCOL_VERSION, "end", job="training", rank=host.rank)
    switch.process.plane.operator.carry_out(command, "who tests", "the switch", None)


def part(training, host, switch, for_s):
    """Nothing goes from one to the other any more, and nobody is told."""
    training.is_calm = False
    host, switch = host.process.machine, training.switches[switch]
    host.block(switch, for_s)
    switch.block(host, for_s)


def attempt(seed: int) -> tuple[str, dict]:
    """Runs a training in a storm, or one whose switch falls silent. Returns what is wrong with it, if anything, and
    counts."""
    training, wrong = None, ""
    try:
        training = silence(seed // 4) if seed % 4 == 3 else storm(seed)
        training.run()
    except Exception as error:
        wrong = what_was_raised(error)
    if training is None:
        return wrong, {}
    ends = Counter(f"end: {(host.end or 'hangs').partition(':')[0]}" for host in training.hosts)
    return wrong, {"steps": sum(host.step or 0 for host in training.hosts), "lines": training.world.lines, **ends}
