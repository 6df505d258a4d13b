// The engines of the simulation. A program for one engine needs only its line of this table.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/block_manager.hpp"
#include "engine/core.hpp"
#include "engine/order_output_length.hpp"
#include "engine/step_completion.hpp"
#include "engine/step_normal.hpp"
#include "engine/step_prompt.hpp"
#include "engine/verify_fixed.hpp"
#include "engine/verify_varlen.hpp"
#include "world/basics.hpp"
#include "world/configs.hpp"

namespace deepinfer::sim {

namespace {

template <Shape S>
Setup normal(const char* name, std::int32_t ranks = 0) {
  using Cfg = Config<S>;
  return setup<Cfg, Core<Cfg, NormalStep, FixedVerification, OutputLengthOrder>, false>(name, ranks);
}

template <Shape S>
Setup varlen(const char* name, std::int32_t ranks = 0) {
  using Cfg = Config<S>;
  return setup<Cfg, Core<Cfg, NormalStep, VarlenVerification, OutputLengthOrder>, true>(name, ranks);
}

template <Shape S>
Setup prompt(const char* name, std::int32_t ranks = 0) {
  using Cfg = Config<S>;
  return setup<Cfg, Core<Cfg, PromptStep>, false>(name, ranks);
}

template <template <class> class Verification, Shape S>
Setup completion(const char* name, std::int32_t ranks = 0) {
  using Cfg = Config<S>;
  using Scheduler = Core<Cfg, CompletionStep, Verification, OutputLengthOrder>;
  return setup<Cfg, Scheduler, Verification<Cfg>::kUsesCurve>(name, ranks);
}

}  // namespace

// A pool of eight ids against plain counts.
void check_parts(std::uint64_t seed) {
  Random random(seed);
  BlockManager<9> pool;
  std::array<std::int32_t, 9> references{};
  std::array<std::int32_t, 9> pins{};
  for (int i = 0; i < 20000; ++i) {
    const std::int32_t id = 1 + random.below(8);
    const auto at = static_cast<std::size_t>(id);
    const std::int32_t kind = random.below(5);
    if (kind == 0 && pool.free_count() > 0) {
      const auto fresh = static_cast<std::size_t>(pool.allocate());
      require(fresh != 0 && references[fresh] + pins[fresh] == 0, "I10: handed out while in use:", fresh);
      references[fresh] = 1;
    } else if (kind == 1 && references[at] > 0) {
      pool.share(id);
      ++references[at];
    } else if (kind == 2 && references[at] > 0) {
      pool.release(id);
      --references[at];
    } else if (kind == 3 && references[at] + pins[at] > 0) {
      pool.pin(id);
      ++pins[at];
    } else if (kind == 4 && pins[at] > 0) {
      pool.unpin(id);
      --pins[at];
    }
    std::int32_t free = 0;
    for (std::int32_t b = 1; b < 9; ++b) {
      const auto n = static_cast<std::size_t>(b);
      require_equal(pool.references(b), references[n], "I10: references of", b);
      require_equal(pool.pins(b), pins[n], "B9: pins of", b);
      free += references[n] + pins[n] == 0 ? 1 : 0;
    }
    require_equal(pool.free_count(), free, "I9: free ids");
    require_equal(pool.walk_free_list(), free, "I9: the free list");
  }
}

std::vector<Setup> setups() {
  return {
      normal<Shape{}>("plain"),
      normal<Shape{.seqs = 1, .nextn = 1, .spare_blocks = 1, .stop_preempted = false}>("one-sequence"),
      // A pool of one block, for three sequences.
      normal<Shape{.seqs = 3, .block_size = 52, .spare_blocks = 0, .stop_preempted = false}>("one-block"),
      // Chunks of one token; a pool that holds one longest sequence.
      normal<Shape{.model_len = 24, .batched_tokens = 1, .spare_blocks = 0, .stop_preempted = false}>(
          "starved"
      ),
      normal<Shape{
          .nextn = 1,
          .batched_tokens = 7,
          .all_interval = 2,
          .any_interval = 3,
          .usage_percent = 80,
          .stop_preempted = false
      }>("recompute"),
      normal<Shape{.nextn = 5, .batched_tokens = 24, .burst = 4, .stop_preempted = false, .cp = 2}>(
          "drafts-cp2"
      ),
      normal<Shape{.nextn = 3, .batched_tokens = 26, .spare_blocks = 40, .burst = 1, .cp = 4}>("wide-cp4"),
      normal<Shape{.nextn = 3, .all_interval = 1, .any_interval = 2, .padded = true}>("padded"),
      varlen<Shape{.nextn = 5, .spare_blocks = 30, .stop_preempted = false}>("varlen"),
      varlen<Shape{.seqs = 8, .nextn = 3, .block_size = 1, .spare_blocks = 30, .usage_percent = 70}>(
          "varlen-blocks-of-1"
      ),
      varlen<Shape{.seqs = 6, .nextn = 5, .spare_blocks = 20, .padded = true}>("varlen-padded", 8),
      prompt<Shape{.type = EngineType::Prompt, .nextn = 1, .batched_tokens = 9, .spare_blocks = 4}>("prompt"),
      completion<FixedVerification, Shape{.type = EngineType::Completion, .nextn = 1, .spare_blocks = 3}>(
          "completion"
      ),
      completion<VarlenVerification, Shape{.type = EngineType::Completion, .nextn = 5, .padded = true}>(
          "completion-varlen"
      ),
  };
}

}  // namespace deepinfer::sim
