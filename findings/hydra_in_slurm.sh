#!/usr/bin/env bash
# MPICH's launcher (hydra 4.0.2) starts its proxies by srun inside a job of Slurm's, and hands all variables on: each
# process sees the SLURM_PROCID of its node's proxy, and the SLURM_NTASKS of mpiexec's own environment. So
# `mpiexec -n 4 -ppn 2` on two nodes gives SLURM_PROCID 0, 0, 1, 1 of 2, and only PMI_RANK and PMI_SIZE tell the truth.
# jax.distributed.initialize() reads Slurm's variables alone. jax_passing takes PMI's where hydra has set them
# (MPI_LOCALNRANKS), and gives such a run no name by itself. Seen with Slurm 22.05.8 (Debian 12); needs root.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "run this as root: slurmd starts tasks as other users" >&2; exit 1; }
folder=$(mktemp -d)
namespace=slurm-$$
pids=()
finish() {
  [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  ip netns delete $namespace 2>/dev/null || true
  rm -rf "$folder"
}
trap finish EXIT
mkdir -p "$folder"/{debs,root,state,node1,node2}
chmod 755 "$folder"
(cd "$folder/debs" && apt-get download -qq {slurmd,slurmctld,slurm-client,slurm-wlm-basic-plugins,libslurm38}="22.05.*" libhwloc15 libmunge2 {mpich,libmpich12}="4.0.2*") 2>/dev/null
for deb in "$folder"/debs/*.deb; do dpkg -x "$deb" "$folder/root"; done

# A cluster of two nodes without authentication. Slurm's daemons and srun listen on all addresses, so it has a network
# namespace of its own with nothing but a loopback interface: nobody else reaches it.
ip netns add $namespace
ip -n $namespace link set lo up
ip -n $namespace address add 192.0.2.1/32 dev lo  # with 127.0.0.1 alone, getaddrinfo finds no address (AI_ADDRCONFIG)
inside="nsenter --net=/run/netns/$namespace"  # "ip netns exec" would hide /sys/fs/cgroup
root=$folder/root plugins=$folder/root/usr/lib/x86_64-linux-gnu/slurm-wlm
export PATH=$root/usr/bin:$root/usr/sbin:$PATH LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$plugins
export SLURM_CONF=$folder/slurm.conf
cat >"$SLURM_CONF" <<CONF
ClusterName=finding
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=6817
SlurmUser=root
AuthType=auth/none
CredType=cred/none
PluginDir=$plugins
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/%n
SlurmdPidFile=$folder/%n.pid
SlurmctldPidFile=$folder/ctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=6818 CPUs=8
NodeName=node2 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=6819 CPUs=8
PartitionName=all Nodes=node1,node2 Default=YES State=UP
CONF
$inside slurmctld-wlm -D -c >"$folder/log" 2>&1 & pids+=($!)
for node in node1 node2; do
  $inside slurmd-wlm -D -N $node -d "$root/usr/sbin/slurmstepd-wlm" >>"$folder/log" 2>&1 & pids+=($!)
done
for _ in $(seq 60); do
  [ "$($inside sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 2 ] && break
  sleep 0.5
done
sbatch --version
mpiexec.hydra --version | sed -n 's/ *Version: */MPICH hydra /p'
cat >"$folder/job.sh" <<'JOB'
#!/bin/bash
timeout 60 mpiexec.hydra -n 4 -ppn 2 \
  sh -c 'echo "PMI_RANK $PMI_RANK of $PMI_SIZE, SLURM_PROCID $SLURM_PROCID of $SLURM_NTASKS"'
JOB
$inside timeout 120 sbatch --wait --nodes=2 --ntasks-per-node=1 --output="$folder/out" "$folder/job.sh" >/dev/null
sort "$folder/out"
expected=$(for rank in 0 1 2 3; do echo "PMI_RANK $rank of 4, SLURM_PROCID $((rank / 2)) of 2"; done)
[ "$(sort "$folder/out")" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
