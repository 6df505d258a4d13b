// The arrays of one scheduled step, as the model reads them: fixed capacity, filled in place, borrowed by the
// caller.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/engine_api.hpp"
#include "engine/fixed_list.hpp"

namespace deepinfer {

// One row: `tokens` are the ids that are known on the host, from the sequence's start; the row's queries
// begin at position `start`. Ids beyond `tokens` and `drafts` are 0 here and are gathered on the device
// through `remap`.
struct StepRow {
  std::uint64_t id = 0;
  std::uint64_t table = 0;  // names `blocks` as long as they only grow
  std::int32_t start = 0;
  std::int32_t q_len = 0;
  std::int32_t prefill_len = 0;
  std::int32_t slot = 0;
  std::int32_t remap = -1;
  bool samples = false;
  std::int32_t cap = 0;
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> drafts;  // ids that follow `tokens`, where the host knows them
  std::span<const std::int32_t> blocks;
};

template <class Cfg>
class StepBuffers {
 public:
  static constexpr std::int32_t kMaxRows = std::max(Cfg::kMaxNumPrompts, Cfg::kMaxGraphRows);
  static constexpr std::int32_t kMaxTokens = std::max(Cfg::kMaxNumBatchedTokens, Cfg::kMaxTotalQ);

  void clear(StepKind kind) {
    kind_ = kind;
    step_id_ = 0;
    graph_ = 0;
    real_rows_ = rows_ = 0;
    real_tokens_ = tokens_ = 0;
    provisional_ = 0;
    clone_blocks_.clear();
    clone_states_.clear();
    zero_states_.clear();
  }

  void add(const StepRow& row) {
    const std::int32_t r = rows_++;
    ids_[r] = row.id;
    q_len_[r] = row.q_len;
    k_len_[r] = row.start + row.q_len;
    prefill_len_[r] = row.prefill_len;
    slot_[r] = row.slot;
    remap_[r] = row.remap;
    samples_[r] = row.samples;
    caps_[r] = row.cap;
    fill_tokens(row, r);
    fill_table(r, row.table, row.blocks);
    real_rows_ = rows_;
    real_tokens_ = tokens_;
  }

  void zero_state(std::int32_t slot) { zero_states_.push_back(slot); }
  void clone_block(std::int32_t source, std::int32_t copy) { push_pair(clone_blocks_, source, copy); }
  void clone_state(std::int32_t source, std::int32_t copy) { push_pair(clone_states_, source, copy); }
  void set_provisional(bool provisional) { provisional_ = provisional; }

  // Fill up to a graph's token and row counts. Padding tokens share as few rows as max_q allows; each such
  // row looks like a sequence that starts now in block 0 and slot 0. Rows that are left have no queries.
  void pad(std::int32_t graph, std::int32_t capacity) {
    graph_ = graph;
    while (rows_ < capacity) {
      StepRow padding;
      padding.q_len = std::min(Cfg::kMaxQ, graph - tokens_);
      const std::int32_t rows = real_rows_;
      const std::int32_t tokens = real_tokens_;
      add(padding);
      real_rows_ = rows;
      real_tokens_ = tokens;
    }
  }

  void publish(std::uint64_t step_id) { step_id_ = step_id; }

  StepKind kind() const { return kind_; }
  bool is_published() const { return step_id_ != 0; }
  std::int32_t num_rows() const { return real_rows_; }
  std::int32_t total_q() const { return real_tokens_; }

  // Without what the whole state adds: `ignored`, `preempted` and `loads`.
  StepView view() const {
    const auto rows = static_cast<std::size_t>(rows_);
    const auto tokens = static_cast<std::size_t>(tokens_);
    StepView view;
    view.step_id = step_id_;
    view.kind = kind_;
    view.num_rows = real_rows_;
    view.total_q = real_tokens_;
    view.graph = graph_;
    view.ids = {ids_.data(), rows};
    view.q_len = {q_len_.data(), rows};
    view.k_len = {k_len_.data(), rows};
    view.prefill_len = {prefill_len_.data(), rows};
    view.slot = {slot_.data(), rows};
    view.remap = {remap_.data(), rows};
    view.samples = {samples_.data(), rows};
    view.block_table = {block_table_.data(), rows, static_cast<std::size_t>(Cfg::kBlocksPerSeq)};
    view.history = {history_.data(), rows, static_cast<std::size_t>(Cfg::kHistory)};
    view.input_ids = {input_ids_.data(), tokens};
    view.positions = {positions_.data(), tokens};
    view.row_of_token = {row_of_token_.data(), tokens};
    view.provisional = provisional_;
    view.caps = {caps_.data(), static_cast<std::size_t>(real_rows_)};
    view.clone_blocks = pairs(clone_blocks_);
    view.clone_states = pairs(clone_states_);
    view.zero_states = {zero_states_.begin(), static_cast<std::size_t>(zero_states_.size())};
    return view;
  }

