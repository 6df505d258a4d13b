// A group of schedulers between two collectives, the moves that it and its surroundings can make, and what must hold
// after each of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vote_model.hpp"

namespace votecheck {

// What may happen beside the steps themselves.
struct Options {
  const char* name;
  std::int32_t ranks = 2;
  std::int32_t prompt = 1;       // tokens
  std::int32_t outputs = 3;      // the first comes from the prefill step
  std::int32_t arrivals = 2;     // of one rank, in all
  std::int32_t outstanding = 0;  // of one rank at a time, without end; replaces `arrivals` when not 0
  std::int32_t aborts = 0;       // of one rank, in all
  std::int32_t pendings = 0;     // times that a rank may say it expects something
  std::int32_t faults = 0;       // errors that a rank may report
  std::int32_t stops = 0;        // commits of one rank that bring an end id
  bool deferred = false;         // a decode step's results come one step later
  bool early = false;            // or at any earlier point
};

enum class MoveKind : std::uint8_t { Proceed, Arrive, Abort, Expect, Settle, Fault, Stop, Commit };

struct Move {
  MoveKind kind = MoveKind::Proceed;
  std::int32_t rank = 0;
  std::uint64_t id = 0;
};

inline std::string text_of(const Move& move) {
  constexpr std::array names{"proceed", "arrive", "abort", "expect", "settle", "error", "stop next", "commit"};
  std::string text = names[static_cast<std::size_t>(move.kind)];
  if (move.kind == MoveKind::Proceed) return text;
  text += " on rank " + std::to_string(move.rank);
  if (move.id != 0) text += " request " + std::to_string(move.id);
  return text;
}

template <class Cfg, class Scheduler, template <class> class Rule>
class World {
 public:
  explicit World(const Options& options) : options_(&options) {
    for (std::int32_t r = 0; r < options.ranks; ++r) {
      ranks_.emplace_back();
      ranks_.back().arrivals = options.arrivals;
      ranks_.back().aborts = options.aborts;
      ranks_.back().pendings = options.pendings;
      ranks_.back().faults = options.faults;
      ranks_.back().stops = options.stops;
    }
    initial_ = ranks_[0].core.fingerprint();
  }

  void list_moves(std::vector<Move>& moves) const {
    moves.clear();
    if (last_ == Action::Fail) return;
    moves.push_back({});
    for (std::int32_t r = 0; r < options_->ranks; ++r) {
      const Rank& rank = ranks_[static_cast<std::size_t>(r)];
      const Model& model = rank.model;
      if (const std::uint64_t id = next_id(rank); id != 0) moves.push_back({MoveKind::Arrive, r, id});
      if (rank.aborts > 0) {
        for (const auto* list : {&model.queue, &model.placed})
          for (const Asked& asked : *list) moves.push_back({MoveKind::Abort, r, asked.id});
      }
      if (rank.pendings > 0 && !model.pending) moves.push_back({MoveKind::Expect, r});
      if (model.pending) moves.push_back({MoveKind::Settle, r});
      if (rank.faults > 0) moves.push_back({MoveKind::Fault, r});
      if (rank.stops > 0 && !rank.stop_next && !model.flights.empty()) moves.push_back({MoveKind::Stop, r});
      if (options_->early && !model.flights.empty()) moves.push_back({MoveKind::Commit, r});
    }
  }

  // Throws Broken with the rule that this move shows not to hold.
  void apply(const Move& move) {
    observed_ = Digest();
    if (move.kind == MoveKind::Proceed) {
      proceed();
    } else {
      disturb(ranks_[static_cast<std::size_t>(move.rank)], move);
      quiet_ = false;
    }
    for (Rank& rank : ranks_) {
      rank.core.check_invariants();
      collect(rank);
    }
  }

  // The schedulers by their fingerprints, the records on the way, and what only the checks and the surroundings know.
  Digest key() const {
    Digest digest;
    digest.add(static_cast<std::uint64_t>(phase_));
    digest.add(static_cast<std::uint64_t>(last_));
    digest.add(quiet_);
    digest.add(static_cast<std::uint64_t>(dummies_));
    digest.add(has_flags_);
    if (has_flags_) digest.add(flags_);
    for (const Rank& rank : ranks_) {
      digest.add(rank.core.fingerprint());
      rank.model.mix_notes_into(digest);
      if (phase_ != Phase::Before) digest.add(rank.vote);
      digest.add(static_cast<std::uint64_t>(rank.arrivals * 64 + rank.aborts * 16 + rank.waited));
      digest.add(rank.head * 1024 + rank.waiter);
      digest.add(static_cast<std::uint64_t>(rank.pendings * 64 + rank.faults * 16 + rank.stops * 2 + rank.stop_next));
    }
    return digest;
  }

