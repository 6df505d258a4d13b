// A group of ranks in one thread: their steps, the events between the calls, and what must hold for the
// group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "world/basics.hpp"
#include "world/events.hpp"
#include "world/faults.hpp"
#include "world/group_rule.hpp"
#include "world/rank.hpp"

namespace deepinfer::sim {

class World {
 public:
  World(const Setup& setup, const Scenario& scenario, Tally& tally)
      : scenario_(scenario), limits_(setup.limits), tally_(tally), rule_(limits_), meeting_(ranks()) {
    for (std::size_t r = 0; r < ranks(); ++r) {
      ranks_.push_back(std::make_unique<Rank>(setup, hash(scenario.seed, 21), tally));
      faults_.emplace_back(*ranks_.back(), Ids(r, ranks()), hash(scenario.seed, 31, r), tally);
      if (limits_.varlen) faults_.back().first_curve();
    }
    order_.resize(ranks());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    waits_.resize(ranks());
  }

  // Until everything has ended. Returns the hash of all that was decided.
  std::uint64_t run() {
    const std::uint64_t initial = ranks_[0]->engine->fingerprint();
    while (next_ < scenario_.events.size() && !failed_) step();
    std::int64_t left = 400;
    for (const auto& rank : ranks_) {
      for (const auto& item : rank->model.items)
        left += Requests::is_live(*item) ? 60 * limits_.max_model_len : 0;
    }
    while (!failed_) {
      settle();
      // What arrived after the record that led to DONE belongs to what comes next.
      if (step() == Course::Done && !alive()) break;
      require(--left > 0, "I6: the group does not come to an end; step", step_);
    }
    std::uint64_t trace = hash(static_cast<std::uint64_t>(step_));
    for (const auto& rank : ranks_) {
      if (!failed_) check_end(*rank, initial);
      trace = hash(trace, rank->trace);
    }
    return trace;
  }

  std::int32_t steps() const { return step_; }

  // How each request ended and what it said, in an order that depends on arrivals only.
  struct Outcome {
    std::int32_t reason;
    std::uint64_t text;
  };
  std::vector<Outcome> outcomes() const {
    std::vector<Outcome> result;
    for (const auto& rank : ranks_) {
      for (const auto& item : rank->model.items)
        result.push_back({item->reason, item->stream.prefix(item->length)});
    }
    return result;
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(scenario_.ranks); }

  // A request has not ended, or an error was not told yet.
  bool alive() const {
    return std::ranges::any_of(ranks_, [](const auto& rank) {
      return rank->model.live() > 0 || rank->model.error;
    });
  }

  template <class Call>
  void each(Call call) {
    if (scenario_.permuted) {
      Random random(hash(scenario_.seed, step_, ++shuffles_));
      for (std::size_t i = ranks() - 1; i > 0; --i)
        std::swap(
            order_[i], order_[static_cast<std::size_t>(random.below(static_cast<std::int32_t>(i + 1)))]
        );
    }
    for (const std::size_t r : order_) {
      current_ = r;
      call(r, *ranks_[r]);
    }
  }

  Course step() {
    edge(Edge::BeforeBegin);
    if (scenario_.late_flags && has_flags_) flags_ = ranks_[0]->flags();
    each([](std::size_t, Rank& rank) {
      while (rank.results.size() > 1 ||
             (!rank.results.empty() && rank.model.frames[0].kind == StepKind::Prefill))
        rank.commit();
    });
    const Record* const flags = has_flags_ ? &flags_ : nullptr;
    const std::int32_t agreed = flags == nullptr ? limits_.max_total_q() : flags_[GroupRule::kGraph];
    Course course = rule_.begin(flags);
    bool idle = true;
    each([&](std::size_t, Rank& rank) {
      rank.begin(course == Course::Error);
      idle = idle && !rank.model.decodable();
      const Action action = rank.engine->begin_step(flags);
      expect(rank, action, course == Course::Vote ? Action::Vote : action_of(course), "I2: begin_step");
      rank.learn_loads();
      if (course == Course::Decode) rank.decode(agreed);
      if (course == Course::Prefill) rank.attempt();
    });
    if (course == Course::Vote) course = vote(agreed);
    finish_step(course, idle);
    ++step_;
    return course;
  }

  static Action action_of(Course course) {
    switch (course) {
      case Course::Prefill:
        return Action::Prefill;
      case Course::Decode:
        return Action::Decode;
      case Course::Idle:
        return Action::Idle;
      case Course::Done:
        return Action::Done;
      case Course::Error:
      case Course::Stalled:
        return Action::Fail;
      default:
        return Action::Vote;
    }
  }

