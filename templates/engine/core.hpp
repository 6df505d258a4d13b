// The scheduler: a sans-IO state machine. It never blocks, reads a clock, draws a random number or calls out.
#pragma once

#include <algorithm>
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
#include "engine/invariants.hpp"
#include "engine/vote.hpp"

namespace deepinfer {

// `StepPolicy` decides what kind of step runs. `DecodePolicies` are those of a step policy that decodes: how
// many drafts a row verifies, and who is served first. Copying a Core gives an independent scheduler in the
// same state.
template <class Cfg, template <class> class StepPolicy, template <class> class... DecodePolicies>
class Core {
 public:
  void add(
      std::uint64_t id, std::span<const std::int32_t> prompt, std::int64_t max_tokens,
      std::int64_t min_tokens, std::span<const std::int32_t> end_ids
  ) {
    check_request(id, prompt, max_tokens, min_tokens);
    const auto prompt_length = static_cast<std::int32_t>(prompt.size());
    Request request;
    request.id = id;
    request.tokens.assign(prompt.begin(), prompt.end());
    request.prompt_length = prompt_length;
    request.length_limit = static_cast<std::int32_t>(std::min<std::int64_t>(
        std::int64_t{prompt_length} + std::min<std::int64_t>(max_tokens, Cfg::kMaxModelLen), Cfg::kMaxModelLen
    ));
    request.min_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(min_tokens, Cfg::kMaxModelLen));
    request.end_ids.assign(end_ids.begin(), end_ids.end());
    state_.requests.add(std::move(request));
    state_.reserve_for_live();
  }

  // No effect on a request that has ended.
  void finish(std::uint64_t id, std::int32_t reason) {
    if (reason < static_cast<std::int32_t>(Reason::Stop) ||
        reason > static_cast<std::int32_t>(Reason::Error)) {
      throw std::invalid_argument(
          "finish of request " + std::to_string(id) + ": reason " + std::to_string(reason) + " is not in 1..5"
      );
    }
    const std::int32_t index = state_.requests.find(id);
    if (index >= 0) state_.end(index, static_cast<Reason>(reason), -1);
  }

  void set_pending(bool pending) { state_.pending = pending; }

  void set_error(std::string_view message) {
    state_.failed = true;
    state_.error = message;
  }

  Action begin_step(const Record* flags) {
    if (failed_) return Action::Fail;
    if (voting_) throw std::invalid_argument("begin_step: the vote of this step is not resolved");
    check_commits();
    state_.preempted_view.clear();
    state_.step.clear(StepKind::None);
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
    return act(policy_.resolve(reduced));
  }

  Record flags() const {
    const LocalState local = local_state();
    Record record{};
    record[group_flags::kDecodable] = local.decodable;
    record[group_flags::kUnfinished] = local.unfinished;
    record[group_flags::kPending] = local.pending;
    record[group_flags::kError] = local.error;
    return record;
  }

  StepView step() const { return state_.step.view(state_.ignored_view, state_.preempted_view); }

  CommittedView commit(std::uint64_t step_id, const StepResults& results) {
    return commit_.apply(state_, step_id, results);
  }

  OutcomesView outcomes() { return state_.outcomes.take(state_.requests.live_count()); }

  std::uint64_t fingerprint() const {
    FingerprintHash hash;
    policy_.mix_into(hash);
    mix_state<Cfg>(hash, state_);
    return hash.value();
  }

  std::vector<Counter> stats() const {
    const Statistics& s = state_.statistics;
    return {
        {"waiting", state_.requests.waiting_count()},
        {"partial", state_.sequences.partial.size()},
        {"prompted", state_.sequences.prompted.size()},
        {"running", state_.sequences.running.size()},
        {"uncommitted_steps", state_.frames.size()},
        {"free_blocks", state_.blocks.free_count()},
        {"free_slots", state_.slots.free_count()},
        {"votes", s.votes},
        {"prefill_steps", s.prefill_steps},
        {"decode_steps", s.decode_steps},
        {"dummy_steps", s.dummy_steps},
        {"idle_calls", s.idle_calls},
        {"prefill_tokens", s.prefill_tokens},
        {"output_tokens", s.output_tokens},
        {"dropped_rows", s.dropped_rows},
        {"preemptions", s.preemptions},
    };
  }

