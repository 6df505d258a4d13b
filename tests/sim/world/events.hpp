// What happens to a group from outside, drawn from a seed before the run: each event has its own seed, so
// that a list from which some were dropped means the same for the rest.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "world/basics.hpp"
#include "world/limits.hpp"

namespace deepinfer::sim {

enum class Kind : std::uint8_t {
  Add,
  AddBurst,
  AddPrompted,
  Fork,
  ForkStorm,
  Finish,
  Pause,
  PauseStorm,
  Resume,
  BeginTransfer,
  EndTransfer,
  LoadFails,
  Pending,
  Costs,
  BadCall,
  Commit,
  Clone,
  Again,
  Error
};

inline constexpr std::array kKindNames{
    "add",
    "add_burst",
    "add_prompted",
    "fork",
    "fork_storm",
    "finish",
    "pause",
    "pause_storm",
    "resume",
    "begin_transfer",
    "end_transfer",
    "load_fails",
    "pending",
    "costs",
    "bad_call",
    "commit",
    "clone",
    "again",
    "error"
};

// Where in a step it happens.
enum class Edge : std::uint8_t {
  BeforeBegin,
  BetweenVotes,
  BeforeResolve,
  Scheduled,
  BeforeCommit,
  AfterCommit
};
inline constexpr std::int32_t kEdges = 6;

struct Event {
  std::int32_t step;
  Edge edge;
  std::int32_t rank;
  Kind kind;
  std::uint64_t draw;
};

inline std::string describe(const Event& event) {
  return "step " + std::to_string(event.step) + " edge " + std::to_string(static_cast<int>(event.edge)) +
         " rank " + std::to_string(event.rank) + " " + kKindNames[static_cast<std::size_t>(event.kind)] +
         " draw " + std::to_string(event.draw);
}

// How one seed is run.
struct Scenario {
  std::uint64_t seed = 0;
  std::int32_t ranks = 1;
  bool zos = false;              // results one step late
  bool late_flags = false;       // records are taken after the commits
  bool permuted = false;         // ranks are called in another order each time
  std::int32_t check_every = 1;  // invariants
  std::vector<Event> events;
};

// Swarm: a seed switches each kind of event on or off, and says how frequent it is.
inline Scenario scenario_of(const Setup& setup, std::uint64_t seed) {
  Random random(hash(seed, 11));
  Scenario scenario;
  scenario.seed = seed;
  scenario.ranks = setup.ranks > 0 ? setup.ranks : 1 + random.below(3);
  scenario.zos = random.below(3) > 0;
  scenario.late_flags = scenario.ranks == 1 && random.one_in(2);
  scenario.permuted = random.one_in(2);
  scenario.check_every = random.one_in(2) ? 1 : 1 + random.below(8);
  std::array<std::int32_t, kKindNames.size()> weights{};
  static constexpr std::array<std::int32_t, kKindNames.size()> kMost{
      12, 3, 10, 8, 2, 6, 4, 1, 5, 5, 5, 3, 2, 3, 4, 4, 2, 6, 0
  };
  for (std::size_t k = 0; k < weights.size(); ++k)
    weights[k] = random.one_in(2) ? random.below(kMost[k] + 1) : 0;
  weights[0] += 2 + random.below(6);
  const Limits& limits = setup.limits;
  const auto off = [&weights](Kind kind) { weights[static_cast<std::size_t>(kind)] = 0; };
  if (!limits.decodes()) {
    off(Kind::AddPrompted);
    off(Kind::Fork);
    off(Kind::ForkStorm);
    off(Kind::LoadFails);
  }
  if (!limits.prefills()) {
    weights[static_cast<std::size_t>(Kind::AddPrompted)] += 4 + weights[0];
    off(Kind::Add);
    off(Kind::AddBurst);
  }
  std::int32_t sum = 0;
  for (const std::int32_t weight : weights) sum += weight;
  const std::int32_t count = 10 + random.below(90);
  const std::int32_t steps = 10 + random.below(150);
  for (std::int32_t i = 0; i < count; ++i) {
    Event event{};
    event.step = random.below(steps);
    event.edge = random.one_in(2) ? Edge::BeforeBegin : static_cast<Edge>(random.below(kEdges));
    event.rank = random.below(scenario.ranks);
    std::int32_t pick = random.below(sum);
    std::size_t kind = 0;
    while (pick >= weights[kind]) pick -= weights[kind++];
    event.kind = static_cast<Kind>(kind);
    event.draw = random.next();
    scenario.events.push_back(event);
  }
  // A rank is lost: the end of the run.
  if (random.one_in(25))
    scenario.events.push_back(
        {random.below(steps),
         static_cast<Edge>(random.below(kEdges)),
         random.below(scenario.ranks),
         Kind::Error,
         random.next()}
    );
  std::ranges::stable_sort(scenario.events, [](const Event& a, const Event& b) {
    return a.step != b.step ? a.step < b.step : a.edge < b.edge;
  });
  return scenario;
}

}  // namespace deepinfer::sim
