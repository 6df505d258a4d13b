// Ranks whose blocks run out: who gives way, and what becomes of it.
#include "../vote_groups.hpp"

int main() {
  using namespace votecheck;
  constexpr Shape kFew{
      .places = 2, .block_size = 1, .usable_blocks = 8, .tight = true, .stop_preempted = false
  };
  return explore_all<NormalGroup<Config<kFew>>>({
      {.name = "recompute", .ranks = 1, .outputs = 5, .outstanding = 3, .aborts = 1, .early = true},
      {.name = "2-recompute", .ranks = 2, .outputs = 5, .arrivals = 2, .deferred = true},
  });
}
