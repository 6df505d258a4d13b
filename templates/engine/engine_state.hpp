// Everything a scheduler knows, and the few operations that more than one part of it needs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/block_manager.hpp"
#include "engine/engine_types.hpp"
#include "engine/frame.hpp"
#include "engine/group_flags.hpp"
#include "engine/outcomes.hpp"
#include "engine/request.hpp"
#include "engine/sequence_table.hpp"
#include "engine/step_buffers.hpp"

namespace deepinfer {

// Counted for people; nothing decides by them.
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
  static_assert(
      Cfg::kEngineType != EngineType::Completion || Cfg::kStopPreemptedRequest,
      "a COMPLETION engine has no prefill that could recompute a preempted request"
  );

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
  std::string error;
  bool failed = false;  // this rank reported an error
  bool pending = false;
  std::uint64_t next_step_id = 1;
  std::uint64_t last_decode_step = 0;

  EngineState() { preempted_view.reserve(static_cast<std::size_t>(Cfg::kMaxNumSeqs)); }

  static constexpr std::int32_t blocks_for(std::int32_t tokens) {
    return (tokens + Cfg::kBlockSize - 1) / Cfg::kBlockSize;
  }

  Request& request_at(std::int32_t place) { return requests[sequences[place].request]; }
  const Request& request_at(std::int32_t place) const { return requests[sequences[place].request]; }

  // Give `place` blocks for `tokens` tokens, or nothing at all when too few are free.
  bool grow(std::int32_t place, std::int32_t tokens) {
    const std::int32_t missing = blocks_for(tokens) - sequences[place].num_blocks;
    if (missing > blocks.free_count()) return false;
    for (std::int32_t i = 0; i < missing; ++i) sequences.append_block(place, blocks.allocate());
    return true;
  }

  // Blocks and slot are free at once, even when a frame of this sequence still runs: later steps run behind
  // it.
  void vacate(std::int32_t place) {
    for (const std::int32_t block : sequences.blocks(place)) blocks.release(block);
    slots.release(sequences[place].slot);
    sequences.vacate(place);
  }

  void end(std::int32_t index, Reason reason, std::int32_t stop_token) {
    const Request& request = requests[index];
    outcomes.record(request.id, reason, stop_token);
    if (request.place >= 0) {
      vacate(request.place);
    } else {
      ignored.push_back(request.id);
    }
    requests.remove(index);
  }

  // Frames of the sequence that still run keep their old serial: their results are dropped, and a
  // recomputation starts from the committed tokens only.
  void preempt(std::int32_t place) {
    const std::int32_t index = sequences[place].request;
    preempted_view.push_back(requests[index].id);
    ++statistics.preemptions;
    if constexpr (Cfg::kStopPreemptedRequest) {
      end(index, Reason::Preempted, -1);
    } else {
      vacate(place);
      requests.requeue(index);
    }
  }

  // The last chunk of a prompt leaves a sequence that decodes from the next step on.
  bool decodable() const {
    if (!sequences.running.empty() || !sequences.prompted.empty()) return true;
    for (std::int32_t i = 0; i < frames.size(); ++i) {
      if (frames[i].kind == StepKind::Decode && frames[i].num_rows > 0) return true;
    }
    return false;
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
};

}  // namespace deepinfer
