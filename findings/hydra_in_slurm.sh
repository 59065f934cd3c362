#!/usr/bin/env bash
# MPICH's launcher (hydra 4.0.2) starts its proxies by srun inside a job of Slurm's, and hands all variables on: each
# process sees the SLURM_PROCID of its node's proxy, and the SLURM_NTASKS of mpiexec's own environment. So
# `mpiexec -n 4 -ppn 2` on two nodes gives SLURM_PROCID 0, 0, 1, 1 of 2, and only PMI_RANK and PMI_SIZE tell the truth.
# jax.distributed.initialize() reads Slurm's variables alone. jax_passing takes PMI's where hydra has set them
# (MPI_LOCALNRANKS), and gives such a run no name by itself. Seen with Slurm 22.05.8 (Debian 12); needs root.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "run this as root: slurmd starts tasks as other users" >&2; exit 1; }
folder=$(mktemp -d)
pids=()
finish() {
  [ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$folder"
}
trap finish EXIT
mkdir -p "$folder"/{debs,root,state,node1,node2}
chmod 755 "$folder"
(cd "$folder/debs" && apt-get download -qq {slurmd,slurmctld,slurm-client,slurm-wlm-basic-plugins,libslurm38}="22.05.*" libhwloc15 libmunge2 {mpich,libmpich12}="4.0.2*") 2>/dev/null
for deb in "$folder"/debs/*.deb; do dpkg -x "$deb" "$folder/root"; done

# A cluster of two nodes on this machine, without authentication, at free ports of the loopback interface.
root=$folder/root plugins=$folder/root/usr/lib/x86_64-linux-gnu/slurm-wlm
export PATH=$root/usr/bin:$root/usr/sbin:$PATH LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$plugins
export SLURM_CONF=$folder/slurm.conf
read -r port0 port1 port2 < <(python3 -c '
import socket
free = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in free))')
cat >"$SLURM_CONF" <<CONF
ClusterName=finding
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$port0
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
NodeName=node1 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$port1 CPUs=8
NodeName=node2 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$port2 CPUs=8
PartitionName=all Nodes=node1,node2 Default=YES State=UP
CONF
slurmctld-wlm -D -c >"$folder/log" 2>&1 & pids+=($!)
for node in node1 node2; do
  slurmd-wlm -D -N $node -d "$root/usr/sbin/slurmstepd-wlm" >>"$folder/log" 2>&1 & pids+=($!)
done
for _ in $(seq 60); do
  [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 2 ] && break
  sleep 0.5
done
sbatch --version
mpiexec.hydra --version | sed -n 's/ *Version: */MPICH hydra /p'
cat >"$folder/job.sh" <<'JOB'
#!/bin/bash
timeout 60 mpiexec.hydra -n 4 -ppn 2 \
  sh -c 'echo "PMI_RANK $PMI_RANK of $PMI_SIZE, SLURM_PROCID $SLURM_PROCID of $SLURM_NTASKS"'
JOB
timeout 120 sbatch --wait --nodes=2 --ntasks-per-node=1 --output="$folder/out" "$folder/job.sh" >/dev/null
sort "$folder/out"
expected=$(for rank in 0 1 2 3; do echo "PMI_RANK $rank of 4, SLURM_PROCID $((rank / 2)) of 2"; done)
[ "$(sort "$folder/out")" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
