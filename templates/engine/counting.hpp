// Sorting 16-bit keys, and selecting among them, by counting bytes: the cost does not depend on the keys'
// order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace deepinfer {

// How often each value of a byte occurs.
using ByteCounts = std::array<std::uint32_t, 256>;

namespace detail {

// Where the first key of each byte goes when the greatest come first.
inline void to_offsets_descending(ByteCounts& counts) {
  std::uint32_t offset = 0;
  for (std::size_t byte = counts.size(); byte-- > 0;) {
    const std::uint32_t count = counts[byte];
    counts[byte] = offset;
    offset += count;
  }
}

}  // namespace detail

// Sort `keys`, the greatest first; `buffer` is scratch of at least their number.
inline void sort_descending(std::span<std::uint16_t> keys, std::span<std::uint16_t> buffer) {
  ByteCounts low{};
  ByteCounts high{};
  for (const std::uint16_t key : keys) {
    ++low[key & 0xffU];
    ++high[key >> 8U];
  }
  detail::to_offsets_descending(low);
  detail::to_offsets_descending(high);
  for (const std::uint16_t key : keys) buffer[low[key & 0xffU]++] = key;
  for (const std::uint16_t key : buffer.first(keys.size())) keys[high[key >> 8U]++] = key;
}

// The rank-th greatest of `keys`; rank counts from 1 and is at most their number.
inline std::uint16_t nth_greatest(std::span<const std::uint16_t> keys, std::size_t rank) {
  ByteCounts counts{};
  for (const std::uint16_t key : keys) ++counts[key >> 8U];
  // The byte in which the rank falls; `rank` becomes its rank among the keys with that byte.
  const auto locate = [&counts, &rank] {
    std::uint32_t byte = 255;
    for (; counts[byte] < rank; --byte) rank -= counts[byte];
    return byte;
  };
  const std::uint32_t high = locate();
  counts = {};
  for (const std::uint16_t key : keys) {
    if (key >> 8U == high) ++counts[key & 0xffU];
  }
  return static_cast<std::uint16_t>(high << 8U | locate());
}

}  // namespace deepinfer
