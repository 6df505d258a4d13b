// The order policy: sequences that have produced the least are served first, those that have produced most
// give way.
#pragma once

#include <cstdint>

#include "engine/request.hpp"

namespace deepinfer {

template <class Cfg>
struct OutputLengthOrder {
  // The least is served first; equal ones in order of arrival.
  static std::uint32_t key(const Request& request) {
    return static_cast<std::uint32_t>(request.output_length());
  }
};

}  // namespace deepinfer
