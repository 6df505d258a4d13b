// Engines of every type, with few places and blocks, so that short inputs reach every shortage.
#include <vector>

#include "fuzz_setups.hpp"

namespace fuzz {

const std::vector<Setup>& setups() {
  static const std::vector<Setup> all{
      normal<
          Shape{
              .places = 3,
              .nextn = 2,
              .burst = 2,
              .budget = 5,
              .model_len = 14,
              .block_size = 2,
              .usable_blocks = 13
          },
          FixedVerification>(),
      normal<
          Shape{
              .places = 3,
              .nextn = 2,
              .model_len = 14,
              .block_size = 2,
              .usable_blocks = 13,
              .cp = 2,
              .stop_preempted = false,
              .padded = true
          },
          VarlenVerification>(),
      prompt<Shape{
          .type = EngineType::Prompt,
          .places = 3,
          .budget = 10,
          .model_len = 14,
          .block_size = 2,
          .usable_blocks = 11,
          .cp = 2
      }>(),
      completion<
          Shape{
              .type = EngineType::Completion,
              .places = 3,
              .nextn = 2,
              .model_len = 14,
              .block_size = 2,
              .usable_blocks = 13
          },
          VarlenVerification>(),
  };
  return all;
}

}  // namespace fuzz
