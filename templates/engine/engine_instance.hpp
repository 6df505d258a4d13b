// A scheduler behind the abstract interface: one lock around every call, no matter which thread makes it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_api.hpp"

namespace deepinfer {

template <class Scheduler>
class EngineInstance final : public EngineApi {
 public:
  EngineInstance() = default;

  void add(
      std::uint64_t id, std::span<const std::int32_t> prompt, std::int64_t max_tokens,
      std::int64_t min_tokens, std::span<const std::int32_t> end_ids
  ) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.add(id, prompt, max_tokens, min_tokens, end_ids);
  }

  void abort(std::uint64_t id) override { finish(id, static_cast<std::int32_t>(Reason::Abort)); }

  void finish(std::uint64_t id, std::int32_t reason) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.finish(id, reason);
  }

  void set_pending(bool pending) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.set_pending(pending);
  }

  void set_error(std::string_view message) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.set_error(message);
  }

  Action begin_step(const Record* flags) override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.begin_step(flags);
  }

  Record vote() const override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.vote();
  }

  Action resolve_vote(const Record& reduced) override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.resolve_vote(reduced);
  }

  Record flags() const override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.flags();
  }

  StepView step() const override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.step();
  }

  CommittedView commit(std::uint64_t step_id, const StepResults& results) override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.commit(step_id, results);
  }

  OutcomesView outcomes() override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.outcomes();
  }

  std::uint64_t fingerprint() const override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.fingerprint();
  }

  std::vector<Counter> stats() const override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.stats();
  }

  std::string fail_reason() const override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.fail_reason();
  }

  std::unique_ptr<EngineApi> clone() const override {
    const std::scoped_lock lock(mutex_);
    return std::unique_ptr<EngineApi>(new EngineInstance(scheduler_));
  }

  void check_invariants() const override {
    const std::scoped_lock lock(mutex_);
    scheduler_.check_invariants();
  }

 private:
  explicit EngineInstance(const Scheduler& scheduler) : scheduler_(scheduler) {}

  mutable std::mutex mutex_;
  Scheduler scheduler_;
};

}  // namespace deepinfer
