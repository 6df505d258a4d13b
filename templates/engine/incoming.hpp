// Requests whose cache another engine computed: they get their memory here, and decode once it is filled.
#pragma once

#include <cstdint>

#include "engine/engine_state.hpp"

namespace deepinfer {

template <class Cfg>
class Incoming {
 public:
  using State = EngineState<Cfg>;

  // Front to back, until one has to wait. An admitted sequence is loading, with its transfer open.
  static void admit(State& state) {
    while (admissible(state)) {
      const std::int32_t head = state.requests.first_unpaused(RequestState::Incoming);
      const std::int32_t place = state.admit(head, state.requests[head].length(), RequestState::Loading);
      state.sequences[place].computed = state.sequences[place].prefill_length;
      state.sequences.loading.push_back(place);
      state.begin_transfer(place);
      state.loads_view.push_back(state.requests[head].id);
    }
  }

  // The first one could be admitted now.
  static bool admissible(const State& state) {
    const std::int32_t head = state.requests.first_unpaused(RequestState::Incoming);
    return head >= 0 && obstacle(state, head) == nullptr;
  }

  // What keeps the incoming request `index` from being admitted, or null.
  static const char* obstacle(const State& state, std::int32_t index) {
    if (state.sequences.free_places() == 0) return "a sequence place";
    if (State::blocks_for(state.requests[index].length()) > state.blocks.free_count()) return "free blocks";
    if (state.slots.free_count() == 0) return "a state slot";
    return nullptr;
  }
};

}  // namespace deepinfer
