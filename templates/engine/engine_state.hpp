// Everything a scheduler knows, and the few operations that more than one part of it needs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/block_manager.hpp"
#include "engine/engine_types.hpp"
#include "engine/frame.hpp"
#include "engine/outcomes.hpp"
#include "engine/request.hpp"
#include "engine/sequence_table.hpp"
#include "engine/statistics.hpp"
#include "engine/step_buffers.hpp"

namespace deepinfer {

template <class Cfg>
struct EngineState {
  static_assert(Cfg::kBlocksPerSeq < Cfg::kNumBlocks, "one longest sequence must fit beside block 0");
  static_assert(Cfg::kNumSlots > Cfg::kMaxNumSeqs + 1, "a slot more than sequences, beside slot 0");
  static_assert(
      std::int64_t{Cfg::kBlocksPerSeq} * Cfg::kBlockSize >= Cfg::kRuntimeMaxModelLen,
      "a block table must cover the longest sequence"
  );
  static_assert(
      Cfg::kRuntimeMaxModelLen >= Cfg::kMaxModelLen + 2 * Cfg::kNextn + 1,
      "capacity is reserved for two steps of nextn + 1 tokens beyond the committed ones"
  );
  static_assert(Cfg::kMaxQ == Cfg::kNextn + 1);

  RequestTable requests;
  SequenceTable<Cfg> sequences;
  BlockManager<Cfg::kNumBlocks> blocks;
  BlockManager<Cfg::kNumSlots> slots;
  FrameQueue<Cfg> frames;
  StepBuffers<Cfg> step;
  Outcomes outcomes;
  Statistics statistics;
  std::vector<std::uint64_t> ignored;         // died waiting since the last step was published
  std::vector<std::uint64_t> ignored_view;    // those of the current step
  std::vector<std::uint64_t> preempted_view;  // those of the current step
  std::vector<std::uint64_t> loads_view;      // admitted by the current step, their cache is to be loaded
  std::string error;
  bool failed = false;   // this rank reported an error
  bool pending = false;  // the caller expects something
  std::uint64_t next_step_id = 1;
  std::uint64_t last_decode_step = 0;

  EngineState() {
    preempted_view.reserve(static_cast<std::size_t>(Cfg::kMaxNumSeqs));
    loads_view.reserve(static_cast<std::size_t>(Cfg::kMaxNumSeqs));
  }

  static constexpr std::int32_t blocks_for(std::int32_t tokens) {
    return (tokens + Cfg::kBlockSize - 1) / Cfg::kBlockSize;
  }

  // By a request that has not ended, or whose blocks still drain.
  bool is_taken(std::uint64_t id) const { return requests.find(id) >= 0 || sequences.find_draining(id) >= 0; }

  Request& request_at(std::int32_t place) { return requests[sequences[place].request]; }
  const Request& request_at(std::int32_t place) const { return requests[sequences[place].request]; }

  // The row of a sequence in the last decode step, -1 if it was not in it.
  std::int32_t remap(const Sequence<Cfg>& sequence) const {
    const bool was_there = sequence.last_step != 0 && sequence.last_step == last_decode_step;
    return was_there ? sequence.last_row : -1;
  }

  // What was shown with the last step is over, and its copies are launched.
  void begin() {
    preempted_view.clear();
    loads_view.clear();
    for (const std::int32_t block : pinned_blocks_) blocks.unpin(block);
    for (const std::int32_t slot : pinned_slots_) slots.unpin(slot);
    pinned_blocks_.clear();
    pinned_slots_.clear();
    step.clear(StepKind::None);
  }

  // A place with slot and blocks for `length` tokens, given together. Needs all of them to be free.
  std::int32_t admit(std::int32_t index, std::int32_t length, RequestState as) {
    const std::int32_t place = sequences.occupy(requests[index].id, index, slots.allocate(), length);
    requests.admit(index, place, as);
    grow(place, blocks_for(length));
    return place;
  }

  // Append blocks until the table has `count`; as many must be free.
  void grow(std::int32_t place, std::int32_t count) {
    while (sequences[place].num_blocks < count) sequences.append_block(place, blocks.allocate());
  }

  // A copy of shared content is made by this step before anything is written. Its source is not handed out
  // again until the copy is launched.
  void own_slot(std::int32_t place) {
    const std::int32_t shared = sequences[place].slot;
    sequences[place].slot = slots.allocate();
    step.clone_state(shared, sequences[place].slot);
    slots.pin(shared);
    pinned_slots_.push_back(shared);
    slots.release(shared);
  }

  // `copied` is false when nothing in the block is needed.
  void own_block(std::int32_t place, std::int32_t position, bool copied) {
    const std::int32_t shared = sequences.blocks(place)[static_cast<std::size_t>(position)];
    const std::int32_t own = blocks.allocate();
    sequences.replace_block(place, position, own);
    if (copied) {
      step.clone_block(shared, own);
      blocks.pin(shared);
      pinned_blocks_.push_back(shared);
    }
    blocks.release(shared);
  }

  // Blocks and slot are free at once, even when a frame of this sequence still runs: later steps run behind
  // it. What an open transfer uses waits for its end.
  void leave(std::int32_t place) {
    if (sequences[place].transfer) {
      sequences.drain(place);
    } else {
      give_back(place);
    }
  }

  void end(std::int32_t index, Reason reason, std::int32_t stop_token) {
    const Request& request = requests[index];
    outcomes.record(request.id, reason, stop_token);
    if (request.place >= 0) {
      leave(request.place);
    } else {
      ignored.push_back(request.id);
    }
    requests.remove(index);
  }

  void begin_transfer(std::int32_t place) { sequences[place].transfer = true; }

  void end_transfer(std::int32_t place) {
    sequences[place].transfer = false;
    const std::int32_t index = sequences[place].request;
    if (index < 0) {
      give_back(place);
    } else if (requests[index].state == RequestState::Loading) {
      requests[index].state = RequestState::Prompted;
      sequences.loading.remove(place);
      sequences.prompted.push_back(place);
    }
  }

  // A sequence that decodes from the next step on, or one whose frame still does.
  bool decodable() const {
    for (const auto* places : {&sequences.prompted, &sequences.running}) {
      for (const std::int32_t place : *places) {
        if (!request_at(place).paused) return true;
      }
    }
    return frames.has_rows(StepKind::Decode);
  }

  // Something outside, or a result that is still to come, may make progress possible.
  bool expects() const {
    return pending || requests.paused_count() > 0 || !sequences.loading.empty() ||
           !sequences.draining.empty() || frames.has_rows(StepKind::Prefill);
  }

  void show_ignored() {
    std::swap(ignored, ignored_view);
    ignored.clear();
    reserve_for_live();
  }

  // Every live request may still end, also before its admission; recording that must not allocate.
  void reserve_for_live() {
    outcomes.reserve_for(requests.live_count());
    reserve_doubling(ignored, ignored.size() + static_cast<std::size_t>(requests.live_count()));
  }

 private:
  void give_back(std::int32_t place) {
    for (const std::int32_t block : sequences.blocks(place)) blocks.release(block);
    slots.release(sequences[place].slot);
    sequences.vacate(place);
  }

  // One entry for each copy of the current step.
  FixedList<Cfg::kMaxNumSeqs> pinned_blocks_;
  FixedList<Cfg::kMaxNumSeqs> pinned_slots_;
};

}  // namespace deepinfer
