// A hash of everything that decides what the scheduler does next. Two schedulers that behave alike from here
// on have equal fingerprints: step ids, statistics, the order of free lists and the numbers of places are
// left out.
#pragma once

#include <cstdint>

#include "engine/engine_state.hpp"
#include "engine/fingerprint_hash.hpp"

namespace deepinfer {

template <class Cfg>
void mix_request(FingerprintHash& hash, const Request& request) {
  hash.mix(request.id);
  hash.mix(request.prompt_length);
  hash.mix(request.length());
  hash.mix(request.length_limit);
  hash.mix(request.min_tokens);
  for (const std::int32_t token : request.end_ids) hash.mix(token);
}

template <class Cfg>
void mix_places(
    FingerprintHash& hash, const EngineState<Cfg>& state, const FixedList<Cfg::kMaxNumSeqs>& places
) {
  hash.mix(places.size());
  for (const std::int32_t place : places) {
    const Sequence& sequence = state.sequences[place];
    mix_request<Cfg>(hash, state.requests[sequence.request]);
    hash.mix(sequence.computed);
    hash.mix(sequence.prefill_length);
    hash.mix(sequence.num_blocks);
    const bool in_last_decode = sequence.last_step != 0 && sequence.last_step == state.last_decode_step;
    hash.mix(in_last_decode ? sequence.last_row : -1);
  }
}

template <class Cfg>
void mix_state(FingerprintHash& hash, const EngineState<Cfg>& state) {
  hash.mix(state.failed);
  hash.mix(state.pending);
  hash.mix(state.requests.waiting_count());
  for (std::int32_t index = state.requests.head(); index >= 0; index = state.requests[index].next) {
    mix_request<Cfg>(hash, state.requests[index]);
  }
  mix_places<Cfg>(hash, state, state.sequences.partial);
  mix_places<Cfg>(hash, state, state.sequences.prompted);
  mix_places<Cfg>(hash, state, state.sequences.running);
  hash.mix(state.blocks.free_count());
  hash.mix(state.slots.free_count());
  hash.mix(state.frames.size());
  for (std::int32_t i = 0; i < state.frames.size(); ++i) {
    const Frame<Cfg>& frame = state.frames[i];
    hash.mix(static_cast<std::int32_t>(frame.kind));
    hash.mix(frame.num_rows);
    for (std::int32_t r = 0; r < frame.num_rows; ++r) {
      const FrameRow& row = frame.rows[r];
      hash.mix(row.id);
      hash.mix(row.q_len);
      hash.mix(row.samples);
      hash.mix(state.sequences.holds(row.place, row.serial));
    }
  }
}

}  // namespace deepinfer
