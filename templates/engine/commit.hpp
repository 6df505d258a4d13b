// Results of the oldest uncommitted step: tokens become output, and requests end by id or by length.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "engine/engine_api.hpp"
#include "engine/engine_state.hpp"

namespace deepinfer {

template <class Cfg>
class Commit {
 public:
  using State = EngineState<Cfg>;

  // Throws std::invalid_argument and changes nothing when the results do not belong to the oldest step.
  CommittedView apply(State& state, std::uint64_t step_id, const StepResults& results) {
    check(state, step_id, results);
    const Frame<Cfg>& frame = state.frames.oldest();
    for (std::int32_t r = 0; r < frame.num_rows; ++r) {
      ids_[r] = frame.rows[r].id;
      emitted_[r] = 0;
      reasons_[r] = 0;
      if (is_live(state, frame.rows[r])) {
        if constexpr (Cfg::kNextn > 0) learn(state.sequences[frame.rows[r].place], frame.kind, results, r);
        emit(state, frame.rows[r].place, row_tokens(results, r), r);
      } else {
        ++state.statistics.dropped_rows;
      }
    }
    const auto rows = static_cast<std::size_t>(frame.num_rows);
    state.frames.pop();
    return {{ids_.data(), rows}, {emitted_.data(), rows}, {reasons_.data(), rows}};
  }

 private:
  static constexpr auto kRows = static_cast<std::size_t>(Frame<Cfg>::kCapacity);

  // A row of a sequence that ended or was preempted after it was scheduled has no one to report to.
  static bool is_live(const State& state, const FrameRow& row) {
    return state.sequences.holds(row.place, row.serial);
  }

  static std::span<const std::int32_t> row_tokens(const StepResults& results, std::int32_t row) {
    const auto index = static_cast<std::size_t>(row);
    return {
        results.tokens.data + index * results.tokens.columns, static_cast<std::size_t>(results.counts[index])
    };
  }

  // The drafts that the row produced: their confidences and, behind a prompt, their ids.
  static void learn(Sequence<Cfg>& sequence, StepKind kind, const StepResults& results, std::int32_t row) {
    const auto index = static_cast<std::size_t>(row);
    if (results.counts[index] == 0) return;
    if (kind == StepKind::Prefill) {
      const std::span drafts(
          results.tokens.data + index * results.tokens.columns + 1, std::size_t{Cfg::kNextn}
      );
      const auto end = std::ranges::find_if(drafts, [](std::int32_t token) { return token < 0; });
      sequence.prompt_drafts = static_cast<std::int32_t>(end - drafts.begin());
      std::copy(drafts.begin(), end, sequence.draft_ids.begin());
      if (sequence.prompt_drafts == 0) return;
    }
    sequence.remember(
        {results.confidences.data + index * results.confidences.columns, std::size_t{Cfg::kNextn}}
    );
  }

  void emit(State& state, std::int32_t place, std::span<const std::int32_t> tokens, std::int32_t row) {
    const std::int32_t index = state.sequences[place].request;
    Request& request = state.requests[index];
    for (const std::int32_t token : tokens) {
      request.tokens.push_back(token);
      ++emitted_[row];
      ++state.statistics.output_tokens;
      Reason reason = Reason::None;
      if (request.output_length() >= request.min_tokens && request.is_end_id(token)) {
        reason = Reason::Stop;
      } else if (request.length() >= request.length_limit) {
        reason = Reason::Length;
      }
      if (reason == Reason::None) continue;
      reasons_[row] = static_cast<std::int32_t>(reason);
      state.end(index, reason, reason == Reason::Stop ? token : -1);
      return;
    }
  }

  static void check(const State& state, std::uint64_t step_id, const StepResults& results) {
    if (state.frames.empty())
      fail("commit of step " + std::to_string(step_id) + ": no step waits for results");
    const Frame<Cfg>& frame = state.frames.oldest();
    if (frame.step_id != step_id) {
      fail(
          "commit of step " + std::to_string(step_id) + ": step " + std::to_string(frame.step_id) +
          " comes first"
      );
    }
    const auto rows = static_cast<std::size_t>(frame.num_rows);
    check_shape("tokens", results.tokens.rows, results.tokens.columns, rows, Cfg::kMaxQ);
    check_shape("counts", results.counts.size(), 1, rows, 1);
    check_shape("confidences", results.confidences.rows, results.confidences.columns, rows, Cfg::kNextn);
    for (std::int32_t r = 0; r < frame.num_rows; ++r) {
      check_row(frame, results, r);
    }
  }

  static void check_row(const Frame<Cfg>& frame, const StepResults& results, std::int32_t index) {
    const FrameRow& row = frame.rows[index];
    const std::int32_t count = results.counts[static_cast<std::size_t>(index)];
    const std::int32_t least = row.samples ? 1 : 0;
    const std::int32_t queries = frame.provisional ? row.reach : row.q_len;
    const std::int32_t most = frame.kind == StepKind::Decode ? queries : least;
    if (count < least || count > most) {
      fail(
          "row " + std::to_string(index) + " (request " + std::to_string(row.id) + "): count " +
          std::to_string(count) + " is not in " + std::to_string(least) + ".." + std::to_string(most)
      );
    }
    for (const std::int32_t token : row_tokens(results, index)) {
      if (token < 0)
        fail("row " + std::to_string(index) + ": token id " + std::to_string(token) + " is negative");
    }
  }

  static void check_shape(
      const char* name, std::size_t rows, std::size_t columns, std::size_t want_rows,
      std::int32_t want_columns
  ) {
    if (rows == want_rows && columns == static_cast<std::size_t>(want_columns)) return;
    fail(
        std::string(name) + " has shape [" + std::to_string(rows) + ", " + std::to_string(columns) +
        "], not [" + std::to_string(want_rows) + ", " + std::to_string(want_columns) + "]"
    );
  }

  [[noreturn]] static void fail(const std::string& message) { throw std::invalid_argument(message); }

  std::array<std::uint64_t, kRows> ids_{};
  std::array<std::int32_t, kRows> emitted_{};
  std::array<std::int32_t, kRows> reasons_{};
};

}  // namespace deepinfer
