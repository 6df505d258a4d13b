// An example of the generated composition: which policies this engine is made of.
#pragma once

#include "engine/core.hpp"
#include "engine/order_output_length.hpp"
#include "engine/step_normal.hpp"
#include "engine/verify_fixed.hpp"
#include "engine_config.hpp"

namespace deepinfer::generated {

using Scheduler = Core<EngineConfig, NormalStep, FixedVerification, OutputLengthOrder>;

}  // namespace deepinfer::generated
