// The record that each rank publishes after scheduling a step; the group's MAX reaches the next begin_step.
#pragma once

#include <cstdint>

#include "engine/engine_types.hpp"

namespace deepinfer {

namespace group_flags {
enum Index : std::int32_t { kDecodable, kUnfinished, kPending, kError, kWork, kGraph };
}  // namespace group_flags

// What one rank knows about itself when it decides.
struct LocalState {
  bool want = false;        // a prompt token could be scheduled now
  bool decodable = false;   // a sequence decodes, or an uncommitted decode frame has one
  bool unfinished = false;  // some request has not ended
  bool pending = false;     // something outside may add progress
  bool error = false;
};

}  // namespace deepinfer
