#!/bin/sh
# Random workloads on the scheduler under AddressSanitizer and UndefinedBehaviorSanitizer; under a minute in all.
# Usage: run_sanitized.sh [SECONDS [FIRST_SEED]]
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
# Unoptimised: compiling costs more than running here.
g++ -std=c++20 -O0 -g1 -Wall -Wextra -Wconversion -Wshadow -Werror -ffp-contract=off \
  -fsanitize=address,undefined -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS \
  -I "$here/../../templates" "$here/driver.cpp" -o "$build/driver"
"$build/driver" "${1:-15}" "${2:-0}"
