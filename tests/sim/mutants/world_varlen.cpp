// A NORMAL engine with verification of a variable length in the simulated world, forks and recomputation
// included.
#include <cstdint>
#include <vector>

#include "engine/core.hpp"
#include "engine/order_output_length.hpp"
#include "engine/step_normal.hpp"
#include "engine/verify_varlen.hpp"
#include "world/configs.hpp"

namespace deepinfer::sim {

void check_parts(std::uint64_t) {}

std::vector<Setup> setups() {
  using Cfg = Config<Shape{.nextn = 3, .batched_tokens = 16, .stop_preempted = false, .cp = 2}>;
  return {setup<Cfg, Core<Cfg, NormalStep, VarlenVerification, OutputLengthOrder>, true>("varlen")};
}

}  // namespace deepinfer::sim
