// The verification policy `fixed`: every row verifies all the drafts it may use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace deepinfer {

template <class Cfg>
struct FixedVerification {
  // `caps` is the most drafts that each row may verify; `drafts` receives how many it does verify.
  static void choose(std::span<const std::int32_t> caps, std::span<std::int32_t> drafts) {
    std::ranges::copy(caps, drafts.begin());
  }
};

}  // namespace deepinfer
