// Sums of the greatest of many 16-bit keys: bounds after one pass, exact sums after sorting only a part of
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/counting.hpp"

namespace deepinfer {

// Capacity: the most keys.
template <std::size_t Capacity>
class GreatestSums {
  static_assert(Capacity < (1U << 24U), "counts and sums share a word");

 public:
  struct Bounds {
    std::int64_t low;
    std::int64_t high;
  };

  // Counts keys by their high byte. The least ones beyond `number` of them are zeros and do not count. `keys`
  // must outlive this object.
  GreatestSums(std::span<const std::uint16_t> keys, std::int32_t number) : keys_(keys) {
    std::array<std::uint64_t, kBins> packed{};
    for (const std::uint16_t key : keys) packed[key >> 8U] += kOne + key;
    counts_[0] = 0;
    sums_[0] = 0;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      const std::uint64_t both = packed[kBins - 1 - bin];
      counts_[bin + 1] = counts_[bin] + static_cast<std::int32_t>(both >> kSumBits);
      sums_[bin + 1] = sums_[bin] + static_cast<std::int64_t>(both & (kOne - 1));
    }
    counts_.back() = number;
  }

  // Of the sum of the `number` greatest keys; `number` must not fall from call to call.
  Bounds bounds(std::int32_t number) {
    while (counts_[bin_ + 1] < number) ++bin_;
    if (number == counts_[bin_ + 1]) return {sums_[bin_ + 1], sums_[bin_ + 1]};
    const std::int64_t inside = number - counts_[bin_];
    const auto least = static_cast<std::int64_t>((255 - bin_) << 8U);
    return {sums_[bin_] + inside * least, sums_[bin_] + inside * (least + 255)};
  }

  // Sort as many keys as tell the sums of `first` to `last` of them.
  void resolve(std::int32_t first, std::int32_t last) {
    std::size_t top = 0;
    while (counts_[top + 1] < first) ++top;
    std::size_t bottom = top;
    while (counts_[bottom + 1] < last) ++bottom;
    const auto least = static_cast<std::uint32_t>((255 - bottom) << 8U);
    const auto span = static_cast<std::uint32_t>(((bottom - top + 1) << 8U) - 1);
    std::size_t size = 0;
    for (const std::uint16_t key : keys_) {
      sorted_[size] = key;
      size += key - least <= span ? 1 : 0;
    }
    sort_descending(std::span(sorted_).first(size), buffer_);
    skipped_ = counts_[top];
    base_ = sums_[top];
  }

  // After `resolve`: how many of the greatest keys need no order, and their sum. Less than `first`, unless it
  // is 0.
  std::int32_t skipped() const { return skipped_; }
  std::int64_t base() const { return base_; }
  // After `resolve`: the rank-th greatest key, counted from 0, for ranks from `skipped()` to below `last`.
  std::uint16_t key(std::int32_t rank) const { return sorted_[rank - skipped_]; }

 private:
  static constexpr std::size_t kBins = 256;
  static constexpr unsigned kSumBits = 40;
  static constexpr std::uint64_t kOne = std::uint64_t{1} << kSumBits;

  std::span<const std::uint16_t> keys_;
  // Number and sum of the keys in the bins before each, the greatest keys first.
  std::array<std::int32_t, kBins + 1> counts_;
  std::array<std::int64_t, kBins + 1> sums_;
  std::size_t bin_ = 0;
  std::int32_t skipped_ = 0;
  std::int64_t base_ = 0;
  // One entry more than there are keys: what does not belong is overwritten by the next key.
  std::array<std::uint16_t, Capacity + 1> sorted_;
  std::array<std::uint16_t, Capacity> buffer_;
};

}  // namespace deepinfer
