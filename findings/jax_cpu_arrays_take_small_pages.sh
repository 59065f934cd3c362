#!/usr/bin/env bash
# JAX on CPUs takes memory for each result from malloc, and gives it back when the array goes. From 32 MiB on, glibc
# maps it anew each time, so the system fills 4 KB pages with zeros as they are first written: a jitted x + 1 of 64 MiB
# has 16,384 page faults, and about 600 ns of system time a KB, several times what the addition takes. Where huge pages
# are for who asks ("madvise"), glibc.malloc.hugetlb=1 in GLIBC_TUNABLES (glibc 2.35 or newer) makes it 300 faults and
# 110 to 240 ns. Seen with jaxlib 0.10.2 on Debian 12. jax_passing asks for huge pages where lax.psum over its switch
# has results, but can't for what else a program computes.
set -euo pipefail
grep -q '\[madvise\]' /sys/kernel/mm/transparent_hugepage/enabled || {
  echo "huge pages aren't for who asks on this system"
  exit 0
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
cat >"$folder/add.py" <<'PYTHON'
import resource

import jax
import jax.numpy as jnp

x = jnp.ones(16 << 20, jnp.float32)
add = jax.jit(lambda x: x + 1)
x = add(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF)
for _ in range(20):
    x = add(x).block_until_ready()
after = resource.getrusage(resource.RUSAGE_SELF)
print((after.ru_minflt - before.ru_minflt) // 20, round((after.ru_stime - before.ru_stime) / 20 / 65536 * 1e9))
PYTHON
export JAX_PLATFORMS=cpu
read -r small small_ns < <("$folder/venv/bin/python" "$folder/add.py")
read -r huge huge_ns < <(GLIBC_TUNABLES=glibc.malloc.hugetlb=1 "$folder/venv/bin/python" "$folder/add.py")
echo "as it is: $small page faults, $small_ns ns of system time a KB; with glibc.malloc.hugetlb=1: $huge and $huge_ns"
((small > 16000 && huge < 2000)) || {
  echo "the behaviour has changed"
  exit 1
}
