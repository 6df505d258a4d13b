// Reduces the events of a failing run: drops as many as it can while the same rule stays broken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>

#include "world/events.hpp"
#include "world/world.hpp"

namespace deepinfer::sim {

// The message of the broken rule, empty if none is.
inline std::string failure(const Setup& setup, const Scenario& scenario) {
  Tally tally;
  try {
    World(setup, scenario, tally).run();
  } catch (const std::exception& fault) {
    return fault.what();
  }
  return {};
}

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
