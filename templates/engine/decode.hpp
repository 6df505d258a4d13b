// Decode: every running sequence takes part as far as blocks reach, the ones with the least output first.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/capacity.hpp"
#include "engine/engine_state.hpp"
#include "engine/fingerprint_hash.hpp"
#include "engine/graph_table.hpp"
#include "engine/group_flags.hpp"
#include "engine/key_sort.hpp"
#include "engine/split.hpp"
#include "engine/verify_row.hpp"

namespace deepinfer {

template <class Cfg, template <class> class Verification, template <class> class Order>
class Decode {
  static_assert(GraphTable<Cfg>::rows_suffice(), "a graph has too few rows for its padding");
  static_assert(
      Cfg::kEngineType != EngineType::Completion || Cfg::kStopPreemptedRequest,
      "a COMPLETION engine has no prefill that could recompute a preempted request"
  );

 public:
  using State = EngineState<Cfg>;

  Verification<Cfg> verification;

  // Takes from the delivered record, null if there is none, what the group agreed on. Throws
  // std::invalid_argument, with nothing changed, if the engine cannot start a step.
  void begin([[maybe_unused]] const Record* flags) {
    if (!verification.ready()) throw std::invalid_argument("begin_step: no cost curve; call set_cost_curve");
    if constexpr (Cfg::kPaddedDispatch) {
      const std::int32_t size = flags == nullptr ? Cfg::kMaxTotalQ : (*flags)[group_flags::kGraph];
      if (std::ranges::find(Cfg::kGraphSizes, size) == Cfg::kGraphSizes.end()) {
        throw std::invalid_argument("begin_step: no graph has the agreed size " + std::to_string(size));
      }
      agreed_ = size;
    }
  }

  // Fill the next frame and the step arrays; with nothing to decode this is a dummy step of padding only.
  void schedule(State& state) {
    state.step.clear(StepKind::Decode);
    state.frames.next().clear(StepKind::Decode);
    join_running(state);
    order_running(state);
    std::array<Candidate, kCapacity> selected;
    verify(state, std::span<const Candidate>(selected).first(select(state, selected)));

    const std::int32_t graph = GraphTable<Cfg>::index(Cfg::kPaddedDispatch ? agreed_ : state.step.total_q());
    state.step.pad(Cfg::kGraphSizes[graph], Cfg::kGraphRows[graph]);
  }

  // What the group agreed on decides only while its vote is open: the next step brings another record.
  void mix_into(FingerprintHash& hash, bool voting) const {
    verification.mix_into(hash);
    if (voting) hash.mix(agreed_);
  }

  // Queries of each row, as the device computes them in a provisional step.
  static std::vector<std::int32_t> split(
      [[maybe_unused]] std::span<const std::int32_t> caps,
      [[maybe_unused]] const Matrix<std::uint16_t>& confidences, [[maybe_unused]] std::int32_t total
  ) {
    if constexpr (Verification<Cfg>::kUsesCurve) {
      if (confidences.columns != std::size_t{Cfg::kNextn}) {
        throw std::invalid_argument(
            "split: " + std::to_string(confidences.columns) + " confidences a row, not " +
            std::to_string(Cfg::kNextn)
        );
      }
      std::vector<std::int32_t> queries(caps.size());
      split_total<Cfg>(caps, {confidences.data, confidences.rows * confidences.columns}, total, queries);
      return queries;
    } else {
      throw std::invalid_argument("split: this engine always verifies all drafts");
    }
  }

  // The graph size that this rank asks for in the next step; 0 where every rank chooses its own.
  std::int32_t wish(const State& state) const {
    if constexpr (!Cfg::kPaddedDispatch) return 0;
    const std::int32_t rows = state.sequences.running.size() + state.sequences.prompted.size();
    return verification.wish(std::min(rows, Cfg::kMaxNumSeqs));
  }

 private:
  static constexpr auto kCapacity = static_cast<std::size_t>(Cfg::kMaxNumSeqs);

  // A sequence that has its memory: `flying` queries may be in the step in flight, `left` tokens are to come.
  struct Candidate {
    std::int32_t place;
    std::int32_t flying;
    std::int32_t left;
  };

  static void join_running(State& state) {
    for (const std::int32_t place : state.sequences.prompted) {
      state.request_at(place).state = RequestState::Running;
      state.sequences.running.push_back(place);
    }
    state.sequences.prompted.clear();
  }

  static void order_running(State& state) {
    auto& running = state.sequences.running;
    KeySort<SequenceTable<Cfg>::kPlaces> order;
    for (const std::int32_t place : running) order.add(Order<Cfg>::key(state.request_at(place)), place);
    running.clear();
    for (const auto& entry : order.sorted()) running.push_back(entry.item);
  }

