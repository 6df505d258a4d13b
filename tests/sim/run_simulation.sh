#!/bin/sh
# The simulation at its full size: two processes on seeds of their own, at least 2 * 10^7 rank-steps in all.
# Usage: run_simulation.sh [SEEDS_OF_EACH_PROCESS [FIRST_SEED]]
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
count=${1:-2500}
first=${2:-0}

compile() {
  g++ -std=c++20 -O2 -Wall -Wextra -Wconversion -Wshadow -Werror -ffp-contract=off \
    -I "$here/../../templates" -I "$here" -c "$here/$1.cpp" -o "$build/$1.o"
}
compile engines &
compile simulation
wait $!
g++ "$build/engines.o" "$build/simulation.o" -o "$build/simulation"

"$build/simulation" --seeds "$first" "$count" >"$build/1" &
failed=0
"$build/simulation" --seeds $((first + count)) "$count" >"$build/2" || failed=1
wait $! || failed=1
cat "$build/1" "$build/2"
if [ $failed -ne 0 ]; then
  exit 1
fi
awk '/ seeds, / {seeds += $1; steps += $5; idle += substr($7, 2); seconds = $9 > seconds ? $9 : seconds}
  END {printf "total: %d seeds, %d rank-steps (%d idle), %.1f seconds, 0 violations\n", seeds, steps, idle, seconds}' \
  "$build/1" "$build/2"
