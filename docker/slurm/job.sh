#!/usr/bin/env bash
# Run a command of this project as a Slurm job. In the project's folder, with its environment on PATH:
#   sbatch --gpus=8 docker/slurm/job.sh dvc repro                                    on one node
#   sbatch --nodes=2 --gpus-per-node=8 --exclusive docker/slurm/job.sh dvc repro     its training on two nodes
#   sbatch --array=1-4 --gpus=1 docker/slurm/job.sh experiment experiments.txt       four experiments, each on its own GPU
# The folder and CL_SCRATCH must be on a file system that all nodes share. Two minutes before its time limit, or on
# `scancel --batch --signal=TERM <job>`, the training saves its state; the job is queued again and resumes.
#SBATCH --job-name=cl
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append
set -euo pipefail
[[ -n ${SLURM_JOB_ID:-} ]] || { echo "this is a Slurm job: run \`sbatch docker/slurm/job.sh ...\`; without Slurm, run \`${*:-dvc repro}\`" >&2; exit 1; }
# shellcheck source=docker/functions.sh
. docker/functions.sh

if ((SLURM_JOB_NUM_NODES > 1)); then
  nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
  first=${CL_FIRST_NODE:-${nodes%%$'\n'*}}
  processes=${CL_PROCESSES:-${SLURM_GPUS_ON_NODE:-1}} # per node
  unset CL_PROCESSES
  export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
  torchrun="torchrun --signals-to-handle=SIGINT --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=$processes \
--rdzv-id=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0} --rdzv-backend=c10d --rdzv-endpoint=$first:$((20000 + SLURM_JOB_ID % 40000))"
  export CL_LAUNCH="srun --kill-on-bad-exit=0 bash -c 'trap \"\" TERM; exec $torchrun \"\$@\"' bash"
fi
docker/entrypoint.sh "$@" &
child=$! code=0
trap 'kill -TERM "$child" || true' TERM
wait_for "$child" || code=$?
# Requeue a stopped job. After a plain `scancel`, it is no longer RUNNING and stays ended. For an array, requeue only this task.
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
if ((code == 143)) && [[ $(squeue --noheader --format %T --jobs "$job") == RUNNING ]]; then
  scontrol requeue "$job"
fi
exit "$code"