  void expect(const Rank& rank, Action is, Action should_be, const char* what) const {
    if (is == should_be) return;
    const char* rule = rule_.point == Point::Any ? "I4:" : rule_.point == Point::All ? "I3:" : "I2:";
    violate(
        rule,
        what,
        "of rank",
        current_,
        "gives action",
        static_cast<int>(is),
        "should be",
        static_cast<int>(should_be),
        "at c",
        rule_.before,
        "b",
        rule_.b,
        rank.engine->fail_reason()
    );
  }

  Course vote(std::int32_t agreed) {
    require(
        !idled_ || events_ > events_at_vote_ || pending_at_idle_,
        "I5: a vote follows a vote, and nothing happened"
    );
    events_at_vote_ = events_;
    each([&](std::size_t r, Rank& rank) { meeting_.put(r, "round 1", 6, rank.first_ballot()); });
    Record reduced = meeting_.complete();
    voting_ = true;
    edge(Edge::BetweenVotes);
    voting_ = false;
    pending_at_idle_ = reduced[GroupRule::kPendingNow] != 0;
    Course course = rule_.first_round(reduced);
    resolve(reduced, course, agreed);
    if (course != Course::Attempt) return course;
    each([&](std::size_t r, Rank& rank) { meeting_.put(r, "round 2", 1, rank.second_ballot()); });
    reduced = meeting_.complete();
    voting_ = true;
    edge(Edge::BeforeResolve);
    voting_ = false;
    course = rule_.second_round(reduced[0] != 0);
    resolve(reduced, course, agreed);
    return course;
  }

  void resolve(const Record& reduced, Course course, std::int32_t agreed) {
    each([&](std::size_t, Rank& rank) {
      const Action action = rank.engine->resolve_vote(reduced);
      expect(rank, action, course == Course::Attempt ? Action::Vote : action_of(course), "resolve_vote");
      if (course == Course::Attempt) rank.attempt();
      if (course == Course::Decode) rank.decode(agreed);
    });
  }

  void finish_step(Course course, bool idle) {
    const bool forward = course == Course::Prefill || course == Course::Decode;
    tally_.rank_steps += scenario_.ranks;
    if (!forward) tally_.idle += scenario_.ranks;
    each([&](std::size_t r, Rank& rank) {
      if (forward) {
        rank.publish();
        check_decision(rank, r);
        const Record shape{
            static_cast<std::int32_t>(course), limits_.padded ? rank.model.plan.graph : 0, 0, 0, 0, 0
        };
        meeting_.put(
            r,
            course == Course::Prefill ? "prefill forward" : "decode forward",
            static_cast<std::size_t>(shape[1]),
            shape
        );
      } else {
        rank.without_step();
        rank.collect();
      }
      rank.mix(static_cast<int>(course));
    });
    if (forward) meeting_.complete();
    if (course == Course::Error || course == Course::Stalled) return fail(course);
    edge(Edge::Scheduled);
    has_flags_ = forward || (course == Course::Idle && limits_.type != EngineType::Normal);
    if (has_flags_ && !scenario_.late_flags) {
      each([&](std::size_t r, Rank& rank) { meeting_.put(r, "flags", 6, rank.flags()); });
      flags_ = meeting_.complete();
    }
    if (forward) each([](std::size_t, Rank& rank) { rank.execute(); });
    if (course == Course::Done) each([](std::size_t, Rank& rank) { rank.drafts.variable = false; });
    progress(course, idle);
    edge(Edge::BeforeCommit);
    each([&](std::size_t r, Rank& rank) {
      rank.collect();
      const bool late = scenario_.zos && hash(scenario_.seed, step_, r) % 4 != 0;
      while (rank.results.size() > (late && course == Course::Decode ? 1U : 0U)) rank.commit();
      if (step_ % scenario_.check_every == 0) rank.check_counts();
    });
    edge(Edge::AfterCommit);
  }

  // How the step came about, as the engine tells it.
  void check_decision(const Rank& rank, std::size_t r) const {
    const Decision is = rank.engine->decision();
    const bool votes = limits_.type == EngineType::Normal;
    const bool voted = votes && rule_.point != Point::None;
    const bool tried = voted && rule_.go != 0;
    require_equal(is.decode_counter, votes ? rule_.before : 0, "I7: decode steps on rank", r);
    require(is.point == (votes ? rule_.point : Point::None), "I3: the kind of the point on rank", r);
    require_equal(is.want, voted ? int{rank.wanted() != nullptr} : -1, "I3: want told on rank", r);
    require_equal(is.go, voted ? rule_.go : -1, "I3: go told on rank", r);
    require_equal(is.scheduled, tried ? int{rank.scheduled()} : -1, "I3: scheduled told on rank", r);
  }

