// Requests that ended, kept until the caller asks for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/engine_api.hpp"

namespace deepinfer {

// Capacity for `count` items. Grows by doubling: the number of live requests creeps up one by one.
template <class T>
void reserve_doubling(std::vector<T>& items, std::size_t count) {
  if (items.capacity() < count) items.reserve(std::max(count, 2 * items.capacity()));
}

class Outcomes {
 public:
  // Room for every request that can still end, so that recording one never allocates.
  void reserve_for(std::int32_t live) { fresh_.reserve(fresh_.ids.size() + static_cast<std::size_t>(live)); }

  void record(std::uint64_t id, Reason reason, std::int32_t stop_token) {
    fresh_.ids.push_back(id);
    fresh_.reasons.push_back(static_cast<std::int32_t>(reason));
    fresh_.stop_tokens.push_back(stop_token);
  }

  // The request ended since the last call of take().
  bool holds(std::uint64_t id) const { return std::ranges::find(fresh_.ids, id) != fresh_.ids.end(); }

  // What was recorded since the last call. `live` keeps the promise of reserve_for for the buffer that takes
  // over.
  OutcomesView take(std::int32_t live) {
    std::swap(fresh_, taken_);
    fresh_.clear();
    reserve_for(live);
    return {taken_.ids, taken_.reasons, taken_.stop_tokens};
  }

 private:
  struct Columns {
    std::vector<std::uint64_t> ids;
    std::vector<std::int32_t> reasons;
    std::vector<std::int32_t> stop_tokens;

    void reserve(std::size_t count) {
      reserve_doubling(ids, count);
      reserve_doubling(reasons, count);
      reserve_doubling(stop_tokens, count);
    }
    void clear() {
      ids.clear();
      reasons.clear();
      stop_tokens.clear();
    }
  };

  Columns fresh_;
  Columns taken_;
};

}  // namespace deepinfer
