// Branches of a request: they share its blocks and slot until they write.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/capacity.hpp"
#include "engine/engine_state.hpp"

namespace deepinfer {

template <class Cfg>
class Fork {
 public:
  using State = EngineState<Cfg>;

  // Throws std::invalid_argument, with nothing changed, when the parent cannot be forked now or an id is
  // taken.
  static void branch(State& state, std::int32_t parent, std::span<const std::uint64_t> children) {
    check(state, parent, children);
    for (const std::uint64_t id : children) {
      Request request = state.requests[parent];
      request.id = id;
      request.paused = false;
      request.state = RequestState::Prompted;
      request.tokens.reserve(static_cast<std::size_t>(request.length_limit));
      const std::int32_t from = request.place;
      const std::int32_t index = state.requests.add(std::move(request));
      state.requests[index].place = share(state, from, id, index);
      state.sequences.prompted.push_back(state.requests[index].place);
    }
    state.reserve_for_live();
  }

 private:
  // Blocks of the tokens whose keys are computed: all but the newest, which each branch computes itself.
  static std::int32_t share(State& state, std::int32_t from, std::uint64_t id, std::int32_t index) {
    const std::int32_t slot = state.sequences[from].slot;
    const std::int32_t place = state.sequences.occupy(id, index, slot, state.sequences[from].prefill_length);
    state.sequences[place].computed = state.sequences[from].computed;
    state.slots.share(slot);
    const std::int32_t count = State::blocks_for(state.requests[index].length() - 1);
    for (const std::int32_t block : state.sequences.blocks(from).first(static_cast<std::size_t>(count))) {
      state.blocks.share(block);
      state.sequences.append_block(place, block);
    }
    return place;
  }

  static void check(const State& state, std::int32_t parent, std::span<const std::uint64_t> children) {
    const Request& request = state.requests[parent];
    const std::string who = "fork of request " + std::to_string(request.id) + ": ";
    if (request.state != RequestState::Prompted && request.state != RequestState::Running) {
      throw std::invalid_argument(who + "its prompt is not computed yet");
    }
    if (Capacity<Cfg>::in_flight(state, state.sequences[request.place]) > 0) {
      throw std::invalid_argument(
          who + "commit step " + std::to_string(state.sequences[request.place].last_step) + " first"
      );
    }
    if (std::cmp_greater(children.size(), state.sequences.free_places())) {
      throw std::invalid_argument(
          who + std::to_string(children.size()) + " branches, but places for " +
          std::to_string(state.sequences.free_places())
      );
    }
    for (std::size_t i = 0; i < children.size(); ++i) {
      const bool repeated = std::ranges::find(children.first(i), children[i]) !=
                            children.begin() + static_cast<std::ptrdiff_t>(i);
      if (repeated || state.is_taken(children[i])) {
        throw std::invalid_argument(who + "id " + std::to_string(children[i]) + " is taken");
      }
    }
  }
};

}  // namespace deepinfer
