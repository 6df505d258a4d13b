// The modelled device of one rank. Its memory holds tags instead of keys and values: what each entry was
// computed from. Every read looks whether it finds what the sequence itself wrote.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "world/basics.hpp"
#include "world/drafts.hpp"
#include "world/model.hpp"
#include "world/model_decode.hpp"

namespace deepinfer::sim {

class Device {
 public:
  Device(const Limits& limits, std::uint64_t seed)
      : limits_(limits),
        seed_(seed),
        cache_(static_cast<std::size_t>(limits.num_blocks * limits.block_size)),
        rings_(static_cast<std::size_t>(limits.num_slots * limits.ring())) {}

  // Run a step; `splits` is called with caps, confidences and total of a provisional one.
  template <class Splits>
  Results execute(const Plan& plan, std::uint64_t step_id, const Pool& owners, Splits splits) {
    copy(plan);
    Results results;
    results.step_id = step_id;
    results.rows = static_cast<std::int32_t>(plan.rows.size());
    results.counts.resize(plan.rows.size());
    results.tokens.resize(plan.rows.size() * static_cast<std::size_t>(limits_.max_q), -1);
    results.confidences.resize(plan.rows.size() * static_cast<std::size_t>(limits_.nextn));
    if (plan.kind == StepKind::Prefill) {
      for (std::size_t r = 0; r < plan.rows.size(); ++r) prefill(plan.rows[r], r, results);
      return results;
    }
    std::vector<State> inputs;
    std::vector<std::int32_t> queries;
    for (const PlannedRow& row : plan.rows) {
      inputs.push_back(input(row));
      queries.push_back(row.q_len);
    }
    if (plan.provisional) queries = split_again(plan, inputs, splits);
    std::vector<State> outputs;
    for (std::size_t r = 0; r < plan.rows.size(); ++r) {
      const auto count = verify(plan.rows[r], inputs[r], queries[r], owners);
      results.counts[r] = count;
      Stream& stream = plan.rows[r].item->stream;
      for (std::int32_t j = 0; j < count; ++j)
        results.tokens[r * static_cast<std::size_t>(limits_.max_q) + static_cast<std::size_t>(j)] =
            stream.token(inputs[r].length + j);
      outputs.push_back(draft(*plan.rows[r].item, inputs[r].length + count));
      put_confidences(results, r, outputs.back());
    }
    last_ = std::move(outputs);
    return results;
  }

  // The cache of a request that another engine computed arrives.
  void load(Item& item) {
    write_prompt(item.stream, item.blocks, item.slot, 0, item.prefill_length - 1);
    item.written = item.prefill_length - 1;
  }

  // What a transfer reads is what the sequence had when it began.
  void check_transfer(Item& item) {
    read_cache(item, item.transfer_blocks, item.transfer_length, "B8: a transfer reads");
  }

 private:
  // A row of the last decode step: the newest token and the drafts behind it.
  struct State {
    const Item* item = nullptr;
    std::int32_t length = 0;  // tokens, the newest included
    std::vector<std::int32_t> drafts;
    Confidences confidences{};
  };
  struct RingRow {
    std::uint64_t tag = 0;
    std::int32_t position = -1;
  };

  std::uint64_t& cache(const std::vector<std::int32_t>& blocks, std::int32_t position) {
    const auto at = static_cast<std::size_t>(position / limits_.block_size);
    require(
        at < blocks.size(), "I13: position", position, "lies past the", blocks.size(), "blocks of its row"
    );
    return cache_[static_cast<std::size_t>(blocks[at] * limits_.block_size + position % limits_.block_size)];
  }
  RingRow& ring(std::int32_t slot, std::int32_t position) {
    return rings_[static_cast<std::size_t>(slot * limits_.ring() + position % limits_.ring())];
  }

  void copy(const Plan& plan) {
    for (const auto& [source, copy] : plan.block_copies)
      std::copy_n(
          cache_.begin() + source * limits_.block_size,
          limits_.block_size,
          cache_.begin() + copy * limits_.block_size
      );
    for (const auto& [source, copy] : plan.slot_copies)
      std::copy_n(
          rings_.begin() + source * limits_.ring(), limits_.ring(), rings_.begin() + copy * limits_.ring()
      );
    for (const std::int32_t slot : plan.zeroed)
      std::fill_n(rings_.begin() + slot * limits_.ring(), limits_.ring(), RingRow{});
  }

  void read_cache(Item& item, const std::vector<std::int32_t>& blocks, std::int32_t length, const char* who) {
    const auto tags = item.stream.tags(length);
    for (std::int32_t p = 0; p < length; ++p) {
      require(
          cache(blocks, p) == tags[static_cast<std::size_t>(p)],
          who,
          "position",
          p,
          "of request",
          item.id,
          "and finds what another sequence wrote"
      );
    }
  }

  void read_ring(Item& item, std::int32_t slot, std::int32_t start) {
    for (std::int32_t p = std::max(0, start - Limits::kWindow + 1); p < start; ++p) {
      const RingRow& row = ring(slot, p);
      require_equal(row.position, p, "I16: the ring row of the window of request", item.id, "at", start);
      require(
          row.tag == item.stream.prefix(p + 1),
          "I16: the window of request",
          item.id,
          "at",
          p,
          "is of another sequence"
      );
    }
  }

  void write_prompt(
      Stream& stream, const std::vector<std::int32_t>& blocks, std::int32_t slot, std::int32_t start,
      std::int32_t end
  ) {
    for (std::int32_t p = start; p < end; ++p) {
      const std::uint64_t tag = stream.prefix(p + 1);
      cache(blocks, p) = tag;
      if (p >= end - limits_.ring()) ring(slot, p) = {tag, p};
    }
  }

