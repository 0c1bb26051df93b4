#!/usr/bin/env bash
# Run one experiment of a list in a separate clone, so that several can run at once:
#   docker/entrypoint.sh experiment experiments.txt 3        line 3 contains the arguments of `dvc exp run`: -S loss=dclw -S seed=1
# The default number is SLURM_ARRAY_TASK_ID, or JOB_COMPLETION_INDEX + 1. The clone is at the commit CL_COMMIT (default: HEAD), shares
# DVC's cache, and is removed at the end; `dvc exp show` then lists the experiment. The same command resumes an interrupted experiment
# and skips a finished one.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
# shellcheck source=docker/functions.sh
. "$here/functions.sh"

file=${1:?a file with one experiment per line}
number=${2:-${SLURM_ARRAY_TASK_ID:-$((${JOB_COMPLETION_INDEX:?or the line number} + 1))}}
line=$(sed -n "${number}p" "$file")
[[ -n $line ]] || fail "$file contains no line $number"
words=$(xargs printf '%s\n' <<< "$line") || fail "$file, line $number: unmatched quotes"
mapfile -t arguments <<< "$words"
name=$(sed -E 's/(^| )-S +/ /g; s/[^A-Za-z0-9.]+/-/g; s/\.\.+/-/g; s/^[-.]+//; s/-$//' <<< "$line")
name=${name:0:60}-$(sha256sum <<< "$line" | cut -c 1-7)

project=$(git rev-parse --show-toplevel)
commit=$(git rev-parse --verify "${CL_COMMIT:-HEAD}^{commit}")
experiment=refs/exps/${commit:0:2}/${commit:2}/$name
finished() { git -C "$1" rev-parse --quiet --verify "$experiment" > /dev/null; }
if finished .; then
  echo "$name is already finished"
  exit
fi

export CL_SCRATCH=${CL_SCRATCH:-$project/scratch} CL_RAW
CL_RAW=$(realpath -m "${CL_RAW:-$project/data/raw}")
clone=$CL_SCRATCH/experiments/${commit:0:7}-$name
mkdir -p "$CL_SCRATCH/experiments"
exec 8> "$clone.lock"
code=0
flock --nonblock --conflict-exit-code 75 8 || code=$?
((code != 75)) || fail "$name is already running in another process"
if [[ ! -e $clone ]]; then
  [[ ${CL_COMMIT:-} || -z $(git status --porcelain --untracked-files=no -- . ':!dvc.lock' ':!params.yaml') ]] ||
    fail "an experiment starts from a commit; commit your changes in $project first, or set CL_COMMIT to another commit"
  rm -rf "$clone.partial"
  git clone --quiet --no-checkout "$project" "$clone.partial"
  git -C "$clone.partial" checkout --quiet "$commit"
  [[ ! -e $project/.dvc/config.local ]] || cp "$project/.dvc/config.local" "$clone.partial/.dvc/"
  dvc --cd "$clone.partial" cache dir --quiet --local "$(dvc cache dir)"
  mv "$clone.partial" "$clone"
fi
cd "$clone"
export DVC_SITE_CACHE_DIR=$clone/.dvc/tmp/site # removed with the clone
finished . || "$here/entrypoint.sh" dvc exp run --name "$name" "${arguments[@]}" || exit 1 # DVC's 255 would stop xargs
git -C "$project" fetch --quiet "$clone" "$experiment:$experiment"
rm -rf "$clone" "$clone.lock"
