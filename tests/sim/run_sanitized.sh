#!/bin/sh
# The scheduler under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, and its allocations counted;
# about a minute in all. Usage: run_sanitized.sh [SECONDS_OF_SIMULATION [FIRST_SEED]]
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# Unoptimised: compiling costs more than running here. compile NAME "SOURCES" FLAGS...
compile() {
  program=$1
  sources=$2
  shift 2
  objects=
  for source in $sources; do
    g++ -std=c++20 -O0 -g1 -Wall -Wextra -Wconversion -Wshadow -Werror -ffp-contract=off "$@" \
      -I "$here/../../templates" -I "$here/../templates/example" -I "$here" \
      -c "$here/$source.cpp" -o "$build/$program-$source.o"
    objects="$objects $build/$program-$source.o"
  done
  # shellcheck disable=SC2086
  g++ "$@" $objects -o "$build/$program"
}

compile allocations "allocations"
"$build/allocations"
compile threads "threads" -fsanitize=thread -pthread
"$build/threads"
compile verification_driver "verification_driver" -fsanitize=address,undefined -fno-sanitize-recover=all \
  -D_GLIBCXX_ASSERTIONS
"$build/verification_driver" 1000
compile simulation "engines simulation" -fsanitize=address,undefined -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS
"$build/simulation" --seconds "${1:-12}" --seeds "${2:-0}" 1000000
