// Decode: every running sequence takes part as far as blocks reach, the ones with the least output first.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/engine_state.hpp"
#include "engine/graph_table.hpp"

namespace deepinfer {

template <class Cfg, template <class> class Verification, template <class> class Order>
class Decode {
  static_assert(GraphTable<Cfg>::rows_suffice(), "a graph has too few rows for its padding");

 public:
  using State = EngineState<Cfg>;

  // Fill the draft frame and the step arrays; with nothing to decode this is a dummy step of padding only.
  static void schedule(State& state) {
    state.step.clear(StepKind::Decode);
    state.frames.draft().clear(StepKind::Decode);
    for (const std::int32_t place : state.sequences.prompted) {
      state.request_at(place).state = RequestState::Running;
      state.sequences.running.push_back(place);
    }
    state.sequences.prompted.clear();
    state.sequences.running.sort(Order<State>{state});

    std::array<Candidate, kCapacity> candidates;
    const std::span selected = std::span(candidates).first(select(state, candidates));
    // One row needs no order, and the compiler sees the heap reach past an array of one.
    if constexpr (kCapacity > 1) {
      std::ranges::make_heap(selected, longest_first);
      std::ranges::sort_heap(selected, longest_first);
    }
    std::array<std::int32_t, kCapacity> caps;
    std::array<std::int32_t, kCapacity> drafts;
    for (std::size_t i = 0; i < selected.size(); ++i) caps[i] = draft_cap(state, selected[i].place);
    Verification<Cfg>::choose(
        std::span(caps).first(selected.size()), std::span(drafts).first(selected.size())
    );
    for (std::size_t i = 0; i < selected.size(); ++i) add_row(state, selected[i].place, 1 + drafts[i]);

    const std::int32_t graph = GraphTable<Cfg>::index(state.step.total_q());
    state.step.pad(Cfg::kGraphSizes[graph], Cfg::kGraphRows[graph]);
  }

 private:
  static constexpr auto kCapacity = static_cast<std::size_t>(Cfg::kMaxNumSeqs);

  struct Candidate {
    std::int32_t place;
    std::int32_t length;
    std::int32_t turn;  // when it was selected
  };

  // Rows that read the most start first; equal lengths keep the order of selection.
  static bool longest_first(const Candidate& left, const Candidate& right) {
    return left.length != right.length ? left.length > right.length : left.turn < right.turn;
  }

  // From the shortest output up; returns how many. On shortage the one with the most output gives way, which
  // may be the candidate itself.
  static std::size_t select(State& state, std::array<Candidate, kCapacity>& selected) {
    const auto& running = state.sequences.running;
    std::size_t count = 0;
    for (std::int32_t i = 0; i < running.size(); ++i) {
      const std::int32_t place = running[i];
      if (tokens_left(state, place) <= 0) continue;
      bool alive = true;
      while (alive && !state.grow(place, capacity_needed(state, place))) {
        const std::int32_t victim = running.back();
        alive = victim != place;
        state.preempt(victim);
      }
      if (alive) selected[count++] = {place, state.request_at(place).length(), i};
    }
    return count;
  }

  // Queries of the sequence in the frame that still runs, 0 if it is in none.
  static std::int32_t in_flight(const State& state, std::int32_t place) {
    const Sequence& sequence = state.sequences[place];
    for (std::int32_t i = 0; i < state.frames.size(); ++i) {
      const Frame<Cfg>& frame = state.frames[i];
      if (frame.step_id == sequence.last_step) return frame.rows[sequence.last_row].q_len;
    }
    return 0;
  }

  // A frame in flight yields at least one token. When that is the last one, another row would compute nothing
  // of use.
  static std::int32_t tokens_left(const State& state, std::int32_t place) {
    const Request& request = state.request_at(place);
    return request.length_limit - request.length() - (in_flight(state, place) > 0 ? 1 : 0);
  }

  // Committed tokens, all that the frame in flight may add, and this step's drafts with the token to come. A
  // drafter writes to rings only, so its reach needs positions but no blocks.
  static std::int32_t capacity_needed(const State& state, std::int32_t place) {
    const std::int32_t flying = in_flight(state, place) > 0 ? Cfg::kNextn + 1 : 0;
    return state.request_at(place).length() + flying + Cfg::kNextn + 1;
  }

  static std::int32_t remap(const State& state, std::int32_t place) {
    const Sequence& sequence = state.sequences[place];
    const bool was_there = sequence.last_step != 0 && sequence.last_step == state.last_decode_step;
    return was_there ? sequence.last_row : -1;
  }

  // Drafts live in the device buffers of the last decode step: a sequence that was not in it has none.
  static std::int32_t draft_cap(const State& state, std::int32_t place) {
    if (remap(state, place) < 0) return 0;
    return std::min(Cfg::kNextn, tokens_left(state, place) - 1);
  }

  static void add_row(State& state, std::int32_t place, std::int32_t q_len) {
    Sequence& sequence = state.sequences[place];
    const Request& request = state.requests[sequence.request];
    StepRow row;
    row.id = request.id;
    row.serial = sequence.serial;
    // The first query is the newest token; until the frame in flight reports, all of it counts as accepted.
    row.start = request.length() + in_flight(state, place) - 1;
    row.q_len = q_len;
    row.slot = sequence.slot;
    row.remap = remap(state, place);
    row.samples = true;
    row.tokens = request.tokens;
    row.blocks = state.sequences.blocks(place);
    const std::int32_t index = state.step.num_rows();
    state.step.add(row);
    state.frames.draft().add({request.id, sequence.serial, place, q_len, true});
    sequence.last_step = state.next_step_id;
    sequence.last_row = index;
  }
};

}  // namespace deepinfer
