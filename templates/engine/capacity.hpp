// Memory for one sequence of a decode step: its own slot, its own last block, and blocks as far as it may
// write.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/engine_state.hpp"

namespace deepinfer {

// None: nothing was changed and the sequence is passed over. Made: it has its memory. Gone: it was preempted.
enum class Room : std::uint8_t { None, Made, Gone };

template <class Cfg>
class Capacity {
 public:
  using State = EngineState<Cfg>;

  // Slot and blocks together or not at all. While blocks are short, the sequence with the most output gives
  // way. `flying` is what in_flight() says of the sequence.
  static Room make_room(State& state, std::int32_t place, std::int32_t flying) {
    while (true) {
      const Need need = need_of(state, place, flying);
      if (need.slot && state.slots.free_count() == 0) return Room::None;
      // Who copies leaves what it shared to others, and a transfer still uses that.
      if (need.copies() && state.sequences[place].transfer) return Room::None;
      if (need.blocks() <= state.blocks.free_count()) {
        provide(state, place, need);
        return Room::Made;
      }
      const std::int32_t victim = state.sequences.running.back();
      if (!may_preempt(state, victim, place)) return Room::None;
      preempt(state, victim);
      if (victim == place) return Room::Gone;
    }
  }

  // Queries that the sequence may have in the decode step that still runs, 0 if it is in none.
  static std::int32_t in_flight(const State& state, const Sequence<Cfg>& sequence) {
    return state.frames.is_open(sequence.last_step) ? sequence.last_reach : 0;
  }

 private:
  struct Need {
    bool slot = false;         // its slot is shared
    bool write_block = false;  // the block that it writes to next is shared
    std::int32_t growth = 0;   // blocks to append
    bool copies() const { return slot || write_block; }
    std::int32_t blocks() const { return growth + (write_block ? 1 : 0); }
  };

  static Need need_of(const State& state, std::int32_t place, std::int32_t flying) {
    const Sequence<Cfg>& sequence = state.sequences[place];
    const std::int32_t length = state.request_at(place).length();
    const std::int32_t next = next_block(length);
    Need need;
    need.slot = state.slots.references(sequence.slot) > 1;
    need.write_block =
        next < sequence.num_blocks &&
        state.blocks.references(state.sequences.blocks(place)[static_cast<std::size_t>(next)]) > 1;
    need.growth = std::max(0, State::blocks_for(tokens_reached(length, flying)) - sequence.num_blocks);
    return need;
  }

  // The block of the newest token, whose key the next step writes.
  static std::int32_t next_block(std::int32_t length) { return (length - 1) / Cfg::kBlockSize; }

  // Committed tokens, all that the step in flight may add, and this step's drafts with the token to come. A
  // drafter writes to rings only, so its reach needs positions but no blocks.
  static std::int32_t tokens_reached(std::int32_t length, std::int32_t flying) {
    return length + (flying > 0 ? Cfg::kMaxQ : 0) + Cfg::kMaxQ;
  }

  static void provide(State& state, std::int32_t place, const Need& need) {
    if (need.slot) state.own_slot(place);
    if (need.write_block) {
      const std::int32_t length = state.request_at(place).length();
      const bool holds_more = (length - 1) % Cfg::kBlockSize > 0;
      state.own_block(place, next_block(length), holds_more);
    }
    if (need.growth > 0) state.grow(place, state.sequences[place].num_blocks + need.growth);
  }

  // Only what frees a block now helps. A sequence that asks may always give way itself.
  static bool may_preempt(const State& state, std::int32_t victim, std::int32_t asking) {
    if (state.sequences[victim].transfer) return false;
    if (victim == asking) return true;
    return std::ranges::any_of(state.sequences.blocks(victim), [&state](std::int32_t block) {
      return state.blocks.references(block) == 1 && state.blocks.pins(block) == 0;
    });
  }

  // Frames of the sequence that still run keep their old serial: their results are dropped, and a
  // recomputation starts from the committed tokens only.
  static void preempt(State& state, std::int32_t place) {
    const std::int32_t index = state.sequences[place].request;
    state.preempted_view.push_back(state.requests[index].id);
    ++state.statistics.preemptions;
    if constexpr (Cfg::kStopPreemptedRequest) {
      state.end(index, Reason::Preempted, -1);
    } else {
      state.leave(place);
      state.requests.requeue(index);
    }
  }
};

}  // namespace deepinfer
