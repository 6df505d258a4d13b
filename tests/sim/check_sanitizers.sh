#!/bin/sh
# The sanitizers find what is planted, and end the program with an error when they do. Usage: check_sanitizers.sh
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# The flags of run_sanitized.sh.
compile() {
  program=$1
  shift
  g++ -std=c++20 -O0 -g1 "$@" -I "$here/../../templates" "$here/planted.cpp" -o "$build/$program"
}

# Program, fault, what the report must say.
reports() {
  status=0
  "$build/$1" "$2" >"$build/report" 2>&1 || status=$?
  if [ "$status" -eq 0 ] || ! grep -q "$3" "$build/report"; then
    echo "$2 under $1: status $status, and not the report '$3'" >&2
    cat "$build/report" >&2
    exit 1
  fi
  echo "$2: found ($3), status $status"
}

compile memory -fsanitize=address,undefined -fno-sanitize-recover=all
compile threads -fsanitize=thread -pthread
"$build/memory" none
"$build/threads" none
reports memory overrun 'out of bounds'
reports memory stale 'heap-use-after-free'
reports memory overflow 'signed integer overflow'
reports threads race 'data race'
