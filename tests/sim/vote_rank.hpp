// One rank: its scheduler, what the checker knows about it, and the checks of what it does by itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "vote_model.hpp"
#include "vote_moves.hpp"

namespace votecheck {

template <class Cfg, class Scheduler>
class Rank {
 public:
  using Model = RankModel<Cfg>;

  Scheduler core;
  Model model;
  Record vote{};  // as it was published

  explicit Rank(const Options& options)
      : options_(&options),
        arrivals_(options.arrivals),
        aborts_(options.aborts),
        pendings_(options.pendings),
        faults_(options.faults),
        stops_(options.stops) {}

  void list_moves(std::int32_t rank, std::vector<Move>& moves) const {
    if (const std::uint64_t id = next_id(); id != 0) moves.push_back({MoveKind::Arrive, rank, id});
    if (aborts_ > 0) {
      for (const auto* list : {&model.queue, &model.placed})
        for (const Asked& asked : *list) moves.push_back({MoveKind::Abort, rank, asked.id});
    }
    if (pendings_ > 0 && !model.pending) moves.push_back({MoveKind::Expect, rank});
    if (model.pending) moves.push_back({MoveKind::Settle, rank});
    if (faults_ > 0) moves.push_back({MoveKind::Fault, rank});
    if (model.flights.empty()) return;
    if (stops_ > 0 && !stop_next_) moves.push_back({MoveKind::Stop, rank});
    if (options_->early) moves.push_back({MoveKind::Commit, rank});
  }

  // `late`: the first vote of the current step is published, its result is not known yet.
  void disturb(const Move& move, bool late) {
    switch (move.kind) {
      case MoveKind::Proceed:
        break;
      case MoveKind::Arrive: {
        const std::vector<std::int32_t> prompt(static_cast<std::size_t>(options_->prompt), kToken);
        core.add(move.id, prompt, options_->outputs, 0, std::array{kEndId});
        model.queue.push_back({move.id, options_->prompt, options_->outputs, 0, false, late});
        if (options_->outstanding == 0) --arrivals_;
        break;
      }
      case MoveKind::Abort:
        core.finish(move.id, static_cast<std::int32_t>(Reason::Abort));
        model.end(move.id, Reason::Abort);
        if (head_ == move.id) head_ = 0;
        if (waiter_ == move.id) waiter_ = 0;
        --aborts_;
        break;
      case MoveKind::Expect:
      case MoveKind::Settle:
        model.pending = move.kind == MoveKind::Expect;
        core.set_pending(model.pending);
        if (model.pending) --pendings_;
        break;
      case MoveKind::Fault:
        core.set_error("planted");
        model.error = true;
        --faults_;
        break;
      case MoveKind::Stop:
        stop_next_ = true;
        --stops_;
        break;
      case MoveKind::Commit:
        commit_oldest();
        break;
    }
  }

  Pools pools() const {
    Pools pools;
    for (const auto& counter : core.stats()) {
      if (counter.name == "free_blocks") pools.blocks = static_cast<std::int32_t>(counter.value);
      if (counter.name == "free_slots") pools.slots = static_cast<std::int32_t>(counter.value);
    }
    return pools;
  }

  Local local() const { return model.local(pools()); }

  void begin() { head_ = model.first_wanted(pools()); }

  // Takes over the step that the rank scheduled; true if it has no rows.
  bool run(Action action, Digest& observed) {
    const auto view = core.step();
    const StepKind kind = action == Action::Prefill ? StepKind::Prefill : StepKind::Decode;
    require(view.kind == kind, "I8: EP collective missing, the rank has no step of the group's kind");
    Flight flight{view.step_id, kind, {}};
    for (std::int32_t r = 0; r < view.num_rows; ++r) {
      const auto row = static_cast<std::size_t>(r);
      flight.rows.push_back({view.ids[row], view.q_len[row], view.k_len[row], view.samples[row] != 0, true});
      observed.add(static_cast<std::uint64_t>(view.remap[row]));
    }
    for (const std::uint64_t id : view.preempted) model.preempt(id);
    if (kind == StepKind::Prefill) {
      check_prefill(flight.rows);
      flight.rows = model.planned;
    } else {
      check_decode(flight.rows);
      require(view.graph >= view.total_q, "I14: the graph holds the step");
    }
    Model::mix_rows(observed, flight.rows);
    model.flights.push_back(std::move(flight));
    count_waiting(action);
    return view.num_rows == 0;
  }

  // The step, or the lack of one, is known; results of all but `keep` steps come now.
  void conclude(std::size_t keep) {
    model.planned.clear();
    head_ = 0;
    require(std::ranges::equal(core.step().ignored, model.ignored), "I20: a step names what died waiting");
    model.ignored.clear();
    collect();
    while (model.flights.size() > keep) commit_oldest();
  }

