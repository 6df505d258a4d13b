// The order policy: sequences that have produced the least are served first, those that have produced most
// give way.
#pragma once

#include <cstdint>

namespace deepinfer {

template <class State>
struct OutputLengthOrder {
  const State& state;

  // Equal lengths keep their order, which is the order of arrival.
  bool operator()(std::int32_t left, std::int32_t right) const {
    return state.request_at(left).output_length() < state.request_at(right).output_length();
  }
};

}  // namespace deepinfer
