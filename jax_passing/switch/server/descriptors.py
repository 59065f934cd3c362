"""The limit of this process's open files, connections among them, is read and raised here."""

import logging
import resource

from jax_passing.errors import ConfigError
from jax_passing.switch.jobs.quotas import CONNECTIONS_MAX

log = logging.getLogger("jax_passing.switch")

# Each connection to a rack's switch may belong to a job of its own. For each job the switch needs a connection to the
# parent, a socket for packets, and a multicast group.
PER_CONNECTION, PER_CONNECTION_BELOW_A_PARENT = 1, 4
# Beside connections there are 65 queues of the software data plane (switch/job_queues.h), a device's files, up to 100
# connections that the event loop accepts before we look at them, and those that are closed while something is still
# being sent, for up to 10 s.
BESIDE = 512
CONNECTIONS_MIN = 64  # as many as the hosts of one job


def connections_that_fit(has_parent: bool) -> int:
    """Raises this process's limit on open files as far as is needed and allowed, and returns for how many connections
    that is enough. Raises ConfigError if those are too few."""
    each = PER_CONNECTION_BELOW_A_PARENT if has_parent else PER_CONNECTION
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX * each + BESIDE
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    files = wanted if soft == resource.RLIM_INFINITY else max(soft, allowed)
    connections = min(CONNECTIONS_MAX, (files - BESIDE) // each)
    advice = f"Raise the limit of open files to {wanted} (ulimit -Hn; LimitNOFILE= of a systemd unit)."
    if connections < CONNECTIONS_MIN:
        raise ConfigError(f"The switch may open {files} files, too few for the connections of hosts. {advice}")
    if connections < CONNECTIONS_MAX:
        log.warning("the switch may open %d files, so it takes %d connections at once. %s", files, connections, advice)
    return connections
