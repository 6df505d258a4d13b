// A group of schedulers between two collectives, the moves that it and its surroundings can make, and what
// must hold after each of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "vote_moves.hpp"
#include "vote_rank.hpp"
#include "vote_rule.hpp"

namespace votecheck {

template <class Cfg, class Scheduler, template <class> class Rule>
class World {
 public:
  explicit World(const Options& options) : options_(&options) {
    for (std::int32_t r = 0; r < options.ranks; ++r) ranks_.emplace_back(options);
    initial_ = ranks_[0].core.fingerprint();
  }

  void list_moves(std::vector<Move>& moves) const {
    moves.clear();
    if (last_ == Action::Fail) return;
    moves.push_back({});
    for (std::int32_t r = 0; r < options_->ranks; ++r)
      ranks_[static_cast<std::size_t>(r)].list_moves(r, moves);
  }

  // Throws Broken with the rule that this move shows not to hold.
  void apply(const Move& move) {
    observed_ = Digest();
    if (move.kind == MoveKind::Proceed) {
      proceed();
    } else {
      ranks_[static_cast<std::size_t>(move.rank)].disturb(move, phase_ == Phase::First || !Rule<Cfg>::kVotes);
      quiet_ = false;
    }
    for (RankType& rank : ranks_) {
      rank.core.check_invariants();
      rank.collect();
      if (rank.model.decodable()) dummies_ = 0;
    }
  }

  // The schedulers by their fingerprints, the records on the way, and what only the checks and the
  // surroundings know.
  Digest key() const {
    Digest digest;
    digest.add(static_cast<std::uint64_t>(phase_));
    digest.add(static_cast<std::uint64_t>(last_));
    digest.add(quiet_);
    digest.add(static_cast<std::uint64_t>(dummies_));
    digest.add(has_flags_);
    if (has_flags_) digest.add(flags_);
    digest.add(static_cast<std::uint64_t>(agreed_graph_));
    for (const RankType& rank : ranks_) {
      digest.add(rank.core.fingerprint());
      rank.mix_notes_into(digest);
      if (phase_ != Phase::Before) digest.add(rank.vote);
    }
    return digest;
  }

  // The same state in the checker's words: equal keys must have equal ones.
  Digest known() const {
    Digest digest;
    rule_.mix_into(digest);
    for (const RankType& rank : ranks_) rank.model.mix_into(digest);
    return digest;
  }

  // What the last move showed to the outside.
  const Digest& observed() const { return observed_; }

  // Nothing more need happen by itself: the group is done, has failed, or waits for what a rank expects.
  bool at_rest() const {
    return last_ == Action::Done || last_ == Action::Fail || (last_ == Action::Idle && expects());
  }

 private:
  using RankType = Rank<Cfg, Scheduler>;
  enum class Phase : std::uint8_t { Before, First, Second };
  // Two dummy forwards in a row may run while some rank has admissible work (I21).
  static constexpr std::int32_t kMostDummies = 2;

  void proceed() {
    if (phase_ == Phase::Before) return begin();
    std::vector<Record> votes;
    for (const RankType& rank : ranks_) {
      require(rank.core.vote() == rank.vote, "I1: a published vote does not change");
      votes.push_back(rank.vote);
    }
    const Record reduced = maximum(votes);
    const bool first = phase_ == Phase::First;
    const Action expected = first ? rule_.first(reduced) : rule_.second(reduced);
    if (first && expected == Action::Vote)
      for (RankType& rank : ranks_) rank.model.plan_prefill(rank.pools());
    agree([&reduced](RankType& rank) { return rank.core.resolve_vote(reduced); }, expected);
    if (expected == Action::Vote) return publish_votes(Phase::Second);
    conclude(expected);
  }

  void begin() {
    const Action expected = rule_.begin(has_flags_ ? &flags_ : nullptr);
    const Record flags = flags_;
    const bool has_flags = has_flags_;
    has_flags_ = false;
    for (RankType& rank : ranks_) rank.begin(expected == Action::Fail);
    if (expected == Action::Prefill)
      for (RankType& rank : ranks_) rank.model.plan_prefill(rank.pools());
    agreed_graph_ = has_flags ? flags[5] : Cfg::kMaxTotalQ;
    agree([&](RankType& rank) { return rank.core.begin_step(has_flags ? &flags : nullptr); }, expected);
    for (const RankType& rank : ranks_) {
      const auto decision = rank.core.decision();
      require(expected == Action::Fail || decision.point == rule_.point(), "I3/I4: the point of a vote");
      require(
          expected == Action::Fail || decision.decode_counter == rule_.counter(),
          "I7: the counter of decode steps"
      );
    }
    if (expected == Action::Vote) return publish_votes(Phase::First);
    conclude(expected);
  }

