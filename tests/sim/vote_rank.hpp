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
        stops_(options.stops),
        pauses_(options.pauses) {}

  void list_moves(std::int32_t rank, std::vector<Move>& moves) const {
    if (const std::uint64_t id = next_id(); id != 0) moves.push_back({MoveKind::Arrive, rank, id});
    model.each([&](const Asked& asked) {
      if (aborts_ > 0) moves.push_back({MoveKind::Abort, rank, asked.id});
      if (asked.paused) moves.push_back({MoveKind::Resume, rank, asked.id});
      if (pauses_ > 0 && !asked.paused) moves.push_back({MoveKind::Pause, rank, asked.id});
      if (asked.stage == Stage::Loading) moves.push_back({MoveKind::EndTransfer, rank, asked.id});
    });
    for (const std::uint64_t id : model.draining) moves.push_back({MoveKind::EndTransfer, rank, id});
    if (pendings_ > 0 && !model.pending) moves.push_back({MoveKind::Expect, rank});
    if (model.pending) moves.push_back({MoveKind::Settle, rank});
    if (faults_ > 0) moves.push_back({MoveKind::Fault, rank});
    if (model.flights.empty()) return;
    if (stops_ > 0 && !stop_next_) moves.push_back({MoveKind::Stop, rank});
    if (options_->early) moves.push_back({MoveKind::Commit, rank});
  }

  // `late`: the record that the group decides by is published, its decision is not known yet.
  void disturb(const Move& move, bool late) {
    switch (move.kind) {
      case MoveKind::Proceed:
        break;
      case MoveKind::Arrive:
        arrive(move.id, late);
        break;
      case MoveKind::Abort:
        core.finish(move.id, static_cast<std::int32_t>(Reason::Abort));
        model.end(move.id, Reason::Abort);
        forget_waiting(move.id);
        --aborts_;
        break;
      case MoveKind::Pause:
      case MoveKind::Resume: {
        const bool paused = move.kind == MoveKind::Pause;
        core.set_paused(move.id, paused);
        model.find(move.id)->paused = paused;
        if (paused) {
          forget_waiting(move.id);
          --pauses_;
        }
        break;
      }
      case MoveKind::EndTransfer:
        core.end_transfer(move.id);
        model.end_transfer(move.id);
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
      if (counter.name == "free_places") pools.places = static_cast<std::int32_t>(counter.value);
      if (counter.name == "free_blocks") pools.blocks = static_cast<std::int32_t>(counter.value);
      if (counter.name == "free_slots") pools.slots = static_cast<std::int32_t>(counter.value);
    }
    return pools;
  }

  Local local() const { return model.local(pools()); }

  Record flags() const { return published(local(), wish()); }

  // A step that fails admits nobody.
  void begin(bool fails) {
    if (!fails) model.admit_incoming(pools());
    if (!is_completion()) head_ = model.first_wanted(pools());
  }

  // Takes over the step that the rank scheduled; true if it has no rows. `agreed_graph` counts with padded
  // dispatch.
  bool run(Action action, std::int32_t agreed_graph, Digest& observed) {
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
      const std::int32_t graph = Cfg::kPaddedDispatch ? agreed_graph : smallest_graph(view.total_q);
      require(view.graph == graph && view.total_q <= graph, "I14: the graph of the step");
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
    check_loads();
    collect();
    while (model.flights.size() > keep) commit_oldest();
  }

  // After begin_step: its copies and loads are shown with whatever it led to.
  void check_loads() {
    require(std::ranges::equal(core.step().loads, model.loads), "I20: a step names what is to be loaded");
    model.loads.clear();
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
    digest.add(static_cast<std::uint64_t>(pauses_));
  }

 private:
  static constexpr std::int32_t kToken = 7;
  static constexpr std::int32_t kEndId = 13;

  void forget_waiting(std::uint64_t id) {
    if (head_ == id) head_ = 0;
    if (waiter_ == id) waiter_ = 0;
  }

  static bool is_completion() { return Cfg::kEngineType == deepinfer::EngineType::Completion; }

  void arrive(std::uint64_t id, bool late) {
    const std::int32_t most = std::min(options_->outputs, Cfg::kMaxModelLen - options_->prompt);
    Asked asked{id, options_->prompt, 0, most, 0, Stage::Waiting, false, late};
    if (Cfg::kEngineType == deepinfer::EngineType::Prompt) asked.left = 1;
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(options_->prompt), kToken);
    const std::array ends{kEndId};
    const deepinfer::RequestLimits limits{options_->outputs, 0, ends};
    if (is_completion() || (options_->prompted && id % 2 == 0)) {
      // Its first output token came from elsewhere.
      tokens.push_back(kToken);
      asked.stage = Stage::Incoming;
      asked.computed = ++asked.tokens;
      --asked.left;
      asked.output = 1;
      core.add_prompted({id, tokens, options_->prompt, limits});
      model.incoming.push_back(asked);
    } else {
      core.add({id, tokens, limits, {}, {}});
      model.queue.push_back(asked);
    }
    if (options_->outstanding == 0) --arrivals_;
  }

  // With padded dispatch, the graph size that the rank asks for: all sequences with all drafts.
  std::int32_t wish() const {
    if (!Cfg::kPaddedDispatch) return 0;
    const auto decodes = [](const Asked& asked) { return asked.stage == Stage::Decoding; };
    const auto rows = static_cast<std::int32_t>(std::ranges::count_if(model.placed, decodes));
    return smallest_graph(rows * Cfg::kMaxQ);
  }

  static std::int32_t smallest_graph(std::int32_t tokens) {
    return *std::ranges::lower_bound(Cfg::kGraphSizes, tokens);
  }

  // The id of the request that may arrive, 0 if none may.
  std::uint64_t next_id() const {
    if (options_->outstanding == 0)
      return arrivals_ == 0 ? 0 : static_cast<std::uint64_t>(options_->arrivals - arrivals_ + 1);
    if (model.live_count() >= static_cast<std::size_t>(options_->outstanding)) return 0;
    std::uint64_t id = 1;
    while (model.takes(id)) ++id;
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

  void check_decode(const std::vector<Row>& rows) {
    const std::vector<std::uint64_t> due = model.due_in_decode();
    std::int32_t longest = Cfg::kMaxModelLen;
    for (const Row& row : rows) {
      require(
          std::ranges::count(due, row.id) == 1, "I4: prompt scheduled, never computed, or a row without need"
      );
      const std::int32_t length = model.find(row.id)->tokens;
      require(length <= longest, "order: the longest rows come first");
      longest = length;
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
      // A prefill step's further tokens would be drafts; here it has none.
      if (flight.kind == StepKind::Prefill)
        std::fill_n(tokens.begin() + static_cast<std::ptrdiff_t>(r * Cfg::kMaxQ + 1), Cfg::kNextn, -1);
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
  std::int32_t pauses_;
  bool stop_next_ = false;    // the next commit ends every row
  std::uint64_t head_ = 0;    // the request that could be prefilled when this step began, 0 if none
  std::uint64_t waiter_ = 0;  // the one that could be when the step before began
  std::int32_t waited_ = 0;   // decode steps that it has waited
};

}  // namespace votecheck
