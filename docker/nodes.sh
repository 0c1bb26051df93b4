#!/usr/bin/env bash
# Run one command on several nodes that share only the project's folder and a network, such as the pods of a Kubernetes job. The first
# node runs the command, and the processes of its stages are started on all nodes. Start this on each node, in that folder:
#   CL_RUN=name CL_NODES=2 CL_NODE=0 CL_FIRST_NODE=node0.example docker/entrypoint.sh nodes dvc repro
# Each run needs a different CL_RUN. CL_NODE counts from 0 (in Kubernetes: JOB_COMPLETION_INDEX). CL_PORT (29500) is a port of the first
# node, CL_PROCESSES the number of processes per node (default: its GPUs). A lost node can be started again, even the first: its command
# then resumes.
set -euo pipefail

: "${CL_RUN:?a name for this run, the same on all nodes}"
: "${CL_NODES:?the number of nodes}"
: "${CL_FIRST_NODE:?the host name of the first node}"
node=${CL_NODE:-${JOB_COMPLETION_INDEX:?or CL_NODE, the number of this node, counting from 0}}
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=docker/functions.sh
. "$here/functions.sh"
shared=${CL_SCRATCH:-$PWD/scratch}/nodes-$CL_RUN
trap '' TERM # the stages' processes watch CL_STOP instead

start() {
  local stage=$1 processes arguments
  mapfile -d '' -t arguments < "$stage"
  cd "${arguments[0]}"
  processes=$(python -c 'import click; from cl.console import command, launch
click.command()(command.entry_point(lambda: print(launch.processes())))([])')
  unset CL_PROCESSES
  exec torchrun --signals-to-handle=SIGINT --nnodes="$CL_NODES" --node-rank="$node" --nproc-per-node="$processes" \
    --rdzv-id="${stage##*/}" --master-addr="$CL_FIRST_NODE" --master-port="${CL_PORT:-29500}" "${arguments[@]:1}"
}

# Wait for torchrun. Until all nodes have joined, it has no child that could watch CL_STOP.
wait_for_torchrun() {
  while kill -0 "$1" 2> /dev/null; do
    [[ ! -e ${CL_STOP:-} ]] || grep -qsx "PPid:[[:space:]]*$1" /proc/[0-9]*/status || kill -KILL "$1" 2> /dev/null || true
    sleep 0.5
  done
  wait "$1"
}

if [[ ${1:-} == --start ]]; then # the first node's CL_LAUNCH
  stage=$shared/$(date +%s%N)
  printf '%s\0' "$PWD" "${@:2}" > "$stage.partial"
  mv "$stage.partial" "$stage.stage"
  start "$stage.stage" &
  wait_for_torchrun $!
  exit
fi
if ((node == 0)); then
  [[ ! -e $shared/finished ]] || fail "CL_RUN=$CL_RUN is already finished; choose another name"
  mkdir -p "$shared"
  rm -f "$shared"/*.stage
  env -u CL_PROCESSES CL_LAUNCH="env CL_PROCESSES=${CL_PROCESSES:-} $(printf %q "$here/nodes.sh") --start" "$here/entrypoint.sh" "$@"
  touch "$shared/finished"
  exit
fi
child='' last=''
until [[ -e $shared/finished || -e ${CL_STOP:-} ]]; do
  stages=("$shared"/*.stage)
  newest=${stages[-1]}
  if [[ -e $newest && $newest != "$last" ]]; then
    [[ -z $child ]] || kill -KILL "$child" 2> /dev/null || true
    start "$newest" &
    child=$! last=$newest
  fi
  sleep 1
done
[[ -z $child ]] || wait_for_torchrun "$child" || true # the first node reports errors
[[ -e $shared/finished ]]
