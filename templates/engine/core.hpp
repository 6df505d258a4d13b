// The scheduler: a sans-IO state machine. It never blocks, reads a clock, draws a random number or calls out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/commit.hpp"
#include "engine/engine_api.hpp"
#include "engine/engine_state.hpp"
#include "engine/fingerprint.hpp"
#include "engine/fork.hpp"
#include "engine/graph_table.hpp"
#include "engine/group_flags.hpp"
#include "engine/invariants.hpp"
#include "engine/new_request.hpp"
#include "engine/statistics.hpp"
#include "engine/vote.hpp"

namespace deepinfer {

// `StepPolicy` decides what kind of step runs, and brings the halves that its engine type has: prefill,
// decode, requests computed elsewhere. `DecodePolicies` are those of a step policy that decodes: how many
// drafts a row verifies, and who is served first. Copying a Core gives an independent scheduler in the same
// state.
template <
    class Cfg, template <class, template <class> class...> class StepPolicy,
    template <class> class... DecodePolicies>
class Core {
 public:
  using Policy = StepPolicy<Cfg, DecodePolicies...>;

  void add(const NewPrompt& prompt) {
    if constexpr (Cfg::kEngineType != EngineType::Completion) {
      enter(checked<Cfg>(state_, prompt));
    } else {
      throw std::invalid_argument("add: a COMPLETION engine prefills nothing; use add_prompted");
    }
  }

  void add_prompted(const NewPrompted& prompted) {
    if constexpr (Cfg::kEngineType != EngineType::Prompt) {
      enter(checked<Cfg>(state_, prompted));
    } else {
      throw std::invalid_argument("add_prompted: a PROMPT engine decodes nothing; use add");
    }
  }

  void fork(std::uint64_t parent, std::span<const std::uint64_t> children) {
    if constexpr (Cfg::kEngineType != EngineType::Prompt) {
      Fork<Cfg>::branch(state_, known("fork", parent), children);
    } else {
      throw std::invalid_argument("fork: a PROMPT engine decodes nothing, so it has no branches");
    }
  }

  void finish(std::uint64_t id, std::int32_t reason) {
    if (reason < static_cast<std::int32_t>(Reason::Stop) ||
        reason > static_cast<std::int32_t>(Reason::Error)) {
      throw std::invalid_argument(
          "finish of request " + std::to_string(id) + ": reason " + std::to_string(reason) + " is not in 1..5"
      );
    }
    if (just_ended(id)) return;
    state_.end(known("finish", id), static_cast<Reason>(reason), -1);
  }

  void set_paused(std::uint64_t id, bool paused) {
    if (just_ended(id)) return;
    state_.requests.set_paused(known(paused ? "pause" : "resume", id), paused);
  }

  void begin_transfer(std::uint64_t id) {
    const std::int32_t place = placed("begin_transfer", id);
    if (state_.sequences[place].transfer) {
      throw std::invalid_argument(
          "begin_transfer of request " + std::to_string(id) + ": one is open already"
      );
    }
    state_.begin_transfer(place);
  }

  void end_transfer(std::uint64_t id) {
    const std::int32_t draining = state_.sequences.find_draining(id);
    const std::int32_t place = draining >= 0 ? draining : placed("end_transfer", id);
    if (!state_.sequences[place].transfer) {
      throw std::invalid_argument("end_transfer of request " + std::to_string(id) + ": none is open");
    }
    state_.end_transfer(place);
  }

  std::span<const std::int32_t> blocks(std::uint64_t id) const {
    return state_.sequences.blocks(placed("blocks", id));
  }
  std::int32_t slot(std::uint64_t id) const { return state_.sequences[placed("slot", id)].slot; }

  void set_pending(bool pending) { state_.pending = pending; }

  void set_error(std::string_view message) {
    state_.failed = true;
    state_.error = message;
  }

  void set_cost_curve(std::span<const double> milliseconds) {
    if constexpr (Cfg::kEngineType != EngineType::Prompt) {
      policy_.decode_half.verification.set_curve(milliseconds);
    } else {
      throw std::invalid_argument("set_cost_curve: a PROMPT engine decodes nothing");
    }
  }

  void observe(std::int32_t graph, std::int32_t rows, double forward_ms, double sampler_ms) {
    if constexpr (Cfg::kEngineType != EngineType::Prompt) {
      policy_.decode_half.verification.observe(graph, rows, forward_ms, sampler_ms);
    } else {
      throw std::invalid_argument("observe: a PROMPT engine decodes nothing");
    }
  }

