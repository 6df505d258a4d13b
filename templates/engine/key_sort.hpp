// A stable sort by small integer keys that allocates nothing and does not depend on the keys' order.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace deepinfer {

// Up to Capacity items with a key each. Bytes are sorted one by one from the lowest, as many as the keys
// differ in.
template <std::size_t Capacity>
class KeySort {
 public:
  struct Entry {
    std::uint32_t key;
    std::int32_t item;
  };

  void add(std::uint32_t key, std::int32_t item) {
    entries_[size_++] = {key, item};
    least_ = std::min(least_, key);
    greatest_ = std::max(greatest_, key);
  }

  // The least key first, equal ones in the order in which they were added.
  std::span<const Entry> sorted() {
    Entry* from = entries_.data();
    Entry* to = buffer_.data();
    const std::uint32_t span = size_ == 0 ? 0 : greatest_ - least_;
    for (int shift = 0; shift < static_cast<int>(std::bit_width(span)); shift += 8) {
      std::array<std::uint32_t, 256> offsets{};
      const auto byte = [this, shift](const Entry& entry) { return ((entry.key - least_) >> shift) & 0xffU; };
      for (std::size_t i = 0; i < size_; ++i) ++offsets[byte(from[i])];
      std::uint32_t offset = 0;
      for (std::uint32_t& count : offsets) offset += std::exchange(count, offset);
      for (std::size_t i = 0; i < size_; ++i) to[offsets[byte(from[i])]++] = from[i];
      std::swap(from, to);
    }
    return {from, size_};
  }

 private:
  std::size_t size_ = 0;
  std::uint32_t least_ = UINT32_MAX;
  std::uint32_t greatest_ = 0;
  std::array<Entry, Capacity> entries_;
  std::array<Entry, Capacity> buffer_;
};

}  // namespace deepinfer
