// The arrays of a step against the step that the rules ask for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine_api.hpp"
#include "world/basics.hpp"
#include "world/model.hpp"

namespace deepinfer::sim {

class ViewCheck {
 public:
  ViewCheck(const Limits& limits, const StepView& view, const Plan& plan)
      : limits_(limits), view_(view), plan_(plan) {}

  // What is shown after every action.
  void lists() const {
    compare_ids(view_.ignored, plan_.ignored, "I20: ignored");
    compare_ids(view_.preempted, plan_.preempted, "I18: preempted");
    compare_ids(view_.loads, plan_.loads, "B8: loads");
  }

  void step() const {
    const bool prefill = plan_.kind == StepKind::Prefill;
    require(view_.kind == plan_.kind, "I2: the kind of the step");
    std::vector<std::uint64_t> ids;
    for (const PlannedRow& row : plan_.rows) ids.push_back(row.id);
    compare_ids(
        view_.ids.first(static_cast<std::size_t>(view_.num_rows)), ids, prefill ? "I19: rows" : "I13: rows"
    );
    for (std::size_t r = 0; r < plan_.rows.size(); ++r) row(r, prefill ? "I19:" : "I14:");
    require_equal(view_.total_q, plan_.total, prefill ? "I19: prompt tokens" : "I14: total_q");
    pairs(view_.clone_blocks, plan_.block_copies, "I11: clone_blocks");
    pairs(view_.clone_states, plan_.slot_copies, "I12: clone_states");
    require(
        std::ranges::equal(view_.zero_states, plan_.zeroed),
        "B32: zero_states differ in",
        view_.zero_states.size(),
        "entries"
    );
    require_equal(view_.graph, plan_.graph, "I14: graph of", plan_.total, "tokens");
    require_equal(view_.provisional, plan_.provisional ? 1 : 0, "R2: provisional");
    limits();
    tokens();
    padding();
  }

 private:
  static void compare_ids(
      std::span<const std::uint64_t> is, const std::vector<std::uint64_t>& should_be, const char* what
  ) {
    if (std::ranges::equal(is, should_be)) return;
    std::ostringstream text;
    text << what << " are";
    for (const std::uint64_t id : is) text << ' ' << id;
    text << ", should be";
    for (const std::uint64_t id : should_be) text << ' ' << id;
    throw Violation(text.str());
  }

  static void pairs(
      const Matrix<std::int32_t>& is, const std::vector<std::pair<std::int32_t, std::int32_t>>& should_be,
      const char* what
  ) {
    require_equal(is.rows, should_be.size(), what);
    for (std::size_t i = 0; i < is.rows; ++i)
      require(
          is.data[2 * i] == should_be[i].first && is.data[2 * i + 1] == should_be[i].second,
          what,
          "copies",
          is.data[2 * i],
          "to",
          is.data[2 * i + 1],
          "not",
          should_be[i].first,
          "to",
          should_be[i].second
      );
  }

  void row(std::size_t r, const char* rule) const {
    const PlannedRow& planned = plan_.rows[r];
    const std::uint64_t id = planned.id;
    require_equal(view_.k_len[r] - view_.q_len[r], planned.start, rule, "start of request", id);
    require_equal(view_.q_len[r], planned.q_len, rule, "q_len of request", id);
    require_equal(view_.prefill_len[r], planned.item->prefill_length, rule, "prefill_len of request", id);
    require_equal(view_.slot[r], planned.slot, "I12: slot of request", id);
    require_equal(view_.remap[r], planned.remap, "B3: remap of request", id);
    require_equal(view_.samples[r], planned.samples ? 1 : 0, "I19: samples of request", id);
    require_equal(view_.caps[r], planned.cap, "I15: cap of request", id);
    const std::int32_t* const table = view_.block_table.data + r * view_.block_table.columns;
    for (std::size_t i = 0; i < view_.block_table.columns; ++i) {
      const std::int32_t block = i < planned.blocks.size() ? planned.blocks[i] : 0;
      require_equal(table[i], block, "I9: block", i, "of request", id);
    }
    for (std::int32_t i = 0; i < limits_.history; ++i) {
      const std::int32_t position = planned.start - limits_.history + i;
      const bool known = position >= 0 && position < planned.known;
      const std::int32_t token = known ? planned.item->stream.token(position) : -1;
      const auto at = r * view_.history.columns + static_cast<std::size_t>(i);
      require_equal(view_.history.data[at], token, "B3: history", i, "of request", id);
    }
  }

