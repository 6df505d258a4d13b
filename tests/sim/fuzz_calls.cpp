// The entry of libFuzzer: the first byte chooses an engine, the rest are calls on it. Build it with
// -fsanitize=fuzzer, or with fuzz_replay.cpp as a program of its own.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>

#include "fuzz_caller.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const fuzz::Setup& chosen = fuzz::setups()[data[0] % fuzz::setups().size()];
  try {
    fuzz::Caller(chosen.make(), chosen.sizes, std::span(data, size).subspan(1)).run();
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    std::abort();
  }
  return 0;
}
