// Every state of small groups of schedulers: up to three ranks, arrivals and aborts before a vote and between
// its rounds. Each decision is compared with the rules of docs/scheduler.md. Prints the number of states for
// each group; a broken rule ends the program with status 1, its name and a shortest way to it. Usage:
// vote_check [GROUP ...]
#include <cstddef>
#include <span>

#include "vote_groups.hpp"

using votecheck::Options;
using votecheck::Shape;

int main(int argc, char** argv) {
  const std::span<char*> chosen = std::span(argv, static_cast<std::size_t>(argc)).subspan(1);
  bool clean = true;
  const auto normal = [&]<Shape S>(const Options& options) {
    clean = clean && votecheck::explore<votecheck::NormalGroup<votecheck::Config<S>>>(options, chosen);
  };
  const auto one_place = [&](const Options& o) { normal.operator()<Shape{}>(o); };
  const auto bursts = [&](const Options& o) {
    normal.operator()<Shape{.places = 2, .burst = 2, .prompts = 1}>(o);
  };
  const auto chunks = [&](const Options& o) {
    normal.operator()<Shape{.places = 2, .nextn = 1, .budget = 2}>(o);
  };
  const auto tight = [&](const Options& o) {
    normal.operator()<Shape{.places = 2, .block_size = 1, .usable_blocks = 8, .tight = true}>(o);
  };
  const auto recompute = [&](const Options& o) {
    normal.operator()<
        Shape{.places = 2, .block_size = 1, .usable_blocks = 8, .tight = true, .stop_preempted = false}>(o);
  };
  const auto padded = [&](const Options& o) {
    normal.operator()<Shape{.places = 2, .nextn = 1, .tight = true, .padded = true}>(o);
  };
  const auto prompt = [&](const Options& options) {
    using Cfg = votecheck::Config<Shape{.type = deepinfer::EngineType::Prompt, .places = 2, .prompts = 1}>;
    clean = clean && votecheck::explore<votecheck::PromptGroup<Cfg>>(options, chosen);
  };
  const auto completion = [&](const Options& options) {
    using Cfg = votecheck::Config<Shape{.type = deepinfer::EngineType::Completion, .places = 1}>;
    clean = clean && votecheck::explore<votecheck::CompletionGroup<Cfg>>(options, chosen);
  };

  one_place(
      {.name = "1-all", .ranks = 1, .outstanding = 2, .aborts = 2, .pendings = 2, .faults = 1, .stops = 2}
  );
  one_place({.name = "1-pauses", .ranks = 1, .outstanding = 2, .aborts = 1, .pauses = 2, .prompted = true});
  chunks(
      {.name = "1-chunks", .ranks = 1, .prompt = 3, .outstanding = 2, .aborts = 2, .stops = 2, .early = true}
  );
  tight({.name = "1-tight", .ranks = 1, .outputs = 5, .outstanding = 3, .aborts = 2, .early = true});
  recompute({.name = "1-recompute", .ranks = 1, .outputs = 5, .outstanding = 3, .aborts = 2, .early = true});

  one_place({.name = "2-bounded", .ranks = 2});
  one_place({.name = "2-endless", .ranks = 2, .outstanding = 2});
  one_place({.name = "2-early", .ranks = 2, .outstanding = 2, .deferred = true, .early = true});
  one_place({.name = "2-aborts", .ranks = 2, .outstanding = 2, .aborts = 1, .deferred = true});
  one_place({.name = "2-pauses", .ranks = 2, .outstanding = 1, .pauses = 1, .deferred = true});
  one_place({.name = "2-prompted", .ranks = 2, .outstanding = 2, .prompted = true, .deferred = true});
  one_place({.name = "2-faults", .ranks = 2, .arrivals = 1, .pendings = 1, .faults = 1, .deferred = true});
  one_place({.name = "2-stops", .ranks = 2, .outstanding = 2, .stops = 2, .deferred = true});
  bursts({.name = "2-burst", .ranks = 2, .outstanding = 3, .deferred = true});
  chunks({.name = "2-chunks", .ranks = 2, .prompt = 3, .outstanding = 2, .deferred = true});
  tight({.name = "2-tight", .ranks = 2, .outputs = 5, .outstanding = 2, .deferred = true});
  recompute({.name = "2-recompute", .ranks = 2, .outputs = 5, .outstanding = 2, .deferred = true});
  padded({.name = "2-padded", .ranks = 2, .outputs = 4, .outstanding = 2, .deferred = true});

  one_place({.name = "3-bounded", .ranks = 3});
  one_place({.name = "3-endless", .ranks = 3, .outstanding = 2, .deferred = true});
  one_place({.name = "3-aborts", .ranks = 3, .arrivals = 1, .aborts = 1, .deferred = true});
  one_place({.name = "3-faults", .ranks = 3, .arrivals = 1, .faults = 1});
  bursts({.name = "3-burst", .ranks = 3, .outstanding = 2});

  prompt(
      {.name = "prompt-1", .ranks = 1, .outstanding = 2, .aborts = 2, .pendings = 1, .faults = 1, .pauses = 2}
  );
  prompt({.name = "prompt-2", .ranks = 2, .outstanding = 2, .aborts = 1, .pendings = 1});
  prompt({.name = "prompt-3", .ranks = 3, .arrivals = 2});
  completion({.name = "completion-1", .ranks = 1, .outstanding = 2, .aborts = 2, .faults = 1, .pauses = 2});
  completion({.name = "completion-2", .ranks = 2, .outstanding = 2, .aborts = 1, .deferred = true});
  completion({.name = "completion-3", .ranks = 3, .arrivals = 2, .deferred = true});
  return clean ? 0 : 1;
}
