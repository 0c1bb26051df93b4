#!/usr/bin/env bash
# A command of this project on the nodes of a Slurm job; its pretraining spreads over all of them. From the top folder:
#   sbatch --nodes=2 --gpus-per-node=8 --time=24:00:00 docker/slurm.sh dvc repro
# The project and CL_SCRATCH lie on a file system that all nodes share. Pretraining that is told to stop (two minutes before the
# time limit, or by `scancel --signal=TERM <job>`) saves itself, and the job is queued again and goes on from there.
# Other stages are cut by the time limit.
#SBATCH --job-name=cl
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append
set -euo pipefail

export CL_SCRATCH=${CL_SCRATCH:-$PWD/scratch}
export CL_STOPPED=$CL_SCRATCH/stopped-$SLURM_JOB_ID
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${CL_FIRST_NODE:-${nodes%%$'\n'*}}
# torchrun itself does not listen to SIGTERM, of which it may get several: its processes do, and end by themselves.
processes=${CL_PROCESSES:-${SLURM_GPUS_ON_NODE:-1}} # on each node
unset CL_PROCESSES
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
torchrun="torchrun --signals-to-handle=SIGINT --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=$processes \
--rdzv-id=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0} --rdzv-backend=c10d --rdzv-endpoint=$first:$((20000 + SLURM_JOB_ID % 40000))"
export CL_LAUNCH="srun --kill-on-bad-exit=0 bash -c 'trap \"\" TERM; exec $torchrun \"\$@\"' bash"

mkdir -p "$CL_SCRATCH"
rm -f "$CL_STOPPED"
"$@" &
child=$! code=0
trap 'scancel --signal=TERM "$SLURM_JOB_ID"' TERM # to the processes that srun has started
wait "$child" || code=$?
while kill -0 "$child" 2>/dev/null; do # a trap ends `wait` early
  code=0
  wait "$child" || code=$?
done
if [[ -e $CL_STOPPED ]]; then
  rm "$CL_STOPPED"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
