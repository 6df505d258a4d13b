// Ranks that run the graph that the group agreed on.
#include "../vote_groups.hpp"

int main() {
  using namespace votecheck;
  return explore_all<NormalGroup<Config<Shape{.places = 2, .nextn = 1, .tight = true, .padded = true}>>>({
      {.name = "padded", .ranks = 2, .outputs = 4, .outstanding = 2, .deferred = true},
  });
}
