#!/usr/bin/env bash
# What the image starts, and what a Slurm job starts: `help`, `init`, a stage, or any command.
#
# Stopped by SIGTERM, it makes the file CL_STOP, and the processes of the stages, on all nodes, save what they have. DVC and
# launchers between here and there do not hear the signal: they would end before that is done.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=docker/functions.sh
. "$here/functions.sh"

help() {
  cat <<'T'
cl: efficient contrastive pretraining, measured

  docker run --rm --gpus all --shm-size 8g -u "$(id -u):$(id -g)" -v "$PWD:$PWD" -w "$PWD" cl COMMAND

in a clone of the project, or in an empty folder, which `init` makes one. COMMAND is

  init                             put the project, as it is in this image, into the current folder
  dvc repro                        the whole experiment of params.yaml, to report/index.html
  dvc exp run -S loss=dclw         another experiment; `dvc exp show` lists them
  prepare | pretrain | evaluate NAME | transfer NAME | analyze NAME | baseline NAME | report | export
                                   one stage (try `pretrain --help`), as `python -m pipeline.<stage>`
  experiment FILE [NUMBER]         one line of a file of experiments, in a clone of its own
  nodes COMMAND                    one command on several nodes, of which each starts this
  anything else                    as it is: bash, python, git, dvc

More in docker/README.md of the project.
T
}

need_project() {
  local mount="-v \"\$PWD:\$PWD\" -w \"\$PWD\""
  [[ -w . ]] || answer "user $(id -u) cannot write to $PWD: start the container in your clone, as its owner, with $mount" \
    "-u \"\$(id -u):\$(id -g)\" (rootless Podman: --userns=keep-id)"
  [[ -e dvc.yaml ]] || answer "no dvc.yaml in $PWD: start the container in a clone of the project with $mount," \
    "or make an empty folder one with \`init\`"
}

# Places for what DVC and others keep, also where no folder of the image can be written to.
places() {
  local scratch
  scratch=$(realpath -m "${CL_SCRATCH:-scratch}")
  [[ -z ${CL_SCRATCH:-} ]] || export CL_SCRATCH=$scratch
  [[ ${DVC_SITE_CACHE_DIR:-} != /tmp/dvc ]] || export DVC_SITE_CACHE_DIR=$scratch/dvc # hashes of files, which the image's /tmp forgets
  if [[ ! -w ${TMPDIR:-/tmp} ]]; then
    export TMPDIR=$scratch/tmp HOME=$scratch/tmp
    mkdir -p "$TMPDIR"
  fi
}

# Again, where it was cut short. A volume of its own may have a lost+found.
init() {
  [[ ! -e dvc.yaml || -e .cl-init ]] || return 0
  [[ ${CL_IMAGE:-} ]] || answer "\`init\` is what the image does; here use git clone"
  [[ -w . ]] && [[ -e .cl-init || -z $(find . -mindepth 1 ! -name lost+found -print -quit 2> /dev/null) ]] ||
    answer "$PWD must be an empty folder that user $(id -u) can write to, or a clone of the project"
  touch .cl-init
  cp -R "$here/../." .
  git init -q -b main
  printf '%s\n' lost+found .cl-init > .git/info/exclude
  git add -A
  git diff --cached --quiet || git commit -q -m "cl, from its image"
  rm .cl-init
}

# DVC keeps its processes apart by their ids, which are the same in every container; so here by a lock on the folder.
alone() {
  local lock=.dvc/tmp/entrypoint code=0
  mkdir -p .dvc/tmp
  exec 9<> "$lock"
  flock --nonblock --conflict-exit-code 75 9 || code=$?
  ((code != 75)) || answer "$(< "$lock") is at work in $PWD: wait for it, or run this in another clone"
  [[ ! -s $lock ]] || rm -f .dvc/tmp/rwlock # of one that was killed
  echo "${HOSTNAME:-another container}" > "$lock"
  trap '(($? > 128)) || : > .dvc/tmp/entrypoint' EXIT
}

supervise() {
  local child code=0 stopped=''
  export CL_STOP=${CL_STOP:-$(mktemp -u "${TMPDIR:-/tmp}/cl-stop-XXXXXXXX")}
  trap 'stopped=1 && touch "$CL_STOP"' TERM INT
  [[ $1 != dvc ]] || alone
  (trap '' TERM INT && exec "$@") <&0 &
  child=$!
  await "$child" || code=$?
  if [[ $stopped ]]; then
    rm -f "$CL_STOP"
    ((code == 0)) || code=143
  fi
  exit "$code"
}

case ${1:-help} in
  help | --help | -h) help ;;
  init) init ;;
  nodes | experiment)
    need_project
    places
    supervise "$here/$1.sh" "${@:2}"
    ;;
  prepare | pretrain | evaluate | transfer | analyze | baseline | report | export)
    if [[ ${*: -1} == --help ]]; then cd "$here/.." && exec python -m "pipeline.$1" --help; fi
    need_project
    places
    supervise python -m "pipeline.$1" "${@:2}"
    ;;
  dvc)
    need_project
    places
    if [[ " $* " =~ " repro "|" run " ]]; then supervise "$@"; fi
    exec "$@"
    ;;
  *)
    command -v "$1" > /dev/null || answer "there is no command $1 here; \`help\` says what there is"
    exec "$@"
    ;;
esac