  // The three limits of a prompt step, and those of a graph.
  void limits() const {
    if (plan_.kind == StepKind::Prefill) {
      std::int32_t sum_k = 0;
      for (std::int32_t r = 0; r < view_.num_rows; ++r) sum_k += view_.k_len[static_cast<std::size_t>(r)];
      require(view_.total_q <= limits_.max_num_batched_tokens, "I19: prompt tokens", view_.total_q);
      require(view_.num_rows <= limits_.max_num_prompts, "I19: prompts", view_.num_rows);
      require(sum_k <= limits_.max_sum_k, "I19: sum of K lengths", sum_k);
      return;
    }
    const std::size_t graph = limits_.graph_of(view_.total_q);
    require(
        limits_.padded ? view_.graph >= limits_.graph_sizes[graph]
                       : view_.graph == limits_.graph_sizes[graph],
        "I14: graph",
        view_.graph,
        "for",
        view_.total_q
    );
    require_equal(view_.input_ids.size(), static_cast<std::size_t>(view_.graph), "B24: tokens of the graph");
    require_equal(
        view_.ids.size(),
        static_cast<std::size_t>(limits_.graph_rows[limits_.graph_of(view_.graph)]),
        "B18: rows of graph",
        view_.graph
    );
  }

  void tokens() const {
    std::size_t t = 0;
    for (std::size_t r = 0; r < view_.ids.size(); ++r) {
      const bool real = std::cmp_less(r, view_.num_rows);
      const std::int32_t start = view_.k_len[r] - view_.q_len[r];
      for (std::int32_t position = start; position < view_.k_len[r]; ++position, ++t) {
        require(t < view_.input_ids.size(), "I14: q_len exceeds the tokens", t);
        require_equal(view_.positions[t], position, "I14: position of token", t);
        require_equal(view_.row_of_token[t], static_cast<std::int32_t>(r), "I14: row of token", t);
        require_equal(
            view_.input_ids[t],
            real ? expected_id(plan_.rows[r], position) : 0,
            "B3: input id of token",
            t,
            "of request",
            view_.ids[r]
        );
      }
    }
    require_equal(t, view_.input_ids.size(), "I14: tokens of all rows");
  }

  static std::int32_t expected_id(const PlannedRow& row, std::int32_t position) {
    if (position < row.known) return row.item->stream.token(position);
    const auto draft = static_cast<std::size_t>(position - row.known);
    return draft < row.drafts.size() ? row.drafts[draft] : 0;
  }

  void padding() const {
    for (auto r = static_cast<std::size_t>(view_.num_rows); r < view_.ids.size(); ++r) {
      const bool neutral = view_.ids[r] == 0 && view_.slot[r] == 0 && view_.remap[r] == -1 &&
                           view_.samples[r] == 0 && view_.k_len[r] == view_.q_len[r] &&
                           view_.prefill_len[r] == 0 && view_.q_len[r] <= limits_.max_q;
      require(neutral, "B24: padding row", r, "is of request", view_.ids[r], "slot", view_.slot[r]);
      const std::int32_t* const table = view_.block_table.data + r * view_.block_table.columns;
      for (std::size_t i = 0; i < view_.block_table.columns; ++i)
        require_equal(table[i], 0, "B24: block", i, "of padding row", r);
    }
  }

  const Limits& limits_;
  const StepView& view_;
  const Plan& plan_;
};

}  // namespace deepinfer::sim
