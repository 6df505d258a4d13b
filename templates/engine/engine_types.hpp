// The vocabulary of the scheduler's interface: actions, reasons, engine types, and the records of one rank.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace deepinfer {

enum class EngineType : std::uint8_t { Normal, Prompt, Completion };

// What begin_step and resolve_vote ask the caller to do next.
enum class Action : std::int32_t { Vote = 0, Prefill = 1, Decode = 2, Idle = 3, Done = 4, Fail = 5 };

enum class Reason : std::int32_t { None = 0, Stop = 1, Length = 2, Abort = 3, Preempted = 4, Error = 5 };

enum class StepKind : std::int32_t { None = 0, Prefill = 1, Decode = 2 };

// What a NORMAL engine votes about before a step: nothing, a prefill that every rank wants (All), or one that
// some rank wants (Any).
enum class Point : std::int32_t { None = 0, All = 1, Any = 2 };

// How the last action came about. `want`, `go` and `scheduled` are -1 where nothing was voted on.
struct Decision {
  Point point = Point::None;
  std::int32_t want = -1;           // this rank's, in round 1
  std::int32_t go = -1;             // the group's
  std::int32_t scheduled = -1;      // this rank's, in round 2
  std::int64_t decode_counter = 0;  // decode steps since the last prefill step, before this one
};

// One region of the state slot, in bytes.
struct StateRegion {
  std::int64_t offset;
  std::int64_t bytes;
};

// A record of six small integers; a group reduces it by MAX, element by element.
using Record = std::array<std::int32_t, 6>;

constexpr std::string_view name_of(EngineType type) {
  switch (type) {
    case EngineType::Normal:
      return "NORMAL";
    case EngineType::Prompt:
      return "PROMPT";
    case EngineType::Completion:
      return "COMPLETION";
  }
  return "unknown";
}

}  // namespace deepinfer
