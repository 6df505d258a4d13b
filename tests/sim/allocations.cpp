// Decode steps allocate nothing after warm-up: the global operator new counts.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

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

int main() {
  using deepinfer::Action;
  deepinfer::generated::Scheduler scheduler;
  const std::vector<std::int32_t> prompt(4, 7);
  // The fifth request waits and dies there; the first four end one after the other, in decode steps.
  for (std::uint64_t id = 1; id <= 5; ++id) {
    const std::array<std::int32_t, 1> ends{3};
    scheduler.add({id, prompt, {40 + static_cast<std::int64_t>(id), 0, ends}, {}, {}});
  }
  const std::array<std::int32_t, 4> tokens{7, 7, 7, 7};
  const std::array<std::int32_t, 4> counts{1, 1, 1, 1};
  deepinfer::Record flags{};
  std::int64_t decode_steps = 0;
  for (int step = 0; step < 60; ++step) {
    const std::int64_t before = allocations;
    Action action = scheduler.begin_step(step == 0 ? nullptr : &flags);
    while (action == Action::Vote) action = scheduler.resolve_vote(scheduler.vote());
    if (action == Action::Done) break;
    const deepinfer::StepView view = scheduler.step();
    const auto rows = static_cast<std::size_t>(view.num_rows);
    flags = scheduler.flags();
    scheduler.commit(
        view.step_id, {{tokens.data(), rows, 1}, std::span(counts).first(rows), {nullptr, rows, 0}}
    );
    if (step == 30) scheduler.finish(5, static_cast<std::int32_t>(deepinfer::Reason::Abort));
    scheduler.outcomes();
    if (action != Action::Decode || step < 10) continue;
    ++decode_steps;
    if (allocations != before) {
      std::printf("step %d allocates %lld times\n", step, static_cast<long long>(allocations - before));
      return 1;
    }
  }
  std::printf("%lld decode steps without an allocation\n", static_cast<long long>(decode_steps));
  return decode_steps > 30 ? 0 : 1;
}
