// What a decode step costs: a measured curve over the graph sizes, corrected by what steps have cost since.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "engine/estimators.hpp"
#include "engine/graph_table.hpp"

namespace deepinfer {

template <class Cfg>
class CostModel {
 public:
  // One duration for each graph size. Throws std::invalid_argument if it cannot say which size is worth its
  // time; the old curve stays. The excess over the old curve and the observation that is held back are
  // forgotten; how long sampling takes does not depend on a curve and stays.
  void set_curve(std::span<const double> milliseconds) {
    check(milliseconds);
    held_ = {};
    forward_ = {};
    std::ranges::copy(milliseconds, curve_.begin());
    ready_ = true;
  }

  bool ready() const { return ready_; }

  // What a step cost. It counts from the next observation on: the total of a step may depend on what was
  // known two steps before, never on the step whose drafts it cuts. Throws std::invalid_argument.
  void observe(std::int32_t graph_size, std::int32_t rows, double forward_ms, double sampler_ms) {
    const Observation observation = checked(graph_size, rows, forward_ms, sampler_ms);
    if (held_.graph >= 0) {
      forward_.observe((held_.forward_ms - curve_[held_.graph]) / Cfg::kGraphSizes[held_.graph]);
      // A step of padding only samples nothing.
      if (held_.rows > 0) sampler_.observe(held_.rows, held_.sampler_ms);
    }
    held_ = observation;
  }

  // Milliseconds of the graph at index `graph` as measured before any step ran.
  double curve(std::int32_t graph) const { return curve_[graph]; }

  double sampler(std::int32_t rows) const { return sampler_.milliseconds(rows); }

  // `sampler` is that of the step's rows. Estimates that leave nothing of the duration are not believed.
  double cost(std::int32_t graph, double sampler) const {
    const double estimate = (curve_[graph] + forward_.slope() * Cfg::kGraphSizes[graph]) + sampler;
    return estimate > 0 ? estimate : curve_[graph];
  }

 private:
  static constexpr std::size_t kGraphs = Cfg::kGraphSizes.size();
  // From a nanosecond to eleven days; within these bounds no arithmetic below overflows.
  static constexpr double kLeast = 1e-6;
  static constexpr double kMost = 1e9;
  // A curve that rises by less says nothing about the size to choose.
  static constexpr double kLeastRise = 1.05;

  struct Observation {
    std::int32_t graph = -1;  // index; −1: none
    std::int32_t rows = 0;
    double forward_ms = 0;
    double sampler_ms = 0;
  };

  static std::string at(std::span<const double> curve, std::size_t graph) {
    return std::to_string(curve[graph]) + " ms at graph size " + std::to_string(Cfg::kGraphSizes[graph]);
  }

  static void check(std::span<const double> curve) {
    const auto refuse = [](const std::string& why) { throw std::invalid_argument("cost curve: " + why); };
    if (curve.size() != kGraphs)
      refuse(std::to_string(curve.size()) + " durations for " + std::to_string(kGraphs) + " graph sizes");
    for (std::size_t g = 0; g < kGraphs; ++g) {
      // Also true of a value that is no number.
      if (!(curve[g] >= kLeast && curve[g] <= kMost))
        refuse(at(curve, g) + "; a duration lies between 1e-6 and 1e9 ms");
      if (g > 0 && curve[g] < curve[g - 1])
        refuse("it falls from " + at(curve, g - 1) + " to " + at(curve, g));
    }
    if (kGraphs > 1 && curve.back() < curve.front() * kLeastRise)
      refuse("it is flat: from " + at(curve, 0) + " to " + at(curve, kGraphs - 1) + " it rises by under 5 %");
  }

  static Observation checked(
      std::int32_t graph_size, std::int32_t rows, double forward_ms, double sampler_ms
  ) {
    const auto refuse = [](const std::string& why) { throw std::invalid_argument("observe: " + why); };
    const auto duration = [](double value) { return value >= 0 && value <= kMost; };
    if (graph_size < 1 || graph_size > Cfg::kMaxTotalQ ||
        Cfg::kGraphSizes[GraphTable<Cfg>::index(graph_size)] != graph_size)
      refuse("no graph has size " + std::to_string(graph_size));
    if (rows < 0 || rows > std::min(graph_size, Cfg::kMaxNumSeqs))
      refuse(std::to_string(rows) + " rows in a graph of size " + std::to_string(graph_size));
    if (!duration(forward_ms) || !duration(sampler_ms))
      refuse(
          "forward " + std::to_string(forward_ms) + " ms, sampler " + std::to_string(sampler_ms) +
          " ms; a duration lies between 0 and 1e9 ms"
      );
    return {GraphTable<Cfg>::index(graph_size), rows, forward_ms, sampler_ms};
  }

  std::array<double, kGraphs> curve_{};
  bool ready_ = false;
  Observation held_;
  ForwardRuntimeEstimator forward_;
  SamplerRuntimeEstimator<Cfg::kMaxNumSeqs> sampler_;
};

}  // namespace deepinfer