  // Every rank must take part in the same collective, and it must be the one that the rule names.
  template <class Call>
  void agree(Call call, Action expected) {
    std::vector<Action> actions;
    for (RankType& rank : ranks_) actions.push_back(call(rank));
    const auto votes = std::ranges::count(actions, Action::Vote);
    require(
        votes == 0 || votes == static_cast<std::ptrdiff_t>(actions.size()),
        "I1: collective mismatch, some ranks vote"
    );
    const bool same = std::ranges::all_of(actions, [&actions](Action a) { return a == actions[0]; });
    require(same, "I2: step type mismatch");
    if (actions[0] != expected) {
      const bool planned =
          std::ranges::any_of(ranks_, [](const RankType& rank) { return !rank.model.planned.empty(); });
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
    for (RankType& rank : ranks_) {
      Record expected{};
      if (phase == Phase::First) {
        expected = first_round(rank.local());
      } else {
        expected[0] = !rank.model.planned.empty();
      }
      rank.vote = rank.core.vote();
      require(rank.vote == expected, "I3: a vote says what the rank can do");
      const auto decision = rank.core.decision();
      const std::int32_t told = phase == Phase::First ? decision.want : decision.scheduled;
      require(told == expected[0], "I3: the decision tells the vote");
      observed_.add(rank.vote);
    }
  }

  void conclude(Action action) {
    phase_ = Phase::Before;
    last_ = action;
    const bool steps = action == Action::Prefill || action == Action::Decode;
    if (steps) run(action);
    if (steps || (action == Action::Idle && !Rule<Cfg>::kVotes)) exchange();
    const std::size_t keep = options_->deferred && action == Action::Decode ? 1 : 0;
    for (RankType& rank : ranks_) {
      rank.conclude(keep);
      if (action == Action::Done) check_done(rank);
      rank.model.forget_late();
    }
    if (action == Action::Idle) {
      // Without anything expected from outside, a second IDLE in a row would be a livelock.
      require(expects() || !quiet_, "I5: livelock, the group votes again and again");
      quiet_ = !expects();
    } else {
      quiet_ = false;
    }
  }

  void run(Action action) {
    const bool wanted = std::ranges::any_of(ranks_, [](const RankType& rank) { return rank.local().want; });
    const bool decodable =
        std::ranges::any_of(ranks_, [](const RankType& rank) { return rank.model.decodable(); });
    bool empty = true;
    for (RankType& rank : ranks_) empty = rank.run(action, agreed_graph_, observed_) && empty;
    dummies_ = empty && wanted && !decodable ? dummies_ + 1 : 0;
    require(dummies_ <= kMostDummies, "I21: dummy forwards run while admissible work waits");
  }

  bool expects() const {
    return std::ranges::any_of(ranks_, [](const RankType& rank) { return rank.local().pending; });
  }

  void check_done(const RankType& rank) const {
    // A request that came after the record which led to DONE belongs to the next call.
    require(rank.model.all(&Asked::late), "I20: DONE only when every request has ended");
    require(
        !rank.model.is_initial() || rank.core.fingerprint() == initial_,
        "I20: at DONE the state is the initial one"
    );
  }

  void exchange() {
    std::vector<Record> records;
    for (const RankType& rank : ranks_) {
      records.push_back(rank.core.flags());
      require(records.back() == rank.flags(), "I3: flags say what the rank is");
    }
    flags_ = maximum(records);
    has_flags_ = true;
    observed_.add(flags_);
  }

  const Options* options_;
  std::vector<RankType> ranks_;
  Rule<Cfg> rule_;
  Phase phase_ = Phase::Before;
  Action last_ = Action::Done;
  bool quiet_ = false;  // the last step was IDLE, nothing was expected, and nothing has happened since
  std::int32_t dummies_ = 0;
  std::int32_t agreed_graph_ = Cfg::kMaxTotalQ;
  Record flags_{};
  bool has_flags_ = false;
  Digest observed_;
  std::uint64_t initial_ = 0;
};

}  // namespace votecheck
