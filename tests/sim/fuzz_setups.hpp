// The engines that the fuzzer may choose from, behind one interface.
#pragma once

#include <memory>
#include <vector>

#include "engine/core.hpp"
#include "engine/engine_instance.hpp"
#include "engine/order_output_length.hpp"
#include "engine/step_completion.hpp"
#include "engine/step_normal.hpp"
#include "engine/step_prompt.hpp"
#include "engine/verify_fixed.hpp"
#include "engine/verify_varlen.hpp"
#include "fuzz_caller.hpp"
#include "shape.hpp"

namespace fuzz {

using deepinfer::EngineType;
using deepinfer::FixedVerification;
using deepinfer::VarlenVerification;
using shapes::Shape;

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

}  // namespace fuzz