  // Liveness of a group under way.
  void progress(Course course, bool idle) {
    bool wanted = false;
    bool empty = true;
    for (std::size_t r = 0; r < ranks(); ++r) {
      const Rank& rank = *ranks_[r];
      wanted = wanted || rank.wanted() != nullptr;
      empty = empty && rank.model.plan.rows.empty();
      const Item* const head = rank.wanted();
      Wait& wait = waits_[r];
      const std::int32_t pauses = head == nullptr ? 0 : head->pauses;
      if (wait.head != head || wait.pauses != pauses) wait = {head, pauses, 0};
      const bool waits = head != nullptr && course != Course::Prefill && !rank.attempted();
      wait.steps = waits ? wait.steps + 1 : 0;
      const std::int32_t most = limits_.type == EngineType::Prompt ? 2 : limits_.any_interval;
      require(wait.steps <= most, "I6: an admissible head waits for", wait.steps, "steps on rank", r);
    }
    dummies_ = course == Course::Decode && empty && wanted && idle ? dummies_ + 1 : 0;
    require(dummies_ <= 2, "I21: dummy forwards in a row while work waits:", dummies_);
    idled_ = course == Course::Idle && limits_.type == EngineType::Normal;
  }

  // Every rank fails, and stays so.
  void fail(Course course) {
    require(course == Course::Error, "I20: stalled:", ranks_[0]->engine->fail_reason());
    each([&](std::size_t, Rank& rank) {
      require(rank.engine->begin_step(nullptr) == Action::Fail, "I20: a failed rank goes on");
      require(!rank.engine->fail_reason().empty(), "I20: a failed rank does not say why");
    });
    failed_ = true;
    ++tally_.failures;
  }

  // Faults have stopped.
  void settle() {
    for (Faults& faults : faults_) faults.settle();
    ++events_;
  }

  void edge(Edge edge) {
    const auto& events = scenario_.events;
    for (; next_ < events.size(); ++next_) {
      const Event& event = events[next_];
      if (std::pair(event.step, event.edge) > std::pair(step_, edge)) return;
      current_ = static_cast<std::size_t>(event.rank);
      faults_[current_].apply(event, voting_);
      ++events_;
    }
  }

  void check_end(Rank& rank, std::uint64_t initial) {
    while (!rank.results.empty()) rank.commit();
    rank.collect();
    rank.check_counts();
    require_equal(rank.model.blocks.free(), limits_.num_blocks - 1, "I20: free blocks at the end");
    require_equal(rank.model.slots.free(), limits_.num_slots - 1, "I20: free slots at the end");
    require_equal(rank.engine->fingerprint(), initial, "I20: the fingerprint at the end");
    for (const auto& item : rank.model.items) {
      require(item->told, "I20: no end of request", item->id);
      check_output(*item);
    }
  }

  // A request that ended by itself said exactly what an unhurried model would have said.
  void check_output(Item& item) const {
    Reason reason = Reason::None;
    std::int32_t length = item.first_output;
    while (reason == Reason::None) {
      const std::int32_t token = item.stream.token(length++);
      const bool ends = std::ranges::find(item.end_ids, token) != item.end_ids.end();
      if (ends && length - item.prompt_length >= item.min_tokens) {
        reason = Reason::Stop;
      } else if (length >= item.limit) {
        reason = Reason::Length;
      }
    }
    if (item.reason > static_cast<std::int32_t>(Reason::Length) || item.finished) {
      require(item.length < length, "I17: request", item.id, "went on after its end, to length", item.length);
      return;
    }
    require_equal(item.reason, static_cast<std::int32_t>(reason), "I17: the end of request", item.id);
    require_equal(item.length, length, "I17: the length of request", item.id);
  }

  // How long the first that could be prefilled has waited, not counting what was before it was last paused.
  struct Wait {
    const Item* head = nullptr;
    std::int32_t pauses = 0;
    std::int32_t steps = 0;
  };

  const Scenario& scenario_;
  const Limits& limits_;
  Tally& tally_;
  GroupRule rule_;
  Rendezvous meeting_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Faults> faults_;
  std::vector<std::size_t> order_;
  std::vector<Wait> waits_;
  std::uint64_t shuffles_ = 0;
  std::size_t current_ = 0;  // the rank whose turn it is
  std::size_t next_ = 0;     // event
  std::int64_t events_ = 0;
  std::int64_t events_at_vote_ = 0;
  bool pending_at_idle_ = false;
  bool idled_ = false;
  std::int32_t dummies_ = 0;
  std::int32_t step_ = 0;
  Record flags_{};
  bool has_flags_ = false;
  bool voting_ = false;
  bool failed_ = false;
};

}  // namespace deepinfer::sim
