// Groups of ranks with two places each: bursts, and prompts that are cut.
#include "../vote_groups.hpp"

int main() {
  using namespace votecheck;
  return explore_all<NormalGroup<Config<Shape{.places = 2, .nextn = 1, .burst = 2, .budget = 3}>>>({
      {.name = "chunks", .ranks = 1, .prompt = 4, .outstanding = 2, .aborts = 1, .deferred = true},
      {.name = "bursts", .ranks = 2, .prompt = 2, .outstanding = 2, .deferred = true},
      {.name = "many", .ranks = 1, .prompt = 1, .outputs = 5, .outstanding = 4, .aborts = 1, .stops = 1},
  });
}
