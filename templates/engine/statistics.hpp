// What is counted for people; nothing decides by it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine_api.hpp"
#include "engine/request.hpp"

namespace deepinfer {

struct Statistics {
  std::int64_t votes = 0;
  std::int64_t prefill_steps = 0;
  std::int64_t decode_steps = 0;
  std::int64_t dummy_steps = 0;
  std::int64_t idle_calls = 0;
  std::int64_t prefill_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t dropped_rows = 0;
  std::int64_t preemptions = 0;
};

template <class State>
std::vector<Counter> counters(const State& state) {
  const Statistics& s = state.statistics;
  return {
      {"waiting", state.requests.queued_count(RequestState::Waiting)},
      {"incoming", state.requests.queued_count(RequestState::Incoming)},
      {"partial", state.sequences.partial.size()},
      {"loading", state.sequences.loading.size()},
      {"prompted", state.sequences.prompted.size()},
      {"running", state.sequences.running.size()},
      {"draining", state.sequences.draining.size()},
      {"paused", state.requests.paused_count()},
      {"uncommitted_steps", state.frames.size()},
      {"free_places", state.sequences.free_places()},
      {"free_blocks", state.blocks.free_count()},
      {"free_slots", state.slots.free_count()},
      {"votes", s.votes},
      {"prefill_steps", s.prefill_steps},
      {"decode_steps", s.decode_steps},
      {"dummy_steps", s.dummy_steps},
      {"idle_calls", s.idle_calls},
      {"prefill_tokens", s.prefill_tokens},
      {"output_tokens", s.output_tokens},
      {"dropped_rows", s.dropped_rows},
      {"preemptions", s.preemptions},
  };
}

}  // namespace deepinfer
