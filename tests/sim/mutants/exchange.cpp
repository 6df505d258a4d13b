// Groups of PROMPT and of COMPLETION ranks, which vote on nothing.
#include "../vote_groups.hpp"

int main() {
  using namespace votecheck;
  using Prompt = Config<Shape{.type = deepinfer::EngineType::Prompt, .places = 2, .prompts = 1}>;
  using Completion = Config<Shape{.type = deepinfer::EngineType::Completion}>;
  const int prompt = explore_all<PromptGroup<Prompt>>({
      {.name = "prompt", .ranks = 2, .arrivals = 2, .aborts = 1},
      {.name = "prompt-faults", .ranks = 2, .arrivals = 1, .faults = 1, .pauses = 1},
  });
  const int completion = explore_all<CompletionGroup<Completion>>({
      {.name = "completion", .ranks = 2, .arrivals = 2, .deferred = true},
      {.name = "completion-aborts", .ranks = 1, .outstanding = 2, .aborts = 1, .faults = 1, .pauses = 1},
  });
  return prompt + completion == 0 ? 0 : 1;
}