  static std::vector<std::int32_t> split(
      std::span<const std::int32_t> caps, const Matrix<std::uint16_t>& confidences, std::int32_t total
  ) {
    if constexpr (Cfg::kEngineType != EngineType::Prompt) {
      return Policy::DecodeHalf::split(caps, confidences, total);
    } else {
      throw std::invalid_argument("split: a PROMPT engine decodes nothing");
    }
  }

  Action begin_step(const Record* flags) {
    if (stopped_) return Action::Fail;
    if (voting_) throw std::invalid_argument("begin_step: the vote of this step is not resolved");
    check_commits();
    if constexpr (Cfg::kEngineType != EngineType::Prompt) policy_.decode_half.begin(flags);
    state_.begin();
    const bool group_failed = flags != nullptr && (*flags)[group_flags::kError] != 0;
    if constexpr (Cfg::kEngineType != EngineType::Prompt) {
      if (!group_failed) Policy::IncomingHalf::admit(state_);
    }
    return act(policy_.begin(flags, local_state(), vote_));
  }

  const Record& vote() const {
    if (!voting_) throw std::invalid_argument("vote: this step has none");
    return vote_;
  }

  Action resolve_vote(const Record& reduced) {
    if (!voting_) throw std::invalid_argument("resolve_vote: this step has no vote");
    for (std::size_t i = 0; i < vote_.size(); ++i) {
      if (reduced[i] < vote_[i]) {
        throw std::invalid_argument(
            "resolve_vote: element " + std::to_string(i) + " is " + std::to_string(reduced[i]) +
            ", below this rank's own " + std::to_string(vote_[i]) + "; reduce by MAX"
        );
      }
    }
    voting_ = false;
    if constexpr (Cfg::kEngineType == EngineType::Normal) return act(policy_.resolve(reduced));
    throw std::logic_error("only a NORMAL engine votes");
  }

  Record flags() const {
    const LocalState local = local_state();
    Record record{};
    record[group_flags::kDecodable] = local.decodable;
    record[group_flags::kUnfinished] = local.unfinished;
    record[group_flags::kPending] = local.pending;
    record[group_flags::kError] = local.error;
    record[group_flags::kWork] = Policy::work(local);
    if constexpr (Cfg::kEngineType != EngineType::Prompt)
      record[group_flags::kGraph] = policy_.decode_half.wish(state_);
    return record;
  }

  Decision decision() const { return policy_.decision(); }

  StepView step() const {
    StepView view = state_.step.view();
    view.ignored = state_.ignored_view;
    view.preempted = state_.preempted_view;
    view.loads = state_.loads_view;
    return view;
  }

  CommittedView commit(std::uint64_t step_id, const StepResults& results) {
    return commit_.apply(state_, step_id, results);
  }

  OutcomesView outcomes() { return state_.outcomes.take(state_.requests.live_count()); }

  std::uint64_t fingerprint() const {
    FingerprintHash hash;
    hash.mix(stopped_);
    policy_.mix_into(hash);
    if constexpr (Cfg::kEngineType != EngineType::Prompt) policy_.decode_half.mix_into(hash, voting_);
    mix_state<Cfg>(hash, state_);
    return hash.value();
  }

  std::vector<Counter> stats() const { return counters(state_); }

  const std::string& fail_reason() const { return fail_reason_; }

  void check_invariants() const { Invariants<Cfg>::check(state_); }

 private:
  using State = EngineState<Cfg>;

  void enter(Request&& request) {
    state_.requests.add(std::move(request));
    state_.reserve_for_live();
  }

  // The caller has not been told yet, so its call is no mistake.
  bool just_ended(std::uint64_t id) const {
    return state_.requests.find(id) < 0 && state_.outcomes.holds(id);
  }

  std::int32_t known(const char* call, std::uint64_t id) const {
    const std::int32_t index = state_.requests.find(id);
    if (index < 0) {
      throw std::invalid_argument(
          std::string(call) + " of request " + std::to_string(id) +
          (state_.outcomes.holds(id) ? ": it has ended" : ": it was never added, or its end was reported")
      );
    }
    return index;
  }

