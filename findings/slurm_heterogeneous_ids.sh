#!/usr/bin/env bash
# The parts of a heterogeneous job of Slurm's have ids of their own (squeue shows 2+0 and 2+1; SLURM_JOB_ID_HET_GROUP_1
# is 3). But all of their tasks see the leader's SLURM_JOB_ID; steps of all parts are counted by the leader, so that no
# two have the same SLURM_STEP_ID; and a step over several parts numbers its tasks through all of them. So jax_passing
# names a run by SLURM_JOB_ID and SLURM_STEP_ID there, too. Seen with Slurm 22.05.8 (Debian 12); needs root.
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
(cd "$folder/debs" && apt-get download -qq {slurmd,slurmctld,slurm-client,slurm-wlm-basic-plugins,libslurm38}="22.05.*" libhwloc15 libmunge2) 2>/dev/null
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
cat >"$folder/job.sh" <<'JOB'
#!/bin/bash
#SBATCH --nodes=1 --ntasks=1
#SBATCH hetjob
#SBATCH --nodes=1 --ntasks=2
show='echo "$0: step $SLURM_STEP_ID of the leader: $([ $SLURM_JOB_ID = $SLURM_JOB_ID_HET_GROUP_0 ] && echo yes)," \
  "task $SLURM_PROCID of $SLURM_NTASKS"'
for groups in 0,1 0 1; do timeout 60 srun --overlap --het-group=$groups sh -c "$show" "parts $groups" | sort; done
JOB
$inside timeout 120 sbatch --wait --output="$folder/out" "$folder/job.sh" >/dev/null
cat "$folder/out"
expected=$(
  for task in 0 1 2; do echo "parts 0,1: step 0 of the leader: yes, task $task of 3"; done
  echo "parts 0: step 1 of the leader: yes, task 0 of 1"
  for task in 0 1; do echo "parts 1: step 2 of the leader: yes, task $task of 2"; done
)
[ "$(cat "$folder/out")" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
