// What decode steps cost, as the rules estimate it: the curve, the excess per token, the sampler.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "world/limits.hpp"

namespace deepinfer::sim {

class Costs {
 public:
  void set_curve(const std::vector<double>& milliseconds) {
    curve_ = milliseconds;
    held_ = {};
    block_.clear();
    medians_.clear();
    slope_ = 0;
  }
  bool ready() const { return !curve_.empty(); }
  double curve(std::size_t graph) const { return curve_[graph]; }

  // Counts from the next observation on.
  void observe(const Limits& limits, std::int32_t graph, std::int32_t rows, double forward, double sampler) {
    if (held_.graph > 0) {
      block_.push_back((held_.forward - curve_[limits.graph_of(held_.graph)]) / held_.graph);
      if (block_.size() == 50) {
        keep(medians_, median(block_), 100);
        block_.clear();
        slope_ = median(medians_);
      }
      if (held_.rows > 0) keep(sampler_[held_.rows], held_.sampler, 9);
    }
    held_ = {graph, rows, forward, sampler};
  }

  double sampler(std::int32_t rows) const {
    if (sampler_.empty()) return 0;
    const auto above = sampler_.upper_bound(rows);
    return median((above == sampler_.begin() ? above : std::prev(above))->second);
  }

  double cost(const Limits& limits, std::size_t graph, std::int32_t rows) const {
    const double estimate = (curve_[graph] + slope_ * limits.graph_sizes[graph]) + sampler(rows);
    return estimate > 0 ? estimate : curve_[graph];
  }

 private:
  struct Observation {
    std::int32_t graph = 0;
    std::int32_t rows = 0;
    double forward = 0;
    double sampler = 0;
  };

  static void keep(std::vector<double>& values, double value, std::size_t count) {
    values.push_back(value);
    if (values.size() > count) values.erase(values.begin());
  }

  static double median(std::vector<double> values) {
    std::ranges::sort(values);
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  }

  std::vector<double> curve_;
  Observation held_;
  std::vector<double> block_;
  std::vector<double> medians_;
  double slope_ = 0;
  std::map<std::int32_t, std::vector<double>> sampler_;
};

}  // namespace deepinfer::sim
