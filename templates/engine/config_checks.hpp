// What a generated config asserts about its tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/engine_types.hpp"

namespace deepinfer {

template <std::size_t N>
constexpr bool strictly_ascending(const std::array<std::int32_t, N>& values) {
  for (std::size_t i = 1; i < N; ++i) {
    if (values[i] <= values[i - 1]) return false;
  }
  return true;
}

// Regions in order, none reaching into the next one or past the end of the slot.
template <std::size_t N>
constexpr bool disjoint_within(const std::array<StateRegion, N>& regions, std::int64_t slot_bytes) {
  std::int64_t end = 0;
  for (const StateRegion& region : regions) {
    if (region.offset < end || region.bytes < 0) return false;
    end = region.offset + region.bytes;
  }
  return end <= slot_bytes;
}

}  // namespace deepinfer