 private:
  template <class T, std::int64_t Count>
  using Array = std::array<T, static_cast<std::size_t>(Count)>;
  using Pairs = FixedList<2 * Cfg::kMaxNumSeqs>;

  static void push_pair(Pairs& pairs, std::int32_t source, std::int32_t copy) {
    pairs.push_back(source);
    pairs.push_back(copy);
  }

  static Matrix<std::int32_t> pairs(const Pairs& list) {
    return {list.begin(), static_cast<std::size_t>(list.size()) / 2, 2};
  }

  void fill_tokens(const StepRow& row, std::int32_t r) {
    const auto known = static_cast<std::int32_t>(row.tokens.size());
    std::int32_t* const history = history_.data() + Cfg::kHistory * r;
    for (std::int32_t i = 0; i < Cfg::kHistory; ++i) {
      const std::int32_t position = row.start - Cfg::kHistory + i;
      history[i] = 0 <= position && position < known ? row.tokens[position] : -1;
    }
    // Ids of the sequence, then of drafts that the host knows, then placeholders.
    std::int32_t* const ids = input_ids_.data() + tokens_;
    const std::int32_t from_sequence = std::clamp(known - row.start, 0, row.q_len);
    const std::int32_t from_drafts =
        std::min(static_cast<std::int32_t>(row.drafts.size()), row.q_len - from_sequence);
    for (std::int32_t i = 0; i < from_sequence; ++i) ids[i] = row.tokens[row.start + i];
    for (std::int32_t i = 0; i < from_drafts; ++i) ids[from_sequence + i] = row.drafts[i];
    for (std::int32_t i = from_sequence + from_drafts; i < row.q_len; ++i) ids[i] = 0;
    for (std::int32_t i = 0; i < row.q_len; ++i) {
      positions_[tokens_ + i] = row.start + i;
      row_of_token_[tokens_ + i] = r;
    }
    tokens_ += row.q_len;
  }

  // A table only grows while one sequence keeps its row, so only the new entries are written then.
  void fill_table(std::int32_t row, std::uint64_t name, std::span<const std::int32_t> blocks) {
    std::int32_t* const table =
        block_table_.data() + static_cast<std::size_t>(row) * static_cast<std::size_t>(Cfg::kBlocksPerSeq);
    const auto count = static_cast<std::int32_t>(blocks.size());
    const bool same = table_name_[row] == name;
    const std::int32_t from = same ? table_blocks_[row] : 0;
    std::copy(blocks.begin() + from, blocks.end(), table + from);
    if (count < table_blocks_[row]) std::fill(table + count, table + table_blocks_[row], 0);
    table_name_[row] = name;
    table_blocks_[row] = count;
  }

  StepKind kind_ = StepKind::None;
  std::uint64_t step_id_ = 0;
  std::int32_t graph_ = 0;
  std::int32_t real_rows_ = 0;
  std::int32_t rows_ = 0;
  std::int32_t real_tokens_ = 0;
  std::int32_t tokens_ = 0;
  std::int32_t provisional_ = 0;

  Array<std::uint64_t, kMaxRows> ids_{};
  Array<std::int32_t, kMaxRows> q_len_{};
  Array<std::int32_t, kMaxRows> k_len_{};
  Array<std::int32_t, kMaxRows> prefill_len_{};
  Array<std::int32_t, kMaxRows> slot_{};
  Array<std::int32_t, kMaxRows> remap_{};
  Array<std::int32_t, kMaxRows> samples_{};
  Array<std::int32_t, kMaxRows> caps_{};
  Array<std::int32_t, std::int64_t{kMaxRows} * Cfg::kHistory> history_{};
  Array<std::int32_t, std::int64_t{kMaxRows} * Cfg::kBlocksPerSeq> block_table_{};
  Array<std::uint64_t, kMaxRows> table_name_{};   // which table a row shows
  Array<std::int32_t, kMaxRows> table_blocks_{};  // and how many of its entries are not 0
  Array<std::int32_t, kMaxTokens> input_ids_{};
  Array<std::int32_t, kMaxTokens> positions_{};
  Array<std::int32_t, kMaxTokens> row_of_token_{};
  Pairs clone_blocks_;
  Pairs clone_states_;
  FixedList<Cfg::kMaxNumPrompts> zero_states_;
};

}  // namespace deepinfer
