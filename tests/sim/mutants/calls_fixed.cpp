// Calls on a NORMAL engine with fixed verification.
#include "../fuzz_setups.hpp"

const std::vector<fuzz::Setup>& fuzz::setups() {
  static constexpr Shape kShape{
      .places = 3, .nextn = 2, .model_len = 14, .block_size = 2, .usable_blocks = 13, .stop_preempted = false
  };
  static const std::vector<Setup> one{normal<kShape, FixedVerification>()};
  return one;
}
