# shellcheck shell=bash
# Functions shared by the scripts in this folder.

# Print one sentence for the user and exit with an error.
fail() {
  echo "$*" >&2
  exit 1
}

# Triton finds libcuda through the linker's cache, which nobody can refresh in a read-only image. If the cache lacks
# it, name the folder of the first given file that exists.
find_libcuda() {
  local file
  [[ -z ${TRITON_LIBCUDA_PATH:-} && $(PATH=$PATH:/sbin ldconfig -p 2> /dev/null) != *libcuda.so.1* ]] || return 0
  for file in "$@"; do
    if [[ -e $file ]]; then
      export TRITON_LIBCUDA_PATH=${file%/*}
      return
    fi
  done
}

# Wait for a child, even if a trap interrupts `wait`, and return its exit code.
wait_for() {
  local code
  while true; do
    code=0
    wait "$1" || code=$?
    kill -0 "$1" 2> /dev/null || return "$code"
  done
}
