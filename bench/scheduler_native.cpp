// The decode step of one compiled scheduler without Python: times of its parts, instructions for callgrind,
// allocations. Usage: scheduler_native STEPS [parts]; with `parts` the verification alone is timed too.
// Compiled against the generated folder of the engine.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_types.hpp"
#include "engine/verify_row.hpp"
#include "scheduler.hpp"

namespace {

std::int64_t allocations = 0;

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using Config = deepinfer::generated::EngineConfig;
using Scheduler = deepinfer::generated::Scheduler;
using Clock = std::chrono::steady_clock;

constexpr std::int32_t kRows = Config::kMaxNumSeqs;
constexpr std::size_t kSets = 16;  // of results, used in turn
constexpr std::int32_t kWarmup = 20;

class Times {
 public:
  explicit Times(std::size_t steps) { values_.reserve(steps); }

  void add(Clock::time_point begin, Clock::time_point end) {
    values_.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  double quantile(double share) {
    std::ranges::sort(values_);
    return values_[static_cast<std::size_t>(share * static_cast<double>(values_.size() - 1))];
  }

 private:
  std::vector<double> values_;
};

// What the device would have computed.
struct Results {
  std::vector<std::uint16_t> confidences;
  std::vector<std::int32_t> accepted;
};

std::vector<Results> draw_results() {
  std::mt19937_64 random(1);
  std::vector<Results> sets(kSets);
  for (Results& set : sets) {
    set.confidences.resize(static_cast<std::size_t>(kRows * Config::kNextn));
    set.accepted.resize(static_cast<std::size_t>(kRows));
    for (std::uint16_t& confidence : set.confidences) {
      confidence = static_cast<std::uint16_t>(25000 + random() % 40000);
    }
    for (std::int32_t& count : set.accepted) count = 1 + static_cast<std::int32_t>(random() % Config::kMaxQ);
  }
  return sets;
}

// Sequences of `length` tokens, all running, with the record of the step that loaded them.
deepinfer::Record fill(Scheduler& scheduler, std::int32_t length) {
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(length), 5);
  for (std::int32_t i = 1; i <= kRows; ++i) {
    const auto id = static_cast<std::uint64_t>(i);
    scheduler.add_prompted({id, tokens, length - 1, {Config::kMaxModelLen, 0, {}}});
  }
  scheduler.begin_step(nullptr);
  for (std::int32_t i = 1; i <= kRows; ++i) scheduler.end_transfer(static_cast<std::uint64_t>(i));
  return scheduler.flags();
}

struct OpenStep {
  std::uint64_t id = 0;
  std::vector<std::int32_t> counts;
  std::size_t set = 0;
};

// The choice of the total and the split alone, from other data each time.
void time_verification(
    const std::vector<Results>& sets, std::size_t steps, const std::vector<double>& curve
) {
  deepinfer::VarlenVerification<Config> policy;
  policy.set_curve(curve);
  std::vector<deepinfer::VerifyRow> rows(static_cast<std::size_t>(kRows));
  std::vector<std::int32_t> drafts(static_cast<std::size_t>(kRows));
  Times times(steps);
  for (std::size_t k = 0; k < steps; ++k) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::size_t offset = r * std::size_t{Config::kNextn};
      rows[r] = {
          Config::kNextn,
          sets[k % kSets].confidences.data() + offset,
          sets[(k + 1) % kSets].confidences.data() + offset
      };
    }
    const auto begin = Clock::now();
    policy.choose(rows, Config::kMaxTotalQ, drafts);
    times.add(begin, Clock::now());
  }
  std::printf("verification %.3f %.3f\n", times.quantile(0.5), times.quantile(0.99));
}

void time_steps(const std::vector<Results>& sets, std::size_t steps, const std::vector<double>& curve) {
  const auto scheduler = std::make_unique<Scheduler>();
  scheduler->set_cost_curve(curve);
  deepinfer::Record flags = fill(*scheduler, 500);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(kRows * Config::kMaxQ), 7);
  OpenStep open;
  OpenStep next;
  open.counts.reserve(static_cast<std::size_t>(kRows));
  next.counts.reserve(static_cast<std::size_t>(kRows));
  Times begins(steps);
  Times commits(steps);
  std::int64_t counted = 0;
  for (std::size_t k = 0; k < steps + kWarmup; ++k) {
    const std::int64_t before = allocations;
    const auto begin = Clock::now();
    scheduler->begin_step(&flags);
    const auto begun = Clock::now();
    flags = scheduler->flags();
    const std::int64_t scheduled = allocations - before;
    const deepinfer::StepView step = scheduler->step();
    next.id = step.step_id;
    next.set = k % kSets;
    next.counts.clear();
    for (std::int32_t r = 0; r < step.num_rows; ++r) {
      next.counts.push_back(std::min(step.q_len[r], sets[next.set].accepted[static_cast<std::size_t>(r)]));
    }
    const auto rows = open.counts.size();
    const std::int64_t between = allocations;
    const auto commit = Clock::now();
    if (k > 0) {
      const std::uint16_t* const confidences = sets[open.set].confidences.data();
      scheduler->commit(
          open.id, {{tokens.data(), rows, Config::kMaxQ}, open.counts, {confidences, rows, Config::kNextn}}
      );
    }
    const auto committed = Clock::now();
    std::swap(open, next);
    if (k < kWarmup) continue;
    begins.add(begin, begun);
    commits.add(commit, committed);
    counted += scheduled + allocations - between;
  }
  std::printf("begin %.3f %.3f\n", begins.quantile(0.5), begins.quantile(0.99));
  std::printf("commit %.3f %.3f\n", commits.quantile(0.5), commits.quantile(0.99));
  std::printf("allocations %.3f\n", static_cast<double>(counted) / static_cast<double>(steps));
}

}  // namespace

int main(int argc, char** argv) {
  const auto steps = static_cast<std::size_t>(argc > 1 ? std::atoi(argv[1]) : 400);
  const bool parts = argc > 2;
  const std::vector<Results> sets = draw_results();
  std::vector<double> curve;
  for (const std::int32_t size : Config::kGraphSizes) curve.push_back(8 + 0.01 * size);
  time_steps(sets, steps, curve);
  if (parts) time_verification(sets, steps, curve);
  return 0;
}
