# shellcheck shell=bash
# Functions shared by the scripts in this folder.

# Print one sentence for the user and exit with an error.
fail() {
  echo "$*" >&2
  exit 1
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
