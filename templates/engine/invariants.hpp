// The bookkeeping rules that hold between any two calls, checked on demand by tests and fuzzing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "engine/engine_state.hpp"

namespace deepinfer {

template <class Cfg>
class Invariants {
 public:
  using State = EngineState<Cfg>;

  // Throws std::logic_error that names the first rule which does not hold.
  static void check(const State& state) {
    check_places(state);
    std::array<std::int32_t, static_cast<std::size_t>(Cfg::kNumBlocks)> block_users{};
    std::array<std::int32_t, static_cast<std::size_t>(Cfg::kNumSlots)> slot_users{};
    for (const auto* places :
         {&state.sequences.partial, &state.sequences.prompted, &state.sequences.running}) {
      for (const std::int32_t place : *places) {
        for (const std::int32_t block : state.sequences.blocks(place)) ++block_users[block];
        ++slot_users[state.sequences[place].slot];
      }
    }
    check_pool(state.blocks, block_users, "block");
    check_pool(state.slots, slot_users, "slot");
    check_capacity(state);
  }

 private:
  static void require(bool holds, const std::string& rule) {
    if (!holds) throw std::logic_error(rule);
  }

  static void check_places(const State& state) {
    const auto& sequences = state.sequences;
    const std::int32_t listed =
        sequences.partial.size() + sequences.prompted.size() + sequences.running.size();
    require(listed == sequences.occupied(), "every occupied place is in exactly one list");
    require(listed <= Cfg::kMaxNumSeqs, "sequences exceed max_num_seqs");
    require(
        listed + state.requests.waiting_count() == state.requests.live_count(),
        "every live request waits or has a place"
    );
    std::int32_t waiting = 0;
    for (std::int32_t i = state.requests.head(); i >= 0; i = state.requests[i].next) {
      require(state.requests[i].state == RequestState::Waiting, "only waiting requests are queued");
      ++waiting;
    }
    require(waiting == state.requests.waiting_count(), "the queue's length is its count");
  }

  template <std::int32_t Count, std::size_t Size>
  static void check_pool(
      const BlockManager<Count>& pool, const std::array<std::int32_t, Size>& users, const std::string& what
  ) {
    require(users[0] == 0 && pool.references(0) == 0, what + " 0 is handed out");
    std::int32_t used = 0;
    for (std::int32_t id = 1; id < Count; ++id) {
      require(
          pool.references(id) == users[id],
          what + " " + std::to_string(id) + " has " + std::to_string(pool.references(id)) +
              " references and " + std::to_string(users[id]) + " users"
      );
      if (users[id] > 0 || pool.pins(id) > 0) ++used;
    }
    require(used == pool.used_count(), what + "s: free and used do not add up");
    require(pool.walk_free_list() == pool.free_count(), what + "s: the free list is damaged");
  }

  // Blocks reach as far as any frame of the sequence can write.
  static void check_capacity(const State& state) {
    for (std::int32_t i = 0; i < state.frames.size(); ++i) {
      const Frame<Cfg>& frame = state.frames[i];
      for (std::int32_t r = 0; r < frame.num_rows; ++r) {
        const FrameRow& row = frame.rows[r];
        if (!state.sequences.holds(row.place, row.serial)) continue;
        const Sequence& sequence = state.sequences[row.place];
        const std::int32_t written = frame.kind == StepKind::Prefill
                                         ? sequence.computed
                                         : state.request_at(row.place).length() + reach(state, row);
        require(
            written <= sequence.num_blocks * Cfg::kBlockSize,
            "request " + std::to_string(row.id) + " may write past its blocks"
        );
      }
    }
  }

  static std::int32_t reach(const State& state, const FrameRow& row) {
    std::int32_t queries = 0;
    for (std::int32_t i = 0; i < state.frames.size(); ++i) {
      for (std::int32_t r = 0; r < state.frames[i].num_rows; ++r) {
        const FrameRow& other = state.frames[i].rows[r];
        if (other.serial == row.serial) queries += other.q_len;
      }
    }
    return queries;
  }
};

}  // namespace deepinfer
