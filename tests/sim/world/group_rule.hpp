// What a group of ranks does next, by the rules, from what its ranks published; and the meeting point of its
// collectives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/engine_types.hpp"
#include "world/basics.hpp"
#include "world/limits.hpp"

namespace deepinfer::sim {

enum class Course : std::uint8_t { Vote, Attempt, Prefill, Decode, Idle, Done, Error, Stalled };

// One object for all ranks: if their counters differ, some rank deviates from it.
class GroupRule {
 public:
  explicit GroupRule(const Limits& limits) : limits_(limits) {}

  // Positions in the records.
  enum Flag : std::size_t { kDecodable, kUnfinished, kPending, kError, kWork, kGraph };
  enum Ballot : std::size_t { kWant, kDecline, kUnfinishedNow, kDecodableNow, kPendingNow, kErrorNow };

  Course begin(const Record* flags) {
    before = c;
    point = Point::None;
    if (flags != nullptr && (*flags)[kError] != 0) return Course::Error;
    if (limits_.type != EngineType::Normal) {
      if (flags == nullptr) return Course::Idle;
      if ((*flags)[kWork] != 0) return limits_.type == EngineType::Prompt ? Course::Prefill : Course::Decode;
      if ((*flags)[kUnfinished] == 0 && (*flags)[kPending] == 0) return Course::Done;
      return (*flags)[kPending] == 0 ? Course::Stalled : Course::Idle;
    }
    if (flags != nullptr) idle = (*flags)[kDecodable] == 0;
    const bool burst = 0 < b && b < limits_.burst;
    if (idle || (c > 0 && c % limits_.any_interval == 0) || (burst && burst_any)) {
      point = Point::Any;
    } else if ((c > 0 && c % limits_.all_interval == 0) || burst) {
      point = Point::All;
    }
    return point == Point::None ? decode() : Course::Vote;
  }

  Course first_round(const Record& reduced) {
    ballot_ = reduced;
    if (reduced[kErrorNow] != 0) return Course::Error;
    if (reduced[kUnfinishedNow] == 0 && reduced[kPendingNow] == 0) {
      c = b = 0;
      idle = true;
      return Course::Done;
    }
    go = point == Point::Any ? reduced[kWant] : 1 - reduced[kDecline];
    return go != 0 ? Course::Attempt : no_prefill();
  }

  Course second_round(bool scheduled) {
    if (!scheduled) return no_prefill();
    c = 0;
    if (b == 0) burst_any = point == Point::Any;
    ++b;
    return Course::Prefill;
  }

  std::int64_t c = 0;
  std::int64_t before = 0;  // c before the step
  std::int64_t b = 0;
  bool burst_any = false;
  bool idle = true;
  Point point = Point::None;
  std::int32_t go = 0;

 private:
  Course decode() {
    ++c;
    b = 0;
    return Course::Decode;
  }

  Course no_prefill() {
    if (!idle || ballot_[kDecodableNow] != 0) return decode();
    b = 0;
    return ballot_[kWant] != 0 || ballot_[kPendingNow] != 0 ? Course::Idle : Course::Stalled;
  }

  const Limits& limits_;
  Record ballot_{};
};

// Every collective of the group meets here. A rank that calls another one than its peers is caught at once.
class Rendezvous {
 public:
  explicit Rendezvous(std::size_t ranks) : ranks_(ranks) {}

  // `count`: elements of the payload.
  void put(std::size_t rank, std::string_view op, std::size_t count, const Record& payload) {
    if (met_ == 0) {
      op_ = op;
      count_ = count;
      reduced_ = payload;
    }
    require(op == op_, "I1: collective", index_, "is", op, "on rank", rank, "and", op_, "on others");
    require_equal(count, count_, "I1: elements of collective", index_, op, "on rank", rank);
    for (std::size_t i = 0; i < payload.size(); ++i) reduced_[i] = std::max(reduced_[i], payload[i]);
    ++met_;
  }

  // All ranks have called it.
  Record complete() {
    require_equal(met_, ranks_, "I1: ranks in collective", index_, op_);
    met_ = 0;
    ++index_;
    return reduced_;
  }

 private:
  std::size_t ranks_;
  std::size_t met_ = 0;
  std::int64_t index_ = 0;
  std::string_view op_;
  std::size_t count_ = 0;
  Record reduced_{};
};

}  // namespace deepinfer::sim
