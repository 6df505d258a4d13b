// A hash of everything that decides what the scheduler does next. Two schedulers that behave alike from here
// on have equal fingerprints: step ids, statistics, the order of free lists and the numbers of places are
// left out.
#pragma once

#include <cstdint>

#include "engine/engine_state.hpp"
#include "engine/fingerprint_hash.hpp"

namespace deepinfer {

inline void mix_request(FingerprintHash& hash, const Request& request) {
  hash.mix(request.id);
  hash.mix(request.paused);
  hash.mix(request.prompt_length);
  hash.mix(request.length());
  hash.mix(request.length_limit);
  hash.mix(request.min_tokens);
  hash.mix(request.end_ids.size());
  for (const std::int32_t token : request.end_ids) hash.mix(token);
  hash.mix(request.checkpoints.size());
  for (const std::int32_t position : request.checkpoints) hash.mix(position);
  hash.mix(request.image_spans.size());
  for (const ImageSpan& span : request.image_spans) {
    hash.mix(span.start);
    hash.mix(span.end);
  }
}

// What the next step makes of the sequence's drafts.
template <class Cfg>
void mix_drafts(FingerprintHash& hash, const EngineState<Cfg>& state, const Sequence<Cfg>& sequence) {
  hash.mix(state.remap(sequence));
  hash.mix(sequence.prompt_drafts);
  for (std::int32_t i = 0; i < sequence.prompt_drafts; ++i)
    hash.mix(sequence.draft_ids[static_cast<std::size_t>(i)]);
  hash.mix(sequence.passed_over);
  hash.mix(sequence.outputs);
  for (std::int32_t i = 0; i < sequence.outputs; ++i) {
    for (const std::uint16_t confidence : sequence.confidences[static_cast<std::size_t>(i)])
      hash.mix(confidence);
  }
}

template <class Cfg>
void mix_queue(FingerprintHash& hash, const EngineState<Cfg>& state, RequestState queue) {
  hash.mix(state.requests.queued_count(queue));
  for (std::int32_t i = state.requests.first(queue); i >= 0; i = state.requests[i].next) {
    mix_request(hash, state.requests[i]);
  }
}

template <class Cfg>
void mix_places(
    FingerprintHash& hash, const EngineState<Cfg>& state, const typename SequenceTable<Cfg>::Places& places
) {
  hash.mix(places.size());
  for (const std::int32_t place : places) {
    const Sequence<Cfg>& sequence = state.sequences[place];
    const Request& request = state.requests[sequence.request];
    mix_request(hash, request);
    hash.mix(sequence.computed);
    hash.mix(sequence.prefill_length);
    hash.mix(sequence.num_blocks);
    hash.mix(sequence.transfer);
    // Who shares with others copies before it writes.
    hash.mix(state.slots.references(sequence.slot));
    for (const std::int32_t block : state.sequences.blocks(place)) hash.mix(state.blocks.references(block));
    mix_drafts(hash, state, sequence);
  }
}

template <class Cfg>
void mix_frame(FingerprintHash& hash, const EngineState<Cfg>& state, const Frame<Cfg>& frame) {
  hash.mix(static_cast<std::int32_t>(frame.kind));
  hash.mix(frame.provisional);
  hash.mix(frame.num_rows);
  for (std::int32_t r = 0; r < frame.num_rows; ++r) {
    const FrameRow& row = frame.rows[r];
    hash.mix(row.id);
    hash.mix(row.q_len);
    hash.mix(row.reach);
    hash.mix(row.samples);
    hash.mix(state.sequences.holds(row.place, row.serial));
  }
}

template <class Cfg>
void mix_state(FingerprintHash& hash, const EngineState<Cfg>& state) {
  hash.mix(state.failed);
  hash.mix(state.pending);
  mix_queue(hash, state, RequestState::Waiting);
  mix_queue(hash, state, RequestState::Incoming);
  for (const auto* places :
       {&state.sequences.partial,
        &state.sequences.loading,
        &state.sequences.prompted,
        &state.sequences.running}) {
    mix_places(hash, state, *places);
  }
  hash.mix(state.sequences.draining.size());
  for (const std::int32_t place : state.sequences.draining) {
    hash.mix(state.sequences[place].id);
    hash.mix(state.sequences[place].num_blocks);
  }
  hash.mix(state.blocks.free_count());
  hash.mix(state.slots.free_count());
  hash.mix(state.frames.size());
  for (std::int32_t i = 0; i < state.frames.size(); ++i) mix_frame(hash, state, state.frames[i]);
  // A prompt step that the group still votes about.
  if (state.step.kind() == StepKind::Prefill && !state.step.is_published())
    mix_frame(hash, state, state.frames.next());
}

}  // namespace deepinfer
