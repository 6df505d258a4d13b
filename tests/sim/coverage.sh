#!/bin/sh
# Branches of the scheduler's headers that the C++ programs reach, by clang's source-based coverage. Prints each header
# and ends with 1 below 95 % in all. Usage: coverage.sh [DIRECTORY_OF_FUZZER_INPUTS]
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
engine=$(CDPATH= cd -- "$here/../../templates/engine" && pwd)
least=95
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

compile() {
  program=$1
  shift
  clang++ -std=c++20 -O1 -fprofile-instr-generate -fcoverage-mapping -ffp-contract=off \
    -I "$here/../../templates" -I "$here" "$@" -o "$build/$program"
}

run() {
  program=$1
  shift
  LLVM_PROFILE_FILE="$build/$program-%p.profraw" "$build/$program" "$@" >/dev/null
}

compile votes "$here/vote_check.cpp"
compile calls "$here/fuzz_calls.cpp" "$here/fuzz_engines.cpp" "$here/fuzz_replay.cpp"
compile simulation "$here/engines.cpp" "$here/simulation.cpp"
run votes 1-pauses 1-tight 1-recompute 2-faults 2-prompted 2-burst 2-chunks 2-padded prompt-1 completion-1
run calls --random 1 8000
if [ $# -gt 0 ]; then run calls "$1"/*; fi
run simulation --seeds 0 25

llvm-profdata merge -sparse "$build"/*.profraw -o "$build/all.profdata"
llvm-cov report "$build/votes" -object "$build/calls" -object "$build/simulation" -instr-profile "$build/all.profdata" \
  -show-branch-summary -show-region-summary=false -show-functions=false "$engine" >"$build/report"
# The last four columns are branches, missed branches and their coverage.
awk -v least="$least" '
  BEGIN { print "header branches missed covered" | "column -t" }
  NR == 1 || /^-/ { next }
  { print $1, $(NF - 2), $(NF - 1), $NF | "column -t" }
  $1 == "TOTAL" { total = $NF }
  END {
    close("column -t")
    if (total + 0 < least) { print "branch coverage " total " is below " least "%"; exit 1 }
  }' "$build/report"