  void prefill(const PlannedRow& row, std::size_t r, Results& results) {
    Item& item = *row.item;
    if (row.start == 0) {
      for (std::int32_t p = 0; p < limits_.ring(); ++p)
        require_equal(
            ring(row.slot, p).position, -1, "B32: the new slot is not zeroed, row", p, "of request", item.id
        );
    }
    read_cache(item, row.blocks, row.start, "I11: prefill reads");
    read_ring(item, row.slot, row.start);
    write_prompt(item.stream, row.blocks, row.slot, row.start, row.start + row.q_len);
    item.written = row.start + row.q_len;
    if (!row.samples) return;
    const std::int32_t length = row.start + row.q_len + 1;
    results.counts[r] = 1;
    const auto first = static_cast<std::ptrdiff_t>(r) * limits_.max_q;
    results.tokens[static_cast<std::size_t>(first)] = item.stream.token(length - 1);
    State drafted = draft(item, length);
    // A device may deliver fewer drafts, or none.
    const std::uint64_t draw = hash(seed_, item.stream.branch(), length, 77);
    if (draw % 4 == 0) drafted.drafts.resize(draw / 4 % (drafted.drafts.size() + 1));
    std::ranges::copy(drafted.drafts, results.tokens.begin() + first + 1);
    put_confidences(results, r, drafted);
  }

  // What the device knows of the row: from its last decode step, or from the host.
  State input(const PlannedRow& row) {
    State state;
    if (row.remap >= 0) {
      require(std::cmp_less(row.remap, last_.size()), "B3: remap to row", row.remap, "of", last_.size());
      state = last_[static_cast<std::size_t>(row.remap)];
      require(state.item == row.item, "B3: remap of request", row.item->id, "leads to another one");
    } else {
      state = {row.item, row.known, row.drafts, row.item->confidences[0]};
    }
    const std::int32_t start = state.length - 1;
    require(
        start == row.start || (state.length > row.known && start < row.start),
        "I13: request",
        row.item->id,
        "starts at",
        start,
        "on the device, planned",
        row.start
    );
    require(
        std::cmp_less_equal(row.cap, state.drafts.size()),
        "I15: a cap of",
        row.cap,
        "where the device has",
        state.drafts.size(),
        "drafts"
    );
    return state;
  }

  template <class Splits>
  static std::vector<std::int32_t> split_again(
      const Plan& plan, const std::vector<State>& inputs, Splits splits
  ) {
    std::vector<std::int32_t> caps;
    std::vector<Confidences> confidences;
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      caps.push_back(plan.rows[r].cap);
      confidences.push_back(inputs[r].confidences);
    }
    const auto rows = static_cast<std::int32_t>(caps.size());
    std::vector<std::int32_t> queries = split_of(caps, confidences, plan.total - rows);
    for (std::int32_t& count : queries) ++count;
    splits(caps, confidences, plan.total, queries);
    return queries;
  }

  // Returns the accepted drafts and the token behind them.
  std::int32_t verify(const PlannedRow& row, const State& state, std::int32_t queries, const Pool& owners) {
    Item& item = *row.item;
    const std::int32_t start = state.length - 1;
    read_cache(item, row.blocks, start, "I11: decode reads");
    read_ring(item, row.slot, start);
    std::uint64_t tag = item.stream.prefix(start);
    std::int32_t accepted = 0;
    bool right = true;
    for (std::int32_t j = 0; j < queries; ++j) {
      const std::int32_t position = start + j;
      const std::int32_t token =
          j == 0 ? item.stream.token(position) : state.drafts[static_cast<std::size_t>(j - 1)];
      right = right && token == item.stream.token(position);
      accepted += j > 0 && right ? 1 : 0;
      tag = extend(tag, token);
      cache(row.blocks, position) = tag;
      const std::int32_t block = row.blocks[static_cast<std::size_t>(position / limits_.block_size)];
      require(owners.references(block) <= 1, "I11: request", item.id, "writes to shared block", block);
      ring(row.slot, position) = {tag, position};
    }
    // What the first query sees was not overwritten by the last one.
    read_ring(item, row.slot, start);
    item.written = start + accepted + 1;
    return accepted + 1;
  }

  State draft(Item& item, std::int32_t length) const {
    static constexpr std::uint16_t kLevels[] = {0, 9000, 30000, 45875, 52000, 60000, 65000, 65535};
    State state{&item, length, {}, {}};
    Stream& stream = item.stream;
    for (std::int32_t j = 0; j < limits_.nextn; ++j) {
      const std::uint64_t draw = hash(seed_, stream.branch(), length, j);
      const bool right = draw % 100 < 70;
      const std::int32_t token = stream.token(length + j);
      state.drafts.push_back(right ? token : (token + 1) % kVocabulary);
      state.confidences[static_cast<std::size_t>(j)] = kLevels[draw / 128 % 6 + (right ? 2 : 0)];
    }
    return state;
  }

  void put_confidences(Results& results, std::size_t r, const State& state) const {
    const auto width = static_cast<std::size_t>(limits_.nextn);
    std::copy_n(
        state.confidences.begin(), width, results.confidences.begin() + static_cast<std::ptrdiff_t>(r * width)
    );
  }

  const Limits& limits_;
  std::uint64_t seed_;
  std::vector<std::uint64_t> cache_;
  std::vector<RingRow> rings_;
  std::vector<State> last_;  // rows of the last decode step
};

}  // namespace deepinfer::sim
