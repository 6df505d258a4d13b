// What a group of NORMAL ranks must decide, written from docs/scheduler.md section 3 and apart from the code
// under test: the checker compares every decision with it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/engine_types.hpp"

namespace votecheck {

using deepinfer::Action;
using deepinfer::Point;
using deepinfer::Record;

// A rule of the design that does not hold, by its number.
struct Broken : std::logic_error {
  using std::logic_error::logic_error;
};

inline void require(bool holds, const char* rule) {
  if (!holds) throw Broken(rule);
}

// 128 bits of what decides. Kept apart from the scheduler's own hash: a fault there must not hide here.
class Digest {
 public:
  void add(std::uint64_t value) {
    low_ = scramble(low_ ^ value) + 0x9e3779b97f4a7c15U;
    high_ = scramble(high_ + value * 0xd6e8feb86659fd93U) ^ 0x2545f4914f6cdd1dU;
  }
  void add(const Record& record) {
    for (const std::int32_t value : record) add(static_cast<std::uint64_t>(value));
  }

  std::uint64_t low() const { return low_; }
  std::uint64_t high() const { return high_; }
  auto operator<=>(const Digest&) const = default;

 private:
  static std::uint64_t scramble(std::uint64_t x) {
    x = (x ^ (x >> 32U)) * 0xd6e8feb86659fd93U;
    x = (x ^ (x >> 29U)) * 0xff51afd7ed558ccdU;
    return x ^ (x >> 32U);
  }

  std::uint64_t low_ = 0;
  std::uint64_t high_ = 1;
};

inline Record maximum(const std::vector<Record>& records) {
  Record result = records.front();
  for (const Record& record : records)
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = std::max(result[i], record[i]);
  return result;
}

// One rank's state as it counts in a decision.
struct Local {
  bool want = false;
  bool decodable = false;
  bool unfinished = false;
  bool pending = false;
  bool error = false;
  bool work = false;  // a PROMPT or COMPLETION rank has something to run
};

// Records, element by element as docs/formats.md lists them.
inline Record published(const Local& local, std::int32_t graph) {
  return {local.decodable, local.unfinished, local.pending, local.error, local.work, graph};
}
inline Record first_round(const Local& local) {
  return {local.want, !local.want, local.unfinished, local.decodable, local.pending, local.error};
}

template <class Cfg>
class NormalRule {
 public:
  static constexpr bool kVotes = true;

  // `flags` is the delivered record, or null.
  Action begin(const Record* flags) {
    if (flags != nullptr) {
      if ((*flags)[3] != 0) return Action::Fail;
      group_idle_ = (*flags)[0] == 0;
    }
    at_any_ = group_idle_ || due(Cfg::kPrefillAnyAttemptInterval) || (in_burst() && burst_at_any_);
    counter_ = decode_steps_;
    const bool point = at_any_ || due(Cfg::kPrefillAttemptInterval) || in_burst();
    point_ = at_any_ ? Point::Any : point ? Point::All : Point::None;
    return point ? Action::Vote : decode();
  }

  // After the first round; Vote means that a prefill is attempted.
  Action first(const Record& reduced) {
    first_ = reduced;
    if (reduced[5] != 0) return Action::Fail;
    if (reduced[2] == 0 && reduced[4] == 0) {
      *this = NormalRule();
      return Action::Done;
    }
    const bool go = at_any_ ? reduced[0] != 0 : reduced[1] == 0;
    return go ? Action::Vote : no_prefill();
  }

  Action second(const Record& reduced) {
    if (reduced[0] == 0) return no_prefill();
    if (burst_ == 0) burst_at_any_ = at_any_;
    burst_ = std::min(burst_ + 1, Cfg::kPrefillBurst);
    decode_steps_ = 0;
    return Action::Prefill;
  }

  // Of the current step: what it may vote on, and the counter of decode steps before it (I7).
  Point point() const { return point_; }
  std::int64_t counter() const { return counter_; }

  void mix_into(Digest& digest) const {
    digest.add(static_cast<std::uint64_t>(decode_steps_ > 0));
    digest.add(static_cast<std::uint64_t>(decode_steps_ % Cfg::kPrefillAttemptInterval));
    digest.add(static_cast<std::uint64_t>(decode_steps_ % Cfg::kPrefillAnyAttemptInterval));
    digest.add(static_cast<std::uint64_t>(burst_));
    digest.add(burst_ > 0 && burst_at_any_);
    digest.add(group_idle_);
  }

 private:
  bool in_burst() const { return 0 < burst_ && burst_ < Cfg::kPrefillBurst; }
  bool due(std::int32_t interval) const { return decode_steps_ > 0 && decode_steps_ % interval == 0; }

  Action decode() {
    ++decode_steps_;
    burst_ = 0;
    return Action::Decode;
  }

  Action no_prefill() {
    if (!group_idle_ || first_[3] != 0) return decode();
    burst_ = 0;
    return first_[0] != 0 || first_[4] != 0 ? Action::Idle : Action::Fail;
  }

  std::int32_t decode_steps_ = 0;
  std::int32_t burst_ = 0;
  bool burst_at_any_ = false;
  bool group_idle_ = true;
  bool at_any_ = false;
  Point point_ = Point::None;
  std::int32_t counter_ = 0;
  Record first_{};
};

// Of a group of PROMPT or COMPLETION ranks: they follow the record, which they exchange after every step,
// IDLE included.
template <class Cfg>
class ExchangeRule {
 public:
  static constexpr bool kVotes = false;

  Action begin(const Record* flags) {
    if (flags == nullptr) return Action::Idle;
    if ((*flags)[3] != 0) return Action::Fail;
    if ((*flags)[4] != 0) {
      return Cfg::kEngineType == deepinfer::EngineType::Prompt ? Action::Prefill : Action::Decode;
    }
    if ((*flags)[2] != 0) return Action::Idle;
    return (*flags)[1] != 0 ? Action::Fail : Action::Done;
  }

  Action first(const Record&) { throw Broken("I1: only NORMAL ranks vote"); }
  Action second(const Record&) { throw Broken("I1: only NORMAL ranks vote"); }

  Point point() const { return Point::None; }
  std::int64_t counter() const { return 0; }
  void mix_into(Digest&) const {}
};

}  // namespace votecheck
