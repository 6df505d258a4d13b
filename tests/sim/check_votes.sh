#!/bin/sh
# Explores every state of the groups of vote_check.cpp; about half a minute. Usage: check_votes.sh [GROUP ...]
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

g++ -std=c++20 -O2 -Wall -Wextra -Wconversion -Wshadow -Wno-missing-field-initializers -Werror -ffp-contract=off \
  -I "$here/../../templates" "$here/vote_check.cpp" -o "$build/vote_check"
"$build/vote_check" "$@"