  // The same state in the checker's words: equal keys must have equal ones.
  Digest known() const {
    Digest digest;
    rule_.mix_into(digest);
    for (const Rank& rank : ranks_) rank.model.mix_into(digest);
    return digest;
  }

  // What the last move showed to the outside.
  const Digest& observed() const { return observed_; }

  // Nothing more need happen by itself: the group is done, has failed, or waits for what a rank expects.
  bool at_rest() const {
    const bool expects = std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.model.pending; });
    return last_ == Action::Done || last_ == Action::Fail || (last_ == Action::Idle && expects);
  }

 private:
  using Model = RankModel<Cfg>;
  enum class Phase : std::uint8_t { Before, First, Second };
  static constexpr std::int32_t kToken = 7;
  static constexpr std::int32_t kEndId = 13;
  // Two dummy forwards in a row may run while some rank has admissible work (I21).
  static constexpr std::int32_t kMostDummies = 2;

  struct Rank {
    Scheduler core;
    Model model;
    Record vote{};
    std::int32_t arrivals = 0;
    std::int32_t aborts = 0;
    std::int32_t pendings = 0;
    std::int32_t faults = 0;
    std::int32_t stops = 0;
    std::uint64_t head = 0;    // the request that could be prefilled when this step began, 0 if none
    std::uint64_t waiter = 0;  // the one that could be at the step before
    std::int32_t waited = 0;   // decode steps that it has waited
    bool stop_next = false;

    Pools pools() const {
      Pools pools;
      for (const auto& counter : core.stats()) {
        if (counter.name == "free_blocks") pools.blocks = static_cast<std::int32_t>(counter.value);
        if (counter.name == "free_slots") pools.slots = static_cast<std::int32_t>(counter.value);
      }
      return pools;
    }
  };

  std::uint64_t next_id(const Rank& rank) const {
    if (options_->outstanding == 0) {
      return rank.arrivals == 0 ? 0 : static_cast<std::uint64_t>(options_->arrivals - rank.arrivals + 1);
    }
    if (rank.model.live_count() >= static_cast<std::size_t>(options_->outstanding)) return 0;
    std::uint64_t id = 1;
    while (rank.model.lives(id)) ++id;
    return id;
  }

  void disturb(Rank& rank, const Move& move) {
    switch (move.kind) {
      case MoveKind::Proceed:
        break;
      case MoveKind::Arrive: {
        const std::vector<std::int32_t> prompt(static_cast<std::size_t>(options_->prompt), kToken);
        rank.core.add(move.id, prompt, options_->outputs, 0, std::array{kEndId});
        rank.model.queue.push_back({move.id, options_->prompt, options_->outputs, 0, false, phase_ == Phase::First});
        if (options_->outstanding == 0) --rank.arrivals;
        break;
      }
      case MoveKind::Abort:
        rank.core.finish(move.id, static_cast<std::int32_t>(Reason::Abort));
        rank.model.end(move.id, Reason::Abort);
        if (rank.head == move.id) rank.head = 0;
        if (rank.waiter == move.id) rank.waiter = 0;
        --rank.aborts;
        break;
      case MoveKind::Expect:
      case MoveKind::Settle:
        rank.model.pending = move.kind == MoveKind::Expect;
        rank.core.set_pending(rank.model.pending);
        if (rank.model.pending) --rank.pendings;
        break;
      case MoveKind::Fault:
        rank.core.set_error("planted");
        rank.model.error = true;
        --rank.faults;
        break;
      case MoveKind::Stop:
        rank.stop_next = true;
        --rank.stops;
        break;
      case MoveKind::Commit:
        commit_oldest(rank);
        break;
    }
  }

  void proceed() {
    if (phase_ == Phase::Before) return begin();
    std::vector<Record> votes;
    for (const Rank& rank : ranks_) {
      require(rank.core.vote() == rank.vote, "I1: a published vote does not change");
      votes.push_back(rank.vote);
    }
    const Record reduced = maximum(votes);
    const bool first = phase_ == Phase::First;
    const Action expected = first ? rule_.first(reduced) : rule_.second(reduced);
    if (first && expected == Action::Vote)
      for (Rank& rank : ranks_) rank.model.plan_prefill(rank.pools());
    agree([&reduced](Rank& rank) { return rank.core.resolve_vote(reduced); }, expected);
    if (expected == Action::Vote) return publish_votes(Phase::Second);
    conclude(expected);
  }

  void begin() {
    const Action expected = rule_.begin(has_flags_ ? &flags_ : nullptr);
    const Record flags = flags_;
    const bool has_flags = has_flags_;
    has_flags_ = false;
    for (Rank& rank : ranks_) rank.head = rank.model.first_wanted(rank.pools());
    agree([&](Rank& rank) { return rank.core.begin_step(has_flags ? &flags : nullptr); }, expected);
    if (expected == Action::Vote) return publish_votes(Phase::First);
    conclude(expected);
  }

  // Every rank must take part in the same collective, and it must be the one that the rule names.
  template <class Call>
  void agree(Call call, Action expected) {
    std::vector<Action> actions;
    for (Rank& rank : ranks_) actions.push_back(call(rank));
    const auto votes = std::ranges::count(actions, Action::Vote);
    require(
        votes == 0 || votes == static_cast<std::ptrdiff_t>(actions.size()), "I1: collective mismatch, some ranks vote"
    );
    const bool same = std::ranges::all_of(actions, [&actions](Action a) { return a == actions[0]; });
    require(same, "I2: step type mismatch");
    if (actions[0] != expected) {
      const bool planned =
          std::ranges::any_of(ranks_, [](const Rank& rank) { return !rank.model.planned.empty(); });
      require(!planned, "I4: prompt scheduled, never computed");
      throw Broken(
          "I3/I4: the group's decision is " + std::to_string(static_cast<std::int32_t>(actions[0])) +
          ", the rule says " + std::to_string(static_cast<std::int32_t>(expected))
      );
    }
    observed_.add(static_cast<std::uint64_t>(expected));
  }

  void publish_votes(Phase phase) {
    phase_ = phase;
    for (Rank& rank : ranks_) {
      Record expected{};
      if (phase == Phase::First) {
        expected = first_round(rank.model.local(rank.pools()));
      } else {
        expected[0] = !rank.model.planned.empty();
      }
      rank.vote = rank.core.vote();
      require(rank.vote == expected, "I3: a vote says what the rank can do");
      observed_.add(rank.vote);
    }
  }

  void conclude(Action action) {
    phase_ = Phase::Before;
    last_ = action;
    const bool wanted = std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.model.wants(rank.pools()); });
    const bool decodable = std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.model.decodable(); });
    if (action == Action::Prefill || action == Action::Decode) {
      bool empty = true;
      for (Rank& rank : ranks_) empty = run(rank, action) && empty;
      dummies_ = empty && wanted && !decodable ? dummies_ + 1 : 0;
      require(dummies_ <= kMostDummies, "I21: dummy forwards run while admissible work waits");
      exchange();
    }
    for (Rank& rank : ranks_) {
      rank.model.planned.clear();
      rank.head = 0;
      check_ignored(rank);
      const std::size_t keep = options_->deferred && action == Action::Decode ? 1 : 0;
      collect(rank);
      while (rank.model.flights.size() > keep) commit_oldest(rank);
      if (action == Action::Done) check_done(rank);
      for (Asked& asked : rank.model.queue) asked.late = false;
    }
    if (action == Action::Idle) check_idle();
  }

  void check_done(const Rank& rank) const {
    // A request that came after the record which led to DONE belongs to the next call.
    require(rank.model.only_late(), "I20: DONE only when every request has ended");
    const bool initial = rank.model.queue.empty() && !rank.model.pending && !rank.model.error;
    require(!initial || rank.core.fingerprint() == initial_, "I20: at DONE the state is the initial one");
  }

  void check_ignored(Rank& rank) {
    const auto view = rank.core.step();
    require(std::ranges::equal(view.ignored, rank.model.ignored), "I20: a step names what died waiting");
    rank.model.ignored.clear();
  }

  // Without anything expected from outside, a second IDLE in a row would be a livelock (I5).
  void check_idle() {
    const bool expects = std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.model.pending; });
    require(expects || !quiet_, "I5: livelock, the group votes again and again");
    quiet_ = !expects;
  }

  void exchange() {
    std::vector<Record> records;
    for (const Rank& rank : ranks_) {
      records.push_back(rank.core.flags());
      require(records.back() == published(rank.model.local(rank.pools())), "I3: flags say what the rank is");
    }
    flags_ = maximum(records);
    has_flags_ = true;
    observed_.add(flags_);
  }

  // Takes over the step that the rank scheduled; true if it has no rows.
  bool run(Rank& rank, Action action) {
    const auto view = rank.core.step();
    const StepKind kind = action == Action::Prefill ? StepKind::Prefill : StepKind::Decode;
    require(view.kind == kind, "I8: EP collective missing, the rank has no step of the group's kind");
    Flight flight{view.step_id, kind, {}};
    for (std::int32_t r = 0; r < view.num_rows; ++r) {
      const auto row = static_cast<std::size_t>(r);
      flight.rows.push_back({view.ids[row], view.q_len[row], view.k_len[row], view.samples[row] != 0, true});
      observed_.add(static_cast<std::uint64_t>(view.remap[row]));
    }
    for (const std::uint64_t id : view.preempted) rank.model.preempt(id);
    if (kind == StepKind::Prefill) {
      check_prefill(rank, flight.rows);
      flight.rows = rank.model.planned;
    } else {
      check_decode(rank, flight.rows);
      require(view.graph >= view.total_q, "I14: the graph holds the step");
    }
    Model::mix_rows(observed_, flight.rows);
    rank.model.flights.push_back(std::move(flight));
    count_waiting(rank, action);
    return view.num_rows == 0;
  }

  static void check_prefill(const Rank& rank, const std::vector<Row>& rows) {
    const auto same = [](const Row& left, const Row& right) {
      return left.id == right.id && left.q_len == right.q_len && left.k_len == right.k_len &&
             left.samples == right.samples;
    };
    require(
        std::ranges::equal(rows, rank.model.planned, same), "I19: a prefill step holds what the limits allow, in order"
    );
  }

  void check_decode(const Rank& rank, const std::vector<Row>& rows) const {
    const std::vector<std::uint64_t> due = rank.model.due_in_decode();
    for (const Row& row : rows)
      require(std::ranges::count(due, row.id) == 1, "I4: prompt scheduled, never computed, or a row without need");
    require(rows.size() == due.size() || Cfg::kTight, "I8: a sequence that can decode has a row");
  }

  // I6: a request that can be prefilled is, within the interval of ANY points.
  static void count_waiting(Rank& rank, Action action) {
    if (action == Action::Prefill || rank.head != rank.waiter) rank.waited = 0;
    rank.waiter = action == Action::Prefill ? 0 : rank.head;
    if (rank.waiter == 0) return;
    require(++rank.waited <= Cfg::kPrefillAnyAttemptInterval, "I6: starvation, an admissible request waits on");
  }

  void commit_oldest(Rank& rank) {
    const Flight flight = std::move(rank.model.flights.front());
    rank.model.flights.pop_front();
    const std::size_t rows = flight.rows.size();
    std::vector<std::int32_t> tokens(rows * Cfg::kMaxQ, kToken);
    std::vector<std::int32_t> counts;
    std::vector<std::uint16_t> confidences(rows * Cfg::kNextn);
    for (std::size_t r = 0; r < rows; ++r) {
      const Row& row = flight.rows[r];
      counts.push_back(flight.kind == StepKind::Decode ? row.q_len : row.samples);
      const auto last = static_cast<std::size_t>(std::max(counts[r] - 1, 0));
      if (rank.stop_next) tokens[r * Cfg::kMaxQ + last] = kEndId;
    }
    const auto done = rank.core.commit(
        flight.step_id,
        {{tokens.data(), rows, Cfg::kMaxQ}, counts, {confidences.data(), rows, Cfg::kNextn}}
    );
    require(done.ids.size() == rows, "I17: a commit answers every row");
    for (std::size_t r = 0; r < rows; ++r) {
      const Row& row = flight.rows[r];
      const std::int32_t taken = row.live ? rank.model.deliver(row.id, counts[r], rank.stop_next) : 0;
      require(done.emitted[r] == taken, "I17: each token once, none after the end");
    }
    rank.stop_next = false;
    collect(rank);
  }

  void collect(Rank& rank) {
    const auto view = rank.core.outcomes();
    require(view.ids.size() == rank.model.ended.size(), "I20: every request ends once");
    for (std::size_t i = 0; i < view.ids.size(); ++i) {
      const auto& [id, reason] = rank.model.ended[i];
      require(view.ids[i] == id && view.reasons[i] == static_cast<std::int32_t>(reason), "I20: how a request ends");
      observed_.add(id);
    }
    rank.model.ended.clear();
  }

  const Options* options_;
  std::vector<Rank> ranks_;
  Rule<Cfg> rule_;
  Phase phase_ = Phase::Before;
  Action last_ = Action::Done;
  bool quiet_ = false;  // the last step was IDLE, nothing was expected, and nothing has happened since
  std::int32_t dummies_ = 0;
  Record flags_{};
  bool has_flags_ = false;
  Digest observed_;
  std::uint64_t initial_ = 0;
};

}  // namespace votecheck
