// A 64-bit hash of a sequence of integers, equal on every platform.
#pragma once

#include <concepts>
#include <cstdint>

namespace deepinfer {

class FingerprintHash {
 public:
  // The finaliser of SplitMix64: every input bit reaches every output bit.
  template <std::integral T>
  void mix(T value) {
    std::uint64_t z = state_ + static_cast<std::uint64_t>(value) + 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    state_ = z ^ (z >> 31U);
  }

  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace deepinfer
