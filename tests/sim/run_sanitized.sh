#!/bin/sh
# The scheduler under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, and its allocations counted;
# about a minute in all. Usage: run_sanitized.sh [SECONDS_OF_RANDOM_WORKLOADS [FIRST_SEED]]
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# Unoptimised: compiling costs more than running here.
compile() {
  program=$1
  shift
  g++ -std=c++20 -O0 -g1 -Wall -Wextra -Wconversion -Wshadow -Werror -ffp-contract=off "$@" \
    -I "$here/../../templates" -I "$here/../templates/example" "$here/$program.cpp" -o "$build/$program"
}

compile allocations
"$build/allocations"
compile threads -fsanitize=thread -pthread
"$build/threads"
compile verification_driver -fsanitize=address,undefined -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS
"$build/verification_driver" 1000
compile driver -fsanitize=address,undefined -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS
"$build/driver" "${1:-12}" "${2:-0}"
