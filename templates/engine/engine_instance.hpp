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

  void add(const NewPrompt& prompt) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.add(prompt);
  }

  void add_prompted(const NewPrompted& prompted) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.add_prompted(prompted);
  }

  void fork(std::uint64_t parent, std::span<const std::uint64_t> children) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.fork(parent, children);
  }

  void pause(std::uint64_t id) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.set_paused(id, true);
  }

  void resume(std::uint64_t id) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.set_paused(id, false);
  }

  void begin_transfer(std::uint64_t id) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.begin_transfer(id);
  }

  void end_transfer(std::uint64_t id) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.end_transfer(id);
  }

  std::vector<std::int32_t> blocks(std::uint64_t id) const override {
    const std::scoped_lock lock(mutex_);
    const auto blocks = scheduler_.blocks(id);
    return {blocks.begin(), blocks.end()};
  }

  std::int32_t slot(std::uint64_t id) const override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.slot(id);
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

  void set_cost_curve(std::span<const double> milliseconds) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.set_cost_curve(milliseconds);
  }

  void observe(std::int32_t graph, std::int32_t rows, double forward_ms, double sampler_ms) override {
    const std::scoped_lock lock(mutex_);
    scheduler_.observe(graph, rows, forward_ms, sampler_ms);
  }

  std::vector<std::int32_t> split(
      std::span<const std::int32_t> caps, const Matrix<std::uint16_t>& confidences, std::int32_t total
  ) const override {
    return Scheduler::split(caps, confidences, total);
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

  Decision decision() const override {
    const std::scoped_lock lock(mutex_);
    return scheduler_.decision();
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
