// What a step policy can decide, the two voting rounds of a NORMAL engine, and what the others do instead.
#pragma once

#include <cstdint>

#include "engine/engine_types.hpp"
#include "engine/group_flags.hpp"

namespace deepinfer {

// Round 1, reduced by MAX. `kDecline` is 1 - want, so that 1 - MAX(kDecline) is MIN(want).
namespace round_one {
enum Index : std::int32_t { kWant, kDecline, kUnfinished, kDecodable, kPending, kError };
}  // namespace round_one

// Round 2, reduced by MAX: at least one prompt token was scheduled.
namespace round_two {
enum Index : std::int32_t { kScheduled };
}  // namespace round_two

// Attempt: schedule a prompt step tentatively and tell the policy whether it holds a token. Stalled: nothing
// can ever make progress again. The others are the caller's actions.
enum class Verdict : std::uint8_t { Vote, Attempt, Prefill, Decode, Idle, Done, Error, Stalled };

inline Record round_one_record(const LocalState& local) {
  return {local.want, !local.want, local.unfinished, local.decodable, local.pending, local.error};
}

inline Record round_two_record(bool scheduled) { return {scheduled, 0, 0, 0, 0, 0}; }

// An engine that does not vote follows the delivered record: all ranks run `step` while one has work. Without
// a record, at the start and after DONE, they only exchange one.
inline Verdict follow(const Record* flags, Verdict step) {
  if (flags == nullptr) return Verdict::Idle;
  if ((*flags)[group_flags::kError] != 0) return Verdict::Error;
  if ((*flags)[group_flags::kWork] != 0) return step;
  if ((*flags)[group_flags::kPending] != 0) return Verdict::Idle;
  return (*flags)[group_flags::kUnfinished] != 0 ? Verdict::Stalled : Verdict::Done;
}

}  // namespace deepinfer
