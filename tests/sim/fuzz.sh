#!/bin/sh
# libFuzzer over the call sequence, with AddressSanitizer and UndefinedBehaviorSanitizer. What it finds worth keeping is
# left in DIRECTORY; an input that breaks a rule is written to the working directory, and fuzz_replay.cpp runs it again.
# Usage: fuzz.sh SECONDS DIRECTORY
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

clang++ -std=c++20 -O1 -g1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -ffp-contract=off \
  -I "$here/../../templates" -I "$here" "$here/fuzz_calls.cpp" "$here/fuzz_engines.cpp" -o "$build/fuzz"
"$build/fuzz" -seed=1 -max_len=2048 -len_control=0 -print_final_stats=1 -max_total_time="$1" "$2"