  std::int32_t placed(const char* call, std::uint64_t id) const {
    const std::int32_t place = state_.requests[known(call, id)].place;
    if (place < 0) {
      throw std::invalid_argument(
          std::string(call) + " of request " + std::to_string(id) + ": it waits and has no blocks"
      );
    }
    return place;
  }

  // A prompt step's tokens are input of whatever comes next; a decode step may still run while one more is
  // scheduled.
  void check_commits() const {
    if (state_.frames.empty()) return;
    const Frame<Cfg>& oldest = state_.frames.oldest();
    if (state_.frames.size() < FrameQueue<Cfg>::kDepth && oldest.kind == StepKind::Decode) return;
    throw std::invalid_argument("begin_step: commit step " + std::to_string(oldest.step_id) + " first");
  }

  LocalState local_state() const {
    LocalState local;
    if constexpr (Cfg::kEngineType != EngineType::Completion) local.want = Policy::PrefillHalf::wants(state_);
    local.decodable = state_.decodable();
    local.unfinished = state_.requests.live_count() > 0;
    local.pending = state_.expects();
    if constexpr (Cfg::kEngineType != EngineType::Prompt) {
      local.pending = local.pending || Policy::IncomingHalf::admissible(state_);
    }
    local.error = state_.failed;
    return local;
  }

  Action act(Verdict verdict) {
    switch (verdict) {
      case Verdict::Vote:
        voting_ = true;
        ++state_.statistics.votes;
        return Action::Vote;
      case Verdict::Attempt:
        if constexpr (Cfg::kEngineType != EngineType::Completion) {
          Policy::PrefillHalf::schedule(state_);
          return act(policy_.attempted(state_.step.num_rows() > 0, vote_));
        }
        break;
      case Verdict::Prefill:
        ++state_.statistics.prefill_steps;
        state_.statistics.prefill_tokens += state_.step.total_q();
        publish();
        return Action::Prefill;
      case Verdict::Decode:
        if constexpr (Cfg::kEngineType != EngineType::Prompt) {
          policy_.decode_half.schedule(state_);
          ++state_.statistics.decode_steps;
          state_.last_decode_step = state_.next_step_id;
          publish();
          return Action::Decode;
        }
        break;
      case Verdict::Idle:
        ++state_.statistics.idle_calls;
        return without_step(Action::Idle);
      case Verdict::Done:
        if constexpr (Cfg::kEngineType != EngineType::Prompt) policy_.decode_half.verification.restart();
        return without_step(Action::Done);
      case Verdict::Error:
        return fail(state_.failed ? state_.error : "another rank of the group reported an error");
      case Verdict::Stalled:
        return fail(stall_report());
    }
    throw std::logic_error("a step policy returned a verdict that its engine type lacks");
  }

  void publish() {
    if (state_.step.num_rows() == 0) ++state_.statistics.dummy_steps;
    state_.step.publish(state_.next_step_id);
    state_.frames.push(state_.next_step_id++);
    state_.show_ignored();
  }

  Action without_step(Action action) {
    state_.step.clear(StepKind::None);
    state_.show_ignored();
    return action;
  }

  Action fail(std::string reason) {
    stopped_ = true;
    fail_reason_ = std::move(reason);
    return without_step(Action::Fail);
  }

  std::string stall_report() const {
    std::string text = "stalled: unfinished requests, and no rank can prefill, decode or expects anything";
    bool waits = false;
    const auto tell = [&](RequestState queue, auto obstacle) {
      const std::int32_t head = state_.requests.first_unpaused(queue);
      if (head < 0) return;
      const char* const lacks = obstacle(state_, head);
      text += "; request " + std::to_string(state_.requests[head].id) + " waits for " +
              (lacks == nullptr ? "its turn" : lacks);
      waits = true;
    };
    if constexpr (Cfg::kEngineType != EngineType::Completion)
      tell(RequestState::Waiting, Policy::PrefillHalf::obstacle);
    if constexpr (Cfg::kEngineType != EngineType::Prompt) {
      tell(RequestState::Incoming, Policy::IncomingHalf::obstacle);
    }
    return waits ? text : text + "; nothing waits on this rank";
  }

  State state_;
  Policy policy_;
  Commit<Cfg> commit_;
  Record vote_{};
  bool voting_ = false;
  bool stopped_ = false;  // an action was FAIL: all that follow are
  std::string fail_reason_;
};

}  // namespace deepinfer
