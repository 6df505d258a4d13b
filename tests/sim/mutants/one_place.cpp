// Groups of ranks with one place each, small enough for a test of every wrong scheduler.
#include "../vote_groups.hpp"

int main() {
  using namespace votecheck;
  return explore_all<NormalGroup<Config<Shape{}>>>({
      {.name = "2-endless", .ranks = 2, .outstanding = 2, .deferred = true},
      {.name = "1-pauses", .ranks = 1, .outstanding = 2, .pauses = 1, .prompted = true},
      {.name = "1-all",
       .ranks = 1,
       .outstanding = 1,
       .aborts = 1,
       .pendings = 1,
       .faults = 1,
       .stops = 1,
       .deferred = true},
      {.name = "2-aborts", .ranks = 2, .arrivals = 1, .aborts = 1, .deferred = true},
      {.name = "2-prompted", .ranks = 2, .arrivals = 2, .prompted = true, .deferred = true},
  });
}
