// Steps allocate nothing after warm-up: the global operator new counts. Decode steps of the engine types that
// decode, with fixed and chosen verification lengths and after a fork; chunks of a prompt that a PROMPT
// engine has begun.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <span>
#include <vector>

#include "engine/core.hpp"
#include "engine/order_output_length.hpp"
#include "engine/step_completion.hpp"
#include "engine/step_normal.hpp"
#include "engine/step_prompt.hpp"
#include "engine/verify_fixed.hpp"
#include "engine/verify_varlen.hpp"
#include "world/configs.hpp"

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

using namespace deepinfer;
using sim::Config;
using sim::Shape;

// The calls of one step, counted. Results: one token a row and its drafts.
template <class Cfg, class Scheduler>
class Counted {
 public:
  Scheduler scheduler;
  std::int64_t counted = 0;  // steps
  bool clean = true;         // none of them allocated

  Action step(bool counts) {
    const std::int64_t before = allocations;
    Action action = scheduler.begin_step(has_flags_ ? &flags_ : nullptr);
    while (action == Action::Vote) action = scheduler.resolve_vote(scheduler.vote());
    has_flags_ = action != Action::Done;
    if (action == Action::Prefill || action == Action::Decode) {
      const StepView view = scheduler.step();
      const auto rows = static_cast<std::size_t>(view.num_rows);
      for (std::size_t r = 0; r < rows; ++r) counts_[r] = view.samples[r];
      flags_ = scheduler.flags();
      scheduler.commit(
          view.step_id,
          {{tokens_.data(), rows, Cfg::kMaxQ},
           std::span(counts_).first(rows),
           {confidences_.data(), rows, Cfg::kNextn}}
      );
    } else {
      has_flags_ = has_flags_ && Cfg::kEngineType != EngineType::Normal;
      flags_ = scheduler.flags();
    }
    scheduler.outcomes();
    const bool same = action == (Cfg::kEngineType == EngineType::Prompt ? Action::Prefill : Action::Decode);
    if (!counts || !same) return action;
    ++counted;
    clean = clean && allocations == before;
    return action;
  }

 private:
  static constexpr std::size_t kRows = 16;
  std::array<std::int32_t, kRows* static_cast<std::size_t>(Cfg::kMaxQ)> tokens_{};
  std::array<std::int32_t, kRows> counts_{};
  std::array<std::uint16_t, kRows* static_cast<std::size_t>(Cfg::kNextn)> confidences_{};
  Record flags_{};
  bool has_flags_ = false;
};

template <class Counts>
bool report(const char* name, const Counts& counts, std::int64_t least) {
  const bool fine = counts.clean && counts.counted >= least;
  std::printf(
      "%-22s %3lld steps %s\n",
      name,
      static_cast<long long>(counts.counted),
      !counts.clean ? "ALLOCATE"
      : fine        ? "without an allocation"
                    : "ARE TOO FEW"
  );
  return fine;
}

const std::vector<std::int32_t> kPrompt(4, 7);
const std::array<std::int32_t, 1> kEnds{3};

// Sequences end one after the other, in decode steps; one that waits dies there; one branches in the middle.
template <class Cfg, class Scheduler>
bool normal(const char* name, bool has_curve) {
  Counted<Cfg, Scheduler> engine;
  if (has_curve) {
    std::vector<double> curve;
    for (std::size_t g = 0; g < Cfg::kGraphSizes.size(); ++g) curve.push_back(1 + static_cast<double>(g));
    engine.scheduler.set_cost_curve(curve);
  }
  const std::uint64_t last = static_cast<std::uint64_t>(Cfg::kMaxNumSeqs) + 1;
  for (std::uint64_t id = 1; id <= last; ++id)
    engine.scheduler.add({id, kPrompt, {28 + static_cast<std::int64_t>(id), 0, kEnds}, {}, {}});
  for (int step = 0; step < 50; ++step) {
    // A branch needs the place of one that ended.
    if (step == 25) {
      const std::array<std::uint64_t, 1> child{99};
      engine.scheduler.finish(1, static_cast<std::int32_t>(Reason::Abort));
      engine.scheduler.outcomes();
      engine.scheduler.fork(2, child);
    }
    if (step == 20) engine.scheduler.finish(last, static_cast<std::int32_t>(Reason::Abort));
    if (engine.step(step >= 8) == Action::Done) break;
    if (has_curve) engine.scheduler.observe(Cfg::kGraphSizes[0], 1, 2.5, 0.25);
  }
  return report(name, engine, 20);
}

// Sequences whose caches were loaded.
template <class Cfg, class Scheduler>
bool completion(const char* name) {
  Counted<Cfg, Scheduler> engine;
  for (std::uint64_t id = 1; id <= 4; ++id)
    engine.scheduler.add_prompted({id, kPrompt, 3, {30 + static_cast<std::int64_t>(id), 0, kEnds}});
  engine.step(false);
  for (std::uint64_t id = 1; id <= 4; ++id) engine.scheduler.end_transfer(id);
  for (int step = 0; step < 50; ++step) engine.step(step >= 8);
  return report(name, engine, 20);
}

// One long prompt, chunk by chunk; the first chunk comes with its admission.
template <class Cfg, class Scheduler>
bool prompt(const char* name) {
  Counted<Cfg, Scheduler> engine;
  const std::vector<std::int32_t> long_prompt(static_cast<std::size_t>(Cfg::kMaxModelLen) - 1, 7);
  engine.scheduler.add({1, long_prompt, {1, 0, kEnds}, {}, {}});
  for (int step = 0; step < 50; ++step) engine.step(step >= 4);
  return report(name, engine, 20);
}

}  // namespace

int main() {
  using Plain = Config<Shape{}>;
  using Drafts = Config<Shape{.nextn = 5, .spare_blocks = 40}>;
  using Padded = Config<Shape{.nextn = 3, .spare_blocks = 40, .padded = true}>;
  using Completion = Config<Shape{.type = EngineType::Completion, .nextn = 3, .spare_blocks = 40}>;
  using Prompt = Config<Shape{.type = EngineType::Prompt, .batched_tokens = 1}>;
  bool fine = normal<Plain, Core<Plain, NormalStep, FixedVerification, OutputLengthOrder>>("normal", false);
  fine &=
      normal<Drafts, Core<Drafts, NormalStep, VarlenVerification, OutputLengthOrder>>("normal, varlen", true);
  fine &=
      normal<Padded, Core<Padded, NormalStep, VarlenVerification, OutputLengthOrder>>("normal, padded", true);
  fine &= completion<Completion, Core<Completion, CompletionStep, FixedVerification, OutputLengthOrder>>(
      "completion"
  );
  fine &= prompt<Prompt, Core<Prompt, PromptStep>>("prompt");
  return fine ? 0 : 1;
}
