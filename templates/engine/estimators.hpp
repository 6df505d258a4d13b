// What decode steps have cost so far: medians, so that a step disturbed from outside moves nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace deepinfer {

// The middle value, or the mean of the two middle ones; reorders `values`, of which there is at least one.
inline double median(std::span<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

// The last Capacity values.
template <std::size_t Capacity>
class Window {
 public:
  void push(double value) {
    values_[next_] = value;
    next_ = (next_ + 1) % Capacity;
    size_ = std::min(size_ + 1, Capacity);
  }

  void clear() { size_ = next_ = 0; }
  bool full() const { return size_ == Capacity; }

  double middle() const {
    std::array<double, Capacity> copy = values_;
    return median(std::span(copy).first(size_));
  }

 private:
  std::array<double, Capacity> values_{};
  std::size_t size_ = 0;
  std::size_t next_ = 0;
};

// By how much a step takes longer than its graph's entry in the curve, for each token of the graph: the
// median of the last 100 medians of 50 steps each; 0 until 50 steps were seen.
class ForwardRuntimeEstimator {
 public:
  void observe(double excess_per_token) {
    block_.push(excess_per_token);
    if (!block_.full()) return;
    blocks_.push(block_.middle());
    block_.clear();
    slope_ = blocks_.middle();
  }

  double slope() const { return slope_; }

 private:
  Window<50> block_;
  Window<100> blocks_;
  double slope_ = 0;
};

// How long sampling takes: for each number of rows the median of its last 9 times.
template <std::int32_t MaxRows>
class SamplerRuntimeEstimator {
 public:
  SamplerRuntimeEstimator() { source_.fill(kNone); }

  void observe(std::int32_t rows, double milliseconds) {
    if (source_[rows] != rows) serve(rows);
    times_[rows].push(milliseconds);
    medians_[rows] = times_[rows].middle();
  }

  // A number of rows that was never seen takes as long as the nearest smaller one that was, else as the
  // nearest larger one, else 0.
  double milliseconds(std::int32_t rows) const {
    return source_[rows] == kNone ? 0 : medians_[source_[rows]];
  }

 private:
  static constexpr std::int32_t kNone = -1;
  static constexpr auto kCounts = static_cast<std::size_t>(MaxRows) + 1;

  // The first time of `rows`: it stands in for those above it up to the next that was seen, and for those
  // below it that no smaller one serves.
  void serve(std::int32_t rows) {
    for (std::int32_t n = rows - 1; n >= 0 && (source_[n] == kNone || source_[n] > rows); --n)
      source_[n] = rows;
    source_[rows] = rows;
    for (std::int32_t n = rows + 1; n <= MaxRows && source_[n] != n; ++n) source_[n] = rows;
  }

  std::array<Window<9>, kCounts> times_;
  std::array<double, kCounts> medians_{};
  std::array<std::int32_t, kCounts> source_;  // whose median serves each number of rows
};

}  // namespace deepinfer
