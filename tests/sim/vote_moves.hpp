// What can happen to a group of schedulers, beside the steps themselves and how often.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace votecheck {

// What may happen beside the steps themselves.
struct Options {
  const char* name;
  std::int32_t ranks = 2;
  std::int32_t prompt = 1;       // tokens
  std::int32_t outputs = 3;      // the first comes from the prefill step
  std::int32_t arrivals = 2;     // of one rank, in all
  std::int32_t outstanding = 0;  // of one rank at a time, without end; replaces `arrivals` when not 0
  std::int32_t aborts = 0;       // of one rank, in all
  std::int32_t pendings = 0;     // times that a rank may say it expects something
  std::int32_t faults = 0;       // errors that a rank may report
  std::int32_t stops = 0;        // commits of one rank that bring an end id
  std::int32_t pauses = 0;       // of one rank, in all
  bool prompted = false;         // requests with even ids come by add_prompted
  bool deferred = false;         // a decode step's results come one step later
  bool early = false;            // or at any earlier point
};

enum class MoveKind : std::uint8_t {
  Proceed,
  Arrive,
  Abort,
  Pause,
  Resume,
  EndTransfer,
  Expect,
  Settle,
  Fault,
  Stop,
  Commit
};

struct Move {
  MoveKind kind = MoveKind::Proceed;
  std::int32_t rank = 0;
  std::uint64_t id = 0;
};

inline std::string text_of(const Move& move) {
  constexpr std::array names{
      "proceed",
      "arrive",
      "abort",
      "pause",
      "resume",
      "end transfer",
      "expect",
      "settle",
      "error",
      "stop next",
      "commit"
  };
  std::string text = names[static_cast<std::size_t>(move.kind)];
  if (move.kind == MoveKind::Proceed) return text;
  text += " on rank " + std::to_string(move.rank);
  if (move.id != 0) text += " request " + std::to_string(move.id);
  return text;
}

}  // namespace votecheck
