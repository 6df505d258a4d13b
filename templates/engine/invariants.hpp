// The bookkeeping rules that hold between any two calls, checked on demand by tests and fuzzing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/engine_state.hpp"

namespace deepinfer {

template <class Cfg>
class Invariants {
 public:
  using State = EngineState<Cfg>;

  // Throws std::logic_error that names the first rule which does not hold.
  static void check(const State& state) {
    check_places(state);
    std::vector<std::int32_t> block_users(std::size_t{Cfg::kNumBlocks});
    std::vector<std::int32_t> slot_users(std::size_t{Cfg::kNumSlots});
    for (const auto* places : lists(state)) {
      for (const std::int32_t place : *places) {
        for (const std::int32_t block : state.sequences.blocks(place))
          ++block_users[static_cast<std::size_t>(block)];
        ++slot_users[static_cast<std::size_t>(state.sequences[place].slot)];
      }
    }
    check_pool(state.blocks, block_users, "block");
    check_pool(state.slots, slot_users, "slot");
    check_capacity(state);
  }

 private:
  static auto lists(const State& state) {
    const auto& s = state.sequences;
    return std::array{&s.partial, &s.loading, &s.prompted, &s.running, &s.draining};
  }

  static void require(bool holds, const char* rule) {
    if (!holds) fail(rule);
  }

  [[noreturn]] static void fail(const std::string& rule) { throw std::logic_error(rule); }

  static void check_places(const State& state) {
    const auto& sequences = state.sequences;
    std::int32_t listed = 0;
    for (const auto* places : lists(state)) listed += places->size();
    require(listed == sequences.occupied(), "every occupied place is in exactly one list");
    const std::int32_t live = listed - sequences.draining.size();
    require(live <= Cfg::kMaxNumSeqs, "I22: sequences exceed max_num_seqs");
    std::int32_t queued = 0;
    for (const RequestState queue : {RequestState::Waiting, RequestState::Incoming}) {
      std::int32_t count = 0;
      for (std::int32_t i = state.requests.first(queue); i >= 0; i = state.requests[i].next) {
        require(state.requests[i].state == queue, "only waiting requests are queued");
        ++count;
      }
      require(count == state.requests.queued_count(queue), "the queue's length is its count");
      queued += count;
    }
    require(live + queued == state.requests.live_count(), "every live request waits or has a place");
    for (const std::int32_t place : sequences.draining) {
      require(sequences[place].transfer, "B8: a place drains only while its transfer is open");
    }
  }

  // `users` counts the tables that contain an id.
  template <std::int32_t Count>
  static void check_pool(
      const BlockManager<Count>& pool, const std::vector<std::int32_t>& users, const std::string& what
  ) {
    if (users[0] != 0 || pool.references(0) != 0) fail(what + " 0 is handed out");
    std::int32_t used = 0;
    for (std::int32_t id = 1; id < Count; ++id) {
      const std::int32_t tables = users[static_cast<std::size_t>(id)];
      if (pool.references(id) != tables) {
        fail(
            what + " " + std::to_string(id) + " has " + std::to_string(pool.references(id)) +
            " references and is in " + std::to_string(tables) + " tables"
        );
      }
      if (tables > 0 || pool.pins(id) > 0) ++used;
    }
    if (used != pool.used_count()) fail(what + "s: free and used do not add up");
    if (pool.walk_free_list() != pool.free_count()) fail(what + "s: the free list is damaged");
  }

  // Blocks reach as far as any frame of the sequence can write.
  static void check_capacity(const State& state) {
    for (std::int32_t i = 0; i < state.frames.size(); ++i) {
      const Frame<Cfg>& frame = state.frames[i];
      for (std::int32_t r = 0; r < frame.num_rows; ++r) {
        const FrameRow& row = frame.rows[r];
        if (!state.sequences.holds(row.place, row.serial)) continue;
        const Sequence<Cfg>& sequence = state.sequences[row.place];
        const std::int32_t written = frame.kind == StepKind::Prefill
                                         ? sequence.computed
                                         : state.request_at(row.place).length() + reach(state, row);
        if (written > sequence.num_blocks * Cfg::kBlockSize) {
          fail("I13: request " + std::to_string(row.id) + " may write past its blocks");
        }
        if (frame.kind == StepKind::Decode) check_owned(state, row);
      }
    }
  }

  // What a decode step may write is shared with nobody.
  static void check_owned(const State& state, const FrameRow& row) {
    const Sequence<Cfg>& sequence = state.sequences[row.place];
    bool owned = state.slots.references(sequence.slot) == 1;
    const auto first = static_cast<std::size_t>((state.request_at(row.place).length() - 1) / Cfg::kBlockSize);
    for (const std::int32_t block : state.sequences.blocks(row.place).subspan(first)) {
      owned = owned && state.blocks.references(block) == 1;
    }
    if (!owned) fail("I11: request " + std::to_string(row.id) + " writes to what it shares");
  }

  static std::int32_t reach(const State& state, const FrameRow& row) {
    std::int32_t queries = 0;
    for (std::int32_t i = 0; i < state.frames.size(); ++i) {
      for (std::int32_t r = 0; r < state.frames[i].num_rows; ++r) {
        const FrameRow& other = state.frames[i].rows[r];
        if (other.serial == row.serial) queries += other.reach;
      }
    }
    return queries;
  }
};

}  // namespace deepinfer
