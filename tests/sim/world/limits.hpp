// The constants of an engine as run-time values: the world around the engines is compiled once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_api.hpp"
#include "engine/engine_types.hpp"

namespace deepinfer::sim {

struct Limits {
  EngineType type{};
  std::int32_t max_num_seqs = 0;
  std::int32_t max_model_len = 0;
  std::int32_t max_num_batched_tokens = 0;
  std::int32_t max_num_prompts = 0;
  std::int32_t max_sum_k = 0;
  std::int32_t block_size = 0;
  std::int32_t num_blocks = 0;
  std::int32_t blocks_per_seq = 0;
  std::int32_t num_slots = 0;
  std::int32_t history = 0;
  std::int32_t nextn = 0;
  std::int32_t max_q = 0;
  std::int32_t all_interval = 0;
  std::int32_t any_interval = 0;
  std::int32_t burst = 0;
  std::int32_t usage_numerator = 0;
  std::int32_t usage_denominator = 0;
  bool stop_preempted = false;
  std::int32_t cp = 0;
  bool padded = false;
  bool varlen = false;
  std::int32_t prior = 0;  // u16 confidence
  double min_gain = 0;
  std::vector<std::int32_t> graph_sizes;
  std::vector<std::int32_t> graph_rows;

  bool prefills() const { return type != EngineType::Completion; }
  bool decodes() const { return type != EngineType::Prompt; }
  std::int32_t max_total_q() const { return max_num_seqs * max_q; }
  std::int32_t blocks_for(std::int32_t tokens) const { return (tokens + block_size - 1) / block_size; }

  // Index of the smallest graph that holds `tokens`.
  std::size_t graph_of(std::int32_t tokens) const {
    std::size_t index = 0;
    while (graph_sizes[index] < tokens) ++index;
    return index;
  }

  // A model with a sliding window of four tokens; a ring of as many rows as a step may overwrite beside them.
  static constexpr std::int32_t kWindow = 4;
  std::int32_t ring() const { return kWindow + max_q - 1; }
};

// One engine of the simulation.
struct Setup {
  std::string name;
  std::int32_t ranks = 0;  // 0: a seed chooses 1 to 3
  Limits limits;
  std::unique_ptr<EngineApi> (*make)() = nullptr;
};

// Defined by the program that instantiates the engines: engines.cpp, or a smaller one.
std::vector<Setup> setups();
// Drives parts of the engine that have an interface of their own; throws when a rule is broken.
void check_parts(std::uint64_t seed);

}  // namespace deepinfer::sim
