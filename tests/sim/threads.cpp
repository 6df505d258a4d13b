// One thread steps an engine while another adds and ends requests: for ThreadSanitizer.
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/engine_instance.hpp"
#include "scheduler.hpp"

int main() {
  using deepinfer::Action;
  const auto engine = std::make_unique<deepinfer::EngineInstance<deepinfer::generated::Scheduler>>();
  engine->set_pending(true);  // keeps the stepping thread from stopping before everything has arrived
  constexpr std::uint64_t kRequests = 300;
  std::thread caller([&engine] {
    const std::vector<std::int32_t> prompt(9, 7);
    for (std::uint64_t id = 1; id <= kRequests; ++id) {
      const std::array<std::int32_t, 1> ends{3};
      engine->add({id, prompt, {6, 0, ends}, {}, {}});
      if (id % 3 != 0) continue;
      try {
        engine->abort(id - 2);
      } catch (const std::invalid_argument&) {
        // The other thread has been told already that it ended.
      }
      engine->fingerprint();
    }
    engine->set_pending(false);
  });

  const std::array<std::int32_t, 4> tokens{7, 7, 7, 7};
  std::uint64_t ended = 0;
  deepinfer::Record flags{};
  bool has_flags = false;
  Action action = Action::Idle;
  while (action != Action::Done) {
    action = engine->begin_step(has_flags ? &flags : nullptr);
    while (action == Action::Vote) action = engine->resolve_vote(engine->vote());
    has_flags = action == Action::Prefill || action == Action::Decode;
    if (has_flags) {
      const deepinfer::StepView view = engine->step();
      const auto rows = static_cast<std::size_t>(view.num_rows);
      std::vector<std::int32_t> counts(view.samples.begin(), view.samples.begin() + view.num_rows);
      flags = engine->flags();
      engine->commit(view.step_id, {{tokens.data(), rows, 1}, counts, {nullptr, rows, 0}});
    }
    ended += engine->outcomes().ids.size();
  }
  caller.join();
  engine->check_invariants();
  std::printf(
      "%llu of %llu requests ended\n",
      static_cast<unsigned long long>(ended),
      static_cast<unsigned long long>(kRequests)
  );
  return ended == kRequests ? 0 : 1;
}
