#!/usr/bin/env bash
# The entry point of the image and of Slurm jobs: `help`, `init`, a stage, or any other command.
#
# On SIGTERM it creates the file CL_STOP, and the stages' processes on all nodes save their state. DVC and the launchers ignore the
# signal; otherwise they would exit before the state is saved.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=docker/functions.sh
. "$here/functions.sh"

help() {
  cat <<'T'
cl: efficient contrastive pretraining, measured

  docker run --rm --gpus all --shm-size 8g -u "$(id -u):$(id -g)" -v "$PWD:$PWD" -w "$PWD" cl COMMAND

in a clone of the project, or in an empty folder after `init`. COMMAND is one of

  init                             copy the project from this image into the current folder
  dvc repro                        the whole experiment of params.yaml, to report/index.html
  dvc exp run -S loss=dclw         another experiment; `dvc exp show` lists them
  check | prepare | weights | pretrain | evaluate NAME | transfer NAME | analyze NAME | baseline NAME | report | plan
                                   one stage (try `pretrain --help`), as `python -m pipeline.<stage>`
  cl embed FOLDER --to FILE        features; `cl --help` lists what else works on an encoder's file
  experiment FILE [NUMBER]         one line of a file of experiments, in a separate clone
  nodes COMMAND                    one command on several nodes; start this on each of them
  anything else                    bash, python, git, dvc ..., unchanged

See docker/README.md of the project for more.
T
}

need_project() {
  local mount="-v \"\$PWD:\$PWD\" -w \"\$PWD\""
  [[ -w . ]] || fail "user $(id -u) cannot write to $PWD; start the container in your clone, as its owner, with $mount" \
    "-u \"\$(id -u):\$(id -g)\" (rootless Podman: --userns=keep-id)"
  [[ -e dvc.yaml ]] || fail "no dvc.yaml in $PWD; start the container in a clone of the project with $mount," \
    "or create one in an empty folder with \`init\`"
}

# Choose writable folders for DVC's state and temporary files, even if the image is read-only.
set_folders() {
  local scratch
  scratch=$(realpath -m "${CL_SCRATCH:-scratch}")
  [[ -z ${CL_SCRATCH:-} ]] || export CL_SCRATCH=$scratch
  [[ ${DVC_SITE_CACHE_DIR:-} != /tmp/dvc ]] || export DVC_SITE_CACHE_DIR=$scratch/dvc # keep file hashes beyond the container
  if [[ ! -w ${TMPDIR:-/tmp} ]]; then
    export TMPDIR=$scratch/tmp HOME=$scratch/tmp
    mkdir -p "$TMPDIR"
  fi
}

# Copy the project into the current folder; start over if an earlier `init` was interrupted. A mounted volume may contain lost+found.
init() {
  [[ ! -e dvc.yaml || -e .cl-init ]] || return 0
  [[ ${CL_IMAGE:-} ]] || fail "\`init\` works only inside the image; use git clone here"
  [[ -w . ]] && [[ -e .cl-init || -z $(find . -mindepth 1 ! -name lost+found -print -quit 2> /dev/null) ]] ||
    fail "$PWD must be a clone of the project or an empty folder that user $(id -u) can write to"
  touch .cl-init
  cp -R "$here/../." .
  git init -q -b main
  printf '%s\n' lost+found .cl-init > .git/info/exclude
  git add -A
  git diff --cached --quiet || git commit -q -m "cl, from its image"
  rm .cl-init
}

# Lock the folder. DVC identifies its processes by process ids, which are the same in every container.
lock_folder() {
  local lock=.dvc/tmp/entrypoint code=0
  mkdir -p .dvc/tmp
  exec 9<> "$lock"
  flock --nonblock --conflict-exit-code 75 9 || code=$?
  ((code != 75)) || fail "$(< "$lock") is working in $PWD; wait for it, or run this in another clone"
  [[ ! -s $lock ]] || rm -f .dvc/tmp/rwlock # left by a killed process
  echo "${HOSTNAME:-another container}" > "$lock"
  trap '(($? > 128)) || : > .dvc/tmp/entrypoint' EXIT
}

supervise() {
  local child code=0 stopped=''
  export CL_STOP=${CL_STOP:-$(mktemp -u "${TMPDIR:-/tmp}/cl-stop-XXXXXXXX")}
  trap 'stopped=1 && touch "$CL_STOP"' TERM INT
  [[ $1 != dvc ]] || lock_folder
  (trap '' TERM INT && exec "$@") <&0 &
  child=$!
  wait_for "$child" || code=$?
  if [[ $stopped ]]; then
    rm -f "$CL_STOP"
    ((code == 0)) || code=143
  fi
  exit "$code"
}

find_libcuda /usr/lib/*-linux-gnu/libcuda.so.1 /usr/lib64/libcuda.so.1

case ${1:-help} in
  help | --help | -h) help ;;
  init) init ;;
  nodes | experiment)
    need_project
    set_folders
    supervise "$here/$1.sh" "${@:2}"
    ;;
  check | prepare | weights | pretrain | evaluate | transfer | analyze | baseline | report | plan)
    if [[ ${*: -1} == --help ]]; then cd "$here/.." && exec python -m "pipeline.$1" --help; fi
    need_project
    set_folders
    supervise python -m "pipeline.$1" "${@:2}"
    ;;
  cl)
    set_folders
    supervise "$@"
    ;;
  dvc)
    need_project
    set_folders
    if [[ " $* " =~ " repro "|" run " ]]; then supervise "$@"; fi
    exec "$@"
    ;;
  *)
    command -v "$1" > /dev/null || fail "unknown command $1; \`help\` lists the commands"
    exec "$@"
    ;;
esac
