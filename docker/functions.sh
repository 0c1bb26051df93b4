# shellcheck shell=bash
# What the scripts here share.

# One sentence to the user, and the end.
answer() {
  echo "$*" >&2
  exit 1
}

# The exit code of a child, also if a trap has ended `wait` early.
await() {
  local code
  while true; do
    code=0
    wait "$1" || code=$?
    kill -0 "$1" 2> /dev/null || return "$code"
  done
}
