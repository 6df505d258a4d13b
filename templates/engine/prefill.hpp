// Prefill: FIFO admission, chunk by chunk, within three limits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/chunk.hpp"
#include "engine/engine_state.hpp"

namespace deepinfer {

template <class Cfg>
class Prefill {
  static_assert(Cfg::kMaxNumPrompts >= 1);
  static_assert(Cfg::kPrefillMaxSumSeqlenK >= Cfg::kMaxModelLen, "the first prompt of a step always fits");
  static_assert(
      Cfg::kCpSize == 1 || Cfg::kMaxNumBatchedTokens >= 2 * Cfg::kCpSize, "a cut chunk is never empty"
  );

 public:
  using State = EngineState<Cfg>;

  // A prompt token could be scheduled now: the same admission test that `schedule` applies to its first
  // candidate.
  static bool wants(const State& state) {
    for (const std::int32_t place : state.sequences.partial) {
      if (!state.request_at(place).paused) return true;
    }
    const std::int32_t head = state.requests.first_unpaused(RequestState::Waiting);
    return head >= 0 && obstacle(state, head) == nullptr;
  }

  // Fill the next frame and the step arrays. No request is admitted without a token of it being scheduled,
  // so a step without tokens has changed nothing and needs no rollback.
  static void schedule(State& state) {
    state.step.clear(StepKind::Prefill);
    state.frames.next().clear(StepKind::Prefill);
    Budget budget;
    // A sequence leaves `partial` with its last chunk; after any other chunk the step is closed.
    for (std::int32_t i = 0; i < state.sequences.partial.size();) {
      const std::int32_t place = state.sequences.partial[i];
      if (state.request_at(place).paused) {
        ++i;
        continue;
      }
      const Sequence<Cfg>& sequence = state.sequences[place];
      const std::int32_t chunk =
          budget.chunk(state.request_at(place), sequence.computed, sequence.prefill_length);
      if (chunk == 0 || !take(state, budget, place, chunk)) return;
    }
    while (true) {
      const std::int32_t head = state.requests.first_unpaused(RequestState::Waiting);
      if (head < 0) return;
      const std::int32_t length = state.requests[head].length();
      const std::int32_t chunk = budget.chunk(state.requests[head], 0, length);
      if (chunk == 0 || obstacle(state, head) != nullptr) return;
      const std::int32_t place = state.admit(head, length, RequestState::Partial);
      state.sequences.partial.push_back(place);
      state.step.zero_state(state.sequences[place].slot);
      if (!take(state, budget, place, chunk)) return;
    }
  }

  // What keeps the waiting request `index` from being admitted, or null.
  static const char* obstacle(const State& state, std::int32_t index) {
    const std::int64_t used = state.blocks.used_count();
    const std::int64_t usable = BlockManager<Cfg::kNumBlocks>::kUsable;
    if (used * Cfg::kPrefillCacheUsageLimitDenominator > usable * Cfg::kPrefillCacheUsageLimitNumerator) {
      return "cache usage under its limit";
    }
    if (state.sequences.free_places() == 0) return "a sequence place";
    if (State::blocks_for(state.requests[index].length()) > state.blocks.free_count()) return "free blocks";
    if (state.slots.free_count() == 0) return "a state slot";
    return nullptr;
  }

 private:
  // What is left of the limits of one step.
  struct Budget {
    std::int32_t tokens = Cfg::kMaxNumBatchedTokens;
    std::int32_t prompts = Cfg::kMaxNumPrompts;
    std::int32_t sum_k = Cfg::kPrefillMaxSumSeqlenK;

    // Tokens of a prompt that may go into this step; 0 means none. A prompt over the token budget is cut; one
    // over the sum of K lengths waits for the next step, where it comes first and fits.
    std::int32_t chunk(const Request& request, std::int32_t computed, std::int32_t length) const {
      if (prompts == 0) return 0;
      const std::int32_t limit = std::min(length, computed + tokens);
      const std::int32_t end = limit == length ? length : ChunkCut<Cfg>::end(request, computed, limit);
      return end <= sum_k ? end - computed : 0;
    }

    void spend(std::int32_t size, std::int32_t k_length) {
      tokens -= size;
      --prompts;
      sum_k -= k_length;
    }
  };

  // Schedule one chunk. False after a cut: nobody else joins this step.
  static bool take(State& state, Budget& budget, std::int32_t place, std::int32_t chunk) {
    Sequence<Cfg>& sequence = state.sequences[place];
    Request& request = state.requests[sequence.request];
    const std::int32_t start = sequence.computed;
    sequence.computed += chunk;
    budget.spend(chunk, sequence.computed);
    const bool last = sequence.computed == sequence.prefill_length;

    StepRow row;
    row.id = request.id;
    row.table = sequence.table;
    row.start = start;
    row.q_len = chunk;
    row.prefill_len = sequence.prefill_length;
    row.slot = sequence.slot;
    row.samples = last;
    row.tokens = request.tokens;
    row.blocks = state.sequences.blocks(place);
    state.step.add(row);
    state.frames.next().add({request.id, sequence.serial, place, chunk, chunk, last});

    if (!last) return false;
    request.state = RequestState::Prompted;
    state.sequences.partial.remove(place);
    state.sequences.prompted.push_back(place);
    return true;
  }
};

}  // namespace deepinfer