  const std::string& fail_reason() const { return fail_reason_; }

  void check_invariants() const { Invariants<Cfg>::check(state_); }

 private:
  using State = EngineState<Cfg>;
  using Policy = StepPolicy<Cfg>;

  void check_request(
      std::uint64_t id, std::span<const std::int32_t> prompt, std::int64_t max_tokens, std::int64_t min_tokens
  ) const {
    const std::string who = "request " + std::to_string(id) + ": ";
    if (state_.requests.find(id) >= 0)
      throw std::invalid_argument(who + "a request of this id has not ended");
    const auto length = static_cast<std::int64_t>(prompt.size());
    if (length == 0) throw std::invalid_argument(who + "the prompt has no tokens");
    if (length >= Cfg::kMaxModelLen) {
      throw std::invalid_argument(
          who + "a prompt of " + std::to_string(length) +
          " tokens leaves no room for output within max_model_len " + std::to_string(Cfg::kMaxModelLen)
      );
    }
    if (max_tokens < 1)
      throw std::invalid_argument(who + "max_tokens is " + std::to_string(max_tokens) + ", below 1");
    if (min_tokens < 0 || min_tokens > max_tokens) {
      throw std::invalid_argument(
          who + "min_tokens is " + std::to_string(min_tokens) + ", not in 0.." + std::to_string(max_tokens)
      );
    }
    const auto negative = std::ranges::find_if(prompt, [](std::int32_t token) { return token < 0; });
    if (negative != prompt.end()) {
      throw std::invalid_argument(
          who + "prompt token " + std::to_string(negative - prompt.begin()) + " is " +
          std::to_string(*negative) + ", below 0"
      );
    }
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
    if constexpr (Cfg::kEngineType != EngineType::Completion) local.want = Policy::wants_prefill(state_);
    local.decodable = state_.decodable();
    local.unfinished = state_.requests.live_count() > 0;
    local.pending = state_.pending;
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
        Policy::schedule_prefill(state_);
        return act(policy_.attempted(state_.step.num_rows() > 0, vote_));
      case Verdict::Prefill:
        ++state_.statistics.prefill_steps;
        state_.statistics.prefill_tokens += state_.step.total_q();
        publish();
        return Action::Prefill;
      case Verdict::Decode:
        if constexpr (Cfg::kEngineType != EngineType::Prompt) {
          Policy::template schedule_decode<DecodePolicies...>(state_);
        }
        ++state_.statistics.decode_steps;
        state_.last_decode_step = state_.next_step_id;
        publish();
        return Action::Decode;
      case Verdict::Idle:
        ++state_.statistics.idle_calls;
        return without_step(Action::Idle);
      case Verdict::Done:
        return without_step(Action::Done);
      case Verdict::Error:
        return fail(state_.failed ? state_.error : "another rank of the group reported an error");
      case Verdict::Stalled:
        return fail(stall_report());
    }
    throw std::logic_error("a step policy returned no known verdict");
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
    failed_ = true;
    fail_reason_ = std::move(reason);
    return without_step(Action::Fail);
  }

  std::string stall_report() const {
    std::string text = "stalled: unfinished requests, and no rank can prefill, decode or expects anything; ";
    const std::int32_t head = state_.requests.head();
    if (head < 0) return text + "nothing waits on this rank";
    const char* const obstacle = Policy::prefill_obstacle(state_, head);
    return text + "request " + std::to_string(state_.requests[head].id) + " waits for " +
           (obstacle == nullptr ? "its turn" : obstacle);
  }

  State state_;
  Policy policy_;
  Commit<Cfg> commit_;
  Record vote_{};
  bool voting_ = false;
  bool failed_ = false;
  std::string fail_reason_;
};

}  // namespace deepinfer
