// Steps that were scheduled and whose results are not committed yet.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/engine_types.hpp"

namespace deepinfer {

// `serial` names one occupancy of `place`: when the sequence has left, its row's results are dropped.
struct FrameRow {
  std::uint64_t id = 0;
  std::uint64_t serial = 0;
  std::int32_t place = 0;
  std::int32_t q_len = 0;
  std::int32_t reach = 0;  // queries that the device may give the row at most, where it splits them again
  bool samples = false;
};

template <class Cfg>
struct Frame {
  static constexpr std::int32_t kCapacity = std::max(Cfg::kMaxNumPrompts, Cfg::kMaxNumSeqs);

  std::uint64_t step_id = 0;
  StepKind kind = StepKind::None;
  bool provisional = false;  // the device splits the verification lengths again
  std::int32_t num_rows = 0;
  std::array<FrameRow, static_cast<std::size_t>(kCapacity)> rows{};

  void clear(StepKind new_kind) {
    kind = new_kind;
    provisional = false;
    num_rows = 0;
  }
  void add(const FrameRow& row) { rows[num_rows++] = row; }
};

// Two frames are enough: the step that runs and the one that is scheduled behind it.
template <class Cfg>
class FrameQueue {
 public:
  static constexpr std::int32_t kDepth = 2;

  std::int32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const Frame<Cfg>& operator[](std::int32_t index) const { return frames_[(first_ + index) % kDepth]; }
  const Frame<Cfg>& oldest() const { return frames_[first_]; }

  // Steps are numbered in order, so those from the oldest one on wait for their results.
  bool is_open(std::uint64_t step_id) const { return size_ > 0 && step_id >= frames_[first_].step_id; }

  bool has_rows(StepKind kind) const {
    for (std::int32_t i = 0; i < size_; ++i) {
      if ((*this)[i].kind == kind && (*this)[i].num_rows > 0) return true;
    }
    return false;
  }

  // The frame to fill for the next step; `push` makes it uncommitted. Needs size() < kDepth.
  Frame<Cfg>& next() { return frames_[(first_ + size_) % kDepth]; }
  const Frame<Cfg>& next() const { return frames_[(first_ + size_) % kDepth]; }
  void push(std::uint64_t step_id) {
    next().step_id = step_id;
    ++size_;
  }
  void pop() {
    first_ = (first_ + 1) % kDepth;
    --size_;
  }

 private:
  std::array<Frame<Cfg>, kDepth> frames_{};
  std::int32_t first_ = 0;
  std::int32_t size_ = 0;
};

}  // namespace deepinfer
