"""Trainings whose switch falls silent, alone or with a host, and the time in which the others must go on."""

from jax_passing.errors import DeadlineExceededError, Failure
from simulation.training import LIMIT_S, Training
from simulation.world import ViolationError

LINE_DELAY_S = 0.02
# From the moment at which all may know of it: users are promised 3 s. A host computes for some 0.3 s, at times for 2 s.
TAKEN_OVER_S = 5.0
STEPS_OF_SILENCE = 1000
DARK_S = 100.0  # longer than the others take


def fall_silent(training, switch, random):
    """Stops a switch's process, or its machine."""
    if random.random() < 0.5:
        switch.pause(DARK_S)
    else:
        switch.go_down(is_noticed=False)


def begun(seed, **layout):
    """Returns a training whose hosts have all taken a step."""
    lease_s = (1.5, 10.0)[seed % 2]
    own = {"hosts": 3 + seed % 3, "line_delay_s": LINE_DELAY_S, "lease_s": lease_s, "steps": STEPS_OF_SILENCE}
    training = Training(seed, **own, **layout)
    if not training.run_until(lambda: sum(bool(host.step) for host in training.hosts) == training.wanted, LIMIT_S):
        raise ViolationError("it doesn't begin")
    training.is_calm = False
    return training, training.world.random, lease_s


def silence(seed):
    """Draws a training in which a switch is lost, whose hosts end once they have gone on."""
    training = a_machine_is_lost(seed) if seed % 4 == 3 else a_switch_is_lost(seed)
    for host in training.alive():
        host.die()
    return training


def a_switch_is_lost(seed):
    """The switch, which has a standby, is lost, perhaps with a host, and later another host is killed."""
    training, random, lease_s = begun(seed, standby=True)
    what, victim = random.choice(["silent", "late", "late", "killed"]), random.choice(training.hosts)
    with_host = random.choice(["nobody", "killed", "silent", "stopped"])
    survivors = [host for host in training.hosts if with_host == "nobody" or host is not victim]
    busy_s = 0.0 if what == "late" else random.choice([0.0, 10.0])
    survivors[-1].busy_s = busy_s
    if what == "killed":
        training.switches[0].go_down()
    else:
        fall_silent(training, training.switches[0], random)
    match with_host:
        case "killed":
            victim.die()
        case "silent":
            victim.die(is_noticed=False)
        case "stopped":
            victim.stop(DARK_S)
    if what == "late":  # sums have a deadline that comes before the lease is over
        for host in survivors:
            host.ranks.fail(Failure(DeadlineExceededError.__name__, "a sum took too long"))
    late_s = busy_s + (lease_s if what == "silent" else 0.0) + (lease_s / 4 if with_host != "nobody" else 0.0)
    went_on(training, survivors, late_s, f"{what} switch, {with_host} host")
    if len(survivors) > 2:
        survivors.pop().die()
        went_on(training, survivors, 0.0, "a host was killed while the switch was dark")
    if with_host == "stopped":
        victim.die()
    return training


def a_machine_is_lost(seed):
    """Each host has a switch, and there is no standby: the others use theirs, and all of them when it is back."""
    training, random, lease_s = begun(seed, shards=3 + seed % 3)
    number, is_silent = random.randrange(training.wanted), random.random() < 0.5
    victim, switch = training.hosts[number], training.switches[number]
    survivors = [host for host in training.hosts if host is not victim]
    switch.go_down(is_noticed=not is_silent)
    victim.die(is_noticed=not is_silent)
    went_on(training, survivors, lease_s * (1.25 if is_silent else 0.25), f"machine {number}")
    if {host.met.dark for host in survivors} != {(number,)}:
        raise ViolationError(f"they don't use the switches that answer: {survivors[0].met}")
    switch.begin()
    training.start(victim.rank)
    went_on(training, training.alive(), lease_s / 4, f"machine {number} came back", newcomers=1)
    if any(host.met.dark for host in training.alive()):
        raise ViolationError(f"they don't use the switch that is back: {survivors[0].met}")
    return training


def went_on(training, hosts, late_s, what, newcomers=0):
    """Raises ViolationError if these hosts, and no others, don't go on together in time. `late_s`: they may learn of it
    so late."""
    meetings = {host.met.meeting for host in hosts if host.met is not None}

    def has_gone_on(host):
        met = host.met
        is_new = host.phase == "running" and met.meeting not in meetings
        return is_new and met.world_size == met.survivors + newcomers == len(hosts)

    if not training.run_until(lambda: all(map(has_gone_on, hosts)), late_s + TAKEN_OVER_S):
        states = [(host.number, host.phase, host.end) for host in hosts]
        raise ViolationError(f"{what}: the others don't go on in time: {states}")