  void collect() {
    const auto view = core.outcomes();
    require(view.ids.size() == model.ended.size(), "I20: every request ends once");
    for (std::size_t i = 0; i < view.ids.size(); ++i) {
      const auto& [id, reason] = model.ended[i];
      require(
          view.ids[i] == id && view.reasons[i] == static_cast<std::int32_t>(reason), "I20: how a request ends"
      );
    }
    model.ended.clear();
  }

  // What only the checks and the surroundings know.
  void mix_notes_into(Digest& digest) const {
    model.mix_notes_into(digest);
    digest.add(static_cast<std::uint64_t>(arrivals_ * 64 + aborts_ * 16 + waited_));
    digest.add(head_ * 1024 + waiter_);
    digest.add(static_cast<std::uint64_t>(pendings_ * 64 + faults_ * 16 + stops_ * 2 + stop_next_));
  }

 private:
  static constexpr std::int32_t kToken = 7;
  static constexpr std::int32_t kEndId = 13;

  // The id of the request that may arrive, 0 if none may.
  std::uint64_t next_id() const {
    if (options_->outstanding == 0)
      return arrivals_ == 0 ? 0 : static_cast<std::uint64_t>(options_->arrivals - arrivals_ + 1);
    if (model.live_count() >= static_cast<std::size_t>(options_->outstanding)) return 0;
    std::uint64_t id = 1;
    while (model.lives(id)) ++id;
    return id;
  }

  void check_prefill(const std::vector<Row>& rows) const {
    const auto same = [](const Row& left, const Row& right) {
      return left.id == right.id && left.q_len == right.q_len && left.k_len == right.k_len &&
             left.samples == right.samples;
    };
    require(
        std::ranges::equal(rows, model.planned, same),
        "I19: a prefill step holds what the limits allow, in order"
    );
  }

  void check_decode(const std::vector<Row>& rows) const {
    const std::vector<std::uint64_t> due = model.due_in_decode();
    for (const Row& row : rows) {
      require(
          std::ranges::count(due, row.id) == 1, "I4: prompt scheduled, never computed, or a row without need"
      );
    }
    require(rows.size() == due.size() || Cfg::kTight, "I8: a sequence that can decode has a row");
  }

  // I6: a request that can be prefilled is, within the interval of ANY points.
  void count_waiting(Action action) {
    if (action == Action::Prefill || head_ != waiter_) waited_ = 0;
    waiter_ = action == Action::Prefill ? 0 : head_;
    if (waiter_ == 0) return;
    require(++waited_ <= Cfg::kPrefillAnyAttemptInterval, "I6: starvation, an admissible request waits on");
  }

  void commit_oldest() {
    const Flight flight = std::move(model.flights.front());
    model.flights.pop_front();
    const std::size_t rows = flight.rows.size();
    std::vector<std::int32_t> tokens(rows * Cfg::kMaxQ, kToken);
    std::vector<std::int32_t> counts;
    std::vector<std::uint16_t> confidences(rows * Cfg::kNextn);
    for (std::size_t r = 0; r < rows; ++r) {
      const Row& row = flight.rows[r];
      counts.push_back(flight.kind == StepKind::Decode ? row.q_len : row.samples);
      const auto last = static_cast<std::size_t>(std::max(counts[r] - 1, 0));
      if (stop_next_) tokens[r * Cfg::kMaxQ + last] = kEndId;
    }
    const auto done = core.commit(
        flight.step_id, {{tokens.data(), rows, Cfg::kMaxQ}, counts, {confidences.data(), rows, Cfg::kNextn}}
    );
    require(done.ids.size() == rows, "I17: a commit answers every row");
    for (std::size_t r = 0; r < rows; ++r) {
      const Row& row = flight.rows[r];
      const std::int32_t taken = row.live ? model.deliver(row.id, counts[r], stop_next_) : 0;
      require(done.emitted[r] == taken, "I17: each token once, none after the end");
    }
    stop_next_ = false;
    collect();
  }

  const Options* options_;
  std::int32_t arrivals_;
  std::int32_t aborts_;
  std::int32_t pendings_;
  std::int32_t faults_;
  std::int32_t stops_;
  bool stop_next_ = false;    // the next commit ends every row
  std::uint64_t head_ = 0;    // the request that could be prefilled when this step began, 0 if none
  std::uint64_t waiter_ = 0;  // the one that could be when the step before began
  std::int32_t waited_ = 0;   // decode steps that it has waited
};

}  // namespace votecheck
