// One run of a scenario with all that is checked about it, and its reduction when a rule is broken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "world/events.hpp"
#include "world/world.hpp"

namespace deepinfer::sim {

struct Played {
  std::uint64_t trace;  // hash of all that was decided
  std::int32_t steps;
};

// The same arrivals with results one step late and at once: what ends by itself says the same.
inline void compare_modes(const Setup& setup, Scenario scenario, Tally& tally) {
  std::erase_if(scenario.events, [](const Event& event) {
    return event.kind != Kind::Add && event.kind != Kind::AddBurst && event.kind != Kind::AddPrompted;
  });
  scenario.zos = true;
  World late(setup, scenario, tally);
  late.run();
  scenario.zos = false;
  World prompt(setup, scenario, tally);
  prompt.run();
  const auto left = late.outcomes();
  const auto right = prompt.outcomes();
  require_equal(left.size(), right.size(), "I17: requests of late and prompt results");
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (std::max(left[i].reason, right[i].reason) > 2) continue;  // one of them was preempted
    require(
        left[i].reason == right[i].reason && left[i].text == right[i].text,
        "I17: late and prompt results differ"
    );
  }
}

inline Played play(const Setup& setup, const Scenario& scenario, Tally& tally) {
  World world(setup, scenario, tally);
  const std::uint64_t trace = world.run();
  if (scenario.seed % 16 == 0) compare_modes(setup, scenario, tally);
  return {trace, world.steps()};
}

// The message of the broken rule, empty if none is.
inline std::string failure(const Setup& setup, const Scenario& scenario) {
  Tally tally;
  try {
    play(setup, scenario, tally);
  } catch (const std::exception& fault) {
    return fault.what();
  }
  return {};
}

// Drops as many events as it can while the same rule stays broken.
inline Scenario shrink(const Setup& setup, Scenario scenario, const std::string& message) {
  const std::string rule = Violation::rule_of(message);
  int runs = 2000;
  for (std::size_t size = std::max<std::size_t>(1, scenario.events.size() / 2); size > 0; size /= 2) {
    for (std::size_t at = 0; at < scenario.events.size() && runs > 0;) {
      Scenario fewer = scenario;
      const auto begin = fewer.events.begin() + static_cast<std::ptrdiff_t>(at);
      const std::size_t end = std::min(at + size, fewer.events.size());
      fewer.events.erase(begin, fewer.events.begin() + static_cast<std::ptrdiff_t>(end));
      --runs;
      if (Violation::rule_of(failure(setup, fewer)) == rule) {
        scenario = fewer;
      } else {
        at += size;
      }
    }
  }
  return scenario;
}

}  // namespace deepinfer::sim