  // Give memory to one sequence after the other; `selected` receives those that got theirs, the longest
  // first. Returns their number.
  std::size_t select(State& state, std::array<Candidate, kCapacity>& selected) const {
    const auto& running = state.sequences.running;
    std::array<Candidate, kCapacity> found;
    KeySort<kCapacity> order;
    std::int32_t count = 0;
    for (std::int32_t i = 0; i < running.size(); ++i) {
      const std::int32_t place = running[i];
      Sequence<Cfg>& sequence = state.sequences[place];
      const Request& request = state.requests[sequence.request];
      const std::int32_t flying = Capacity<Cfg>::in_flight(state, sequence);
      // A step in flight yields at least one token. When that is the last one, another row would compute
      // nothing of use.
      const std::int32_t left = request.length_limit - request.length() - (flying > 0 ? 1 : 0);
      const bool takes_part = count < agreed_ && !request.paused && left > 0;
      const Room room = takes_part ? Capacity<Cfg>::make_room(state, place, flying) : Room::None;
      if (room == Room::None) sequence.pass_over();
      if (room != Room::Made) continue;
      order.add(static_cast<std::uint32_t>(Cfg::kMaxModelLen - request.length()), count);
      found[static_cast<std::size_t>(count++)] = {place, flying, left};
    }
    std::size_t row = 0;
    for (const auto& entry : order.sorted()) selected[row++] = found[static_cast<std::size_t>(entry.item)];
    return row;
  }

  // Choose the verification lengths of the selected and add their rows.
  void verify(State& state, std::span<const Candidate> selected) {
    std::array<VerifyRow, kCapacity> rows;
    std::array<std::int32_t, kCapacity> drafts;
    std::int32_t total = static_cast<std::int32_t>(selected.size());
    bool newest_on_device = false;
    for (std::size_t i = 0; i < selected.size(); ++i) {
      rows[i] = verify_row(state, selected[i]);
      total += rows[i].cap;
      newest_on_device |= rows[i].cap > 0 && rows[i].split_data == nullptr;
    }
    verification.choose(
        std::span<const VerifyRow>(rows).first(selected.size()),
        agreed_,
        std::span(drafts).first(selected.size())
    );
    for (std::size_t i = 0; i < selected.size(); ++i) add_row(state, selected[i], rows[i].cap, 1 + drafts[i]);
    const bool splits = Verification<Cfg>::kUsesCurve && state.step.total_q() < total;
    state.frames.next().provisional = splits && newest_on_device;
    state.step.set_provisional(splits && newest_on_device);
  }

  static VerifyRow verify_row(const State& state, const Candidate& candidate) {
    const Sequence<Cfg>& sequence = state.sequences[candidate.place];
    const std::int32_t present = state.remap(sequence) >= 0 ? Cfg::kNextn : sequence.prompt_drafts;
    const bool flying = candidate.flying > 0;
    // With a step in flight, the newest confidences that were committed are those before the present drafts.
    const std::int32_t before = flying ? 0 : 1;
    return {
        .cap = std::min(present, candidate.left - 1),
        .total_data = sequence.outputs > before
                          ? sequence.confidences[static_cast<std::size_t>(before)].data()
                          : nullptr,
        .split_data = !flying && sequence.outputs > 0 ? sequence.confidences[0].data() : nullptr
    };
  }

  static void add_row(State& state, const Candidate& candidate, std::int32_t cap, std::int32_t q_len) {
    Sequence<Cfg>& sequence = state.sequences[candidate.place];
    const Request& request = state.requests[sequence.request];
    const std::int32_t index = state.step.num_rows();
    StepRow row;
    row.id = request.id;
    row.table = sequence.table;
    // The first query is the newest token; until the step in flight reports, all of it counts as accepted.
    row.start = request.length() + candidate.flying - 1;
    row.q_len = q_len;
    row.prefill_len = sequence.prefill_length;
    row.slot = sequence.slot;
    row.remap = state.remap(sequence);
    row.samples = true;
    row.cap = cap;
    row.tokens = request.tokens;
    row.drafts = {sequence.draft_ids.data(), static_cast<std::size_t>(sequence.prompt_drafts)};
    row.blocks = state.sequences.blocks(candidate.place);
    state.step.add(row);
    state.frames.next().add({request.id, sequence.serial, candidate.place, q_len, 1 + cap, true});
    sequence.last_step = state.next_step_id;
    sequence.last_row = index;
    sequence.last_reach = 1 + cap;
    sequence.prompt_drafts = 0;
    sequence.passed_over = false;
  }

  // Tokens of the graph that the group agreed on: no step may have more. Ragged ranks agree on nothing.
  std::int32_t agreed_ = Cfg::kMaxTotalQ;
};

}  // namespace deepinfer
