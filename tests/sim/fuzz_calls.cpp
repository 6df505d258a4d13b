// The entry of libFuzzer: the first byte chooses an engine, the rest are calls on it. Build it with
// -fsanitize=fuzzer, or with fuzz_replay.cpp as a program of its own.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "engine/core.hpp"
#include "engine/engine_instance.hpp"
#include "engine/engine_types.hpp"
#include "engine/order_output_length.hpp"
#include "engine/step_completion.hpp"
#include "engine/step_normal.hpp"
#include "engine/step_prompt.hpp"
#include "engine/verify_fixed.hpp"
#include "engine/verify_varlen.hpp"
#include "fuzz_caller.hpp"
#include "shape.hpp"

namespace {

using deepinfer::EngineType;
using shapes::Shape;

struct Setup {
  fuzz::Sizes sizes;
  std::unique_ptr<deepinfer::EngineApi> (*make)();
};

template <class Cfg, class Scheduler>
Setup setup() {
  return {
      {Cfg::kNextn, Cfg::kMaxModelLen, Cfg::kBlockSize, {Cfg::kGraphSizes.begin(), Cfg::kGraphSizes.end()}},
      [] {
        return std::unique_ptr<deepinfer::EngineApi>(
            std::make_unique<deepinfer::EngineInstance<Scheduler>>()
        );
      }
  };
}

template <Shape S>
using Config = shapes::Config<S>;

template <Shape S, template <class> class Verification>
Setup normal() {
  return setup<
      Config<S>,
      deepinfer::Core<Config<S>, deepinfer::NormalStep, Verification, deepinfer::OutputLengthOrder>>();
}

template <Shape S, template <class> class Verification>
Setup completion() {
  return setup<
      Config<S>,
      deepinfer::Core<Config<S>, deepinfer::CompletionStep, Verification, deepinfer::OutputLengthOrder>>();
}

template <Shape S>
Setup prompt() {
  return setup<Config<S>, deepinfer::Core<Config<S>, deepinfer::PromptStep>>();
}

// Few places and blocks, so that short inputs reach every shortage.
const std::vector<Setup>& setups() {
  using deepinfer::FixedVerification;
  using deepinfer::VarlenVerification;
  static const std::vector<Setup> all{
      normal<
          Shape{.places = 3, .nextn = 2, .burst = 2, .model_len = 14, .block_size = 2, .usable_blocks = 13},
          FixedVerification>(),
      normal<
          Shape{
              .places = 3,
              .nextn = 2,
              .model_len = 14,
              .block_size = 2,
              .usable_blocks = 13,
              .stop_preempted = false,
              .padded = true
          },
          VarlenVerification>(),
      prompt<Shape{
          .type = EngineType::Prompt,
          .places = 3,
          .budget = 6,
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const Setup& chosen = setups()[data[0] % setups().size()];
  try {
    fuzz::Caller(chosen.make(), chosen.sizes, std::span(data, size).subspan(1)).run();
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    std::abort();
  }
  return 0;
}
