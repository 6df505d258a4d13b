// How many drafts each row verifies, as the rules choose it: the total, and its split.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "world/costs.hpp"
#include "world/limits.hpp"
#include "world/model.hpp"

namespace deepinfer::sim {

// One draft that a row may verify.
struct Candidate {
  std::int32_t survival;
  std::int32_t position;
  std::int32_t row;
};

// The candidates of all rows, those verified first in front.
inline std::vector<Candidate> ranked(
    const std::vector<std::int32_t>& caps, const std::vector<Confidences>& confidences
) {
  std::vector<Candidate> candidates;
  for (std::size_t r = 0; r < caps.size(); ++r) {
    std::int64_t survival = 65536;
    for (std::int32_t k = 0; k < caps[r]; ++k) {
      survival = survival * confidences[r][static_cast<std::size_t>(k)] >> 16;
      candidates.push_back({static_cast<std::int32_t>(survival), k, static_cast<std::int32_t>(r)});
    }
  }
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
    if (a.survival != b.survival) return a.survival > b.survival;
    if (a.position != b.position) return a.position < b.position;
    return a.row < b.row;
  });
  return candidates;
}

// Drafts of each row when `count` are verified in all.
inline std::vector<std::int32_t> split_of(
    const std::vector<std::int32_t>& caps, const std::vector<Confidences>& confidences, std::int32_t count
) {
  std::vector<std::int32_t> drafts(caps.size());
  const std::vector<Candidate> candidates = ranked(caps, confidences);
  for (std::int32_t i = 0; i < count; ++i)
    ++drafts[static_cast<std::size_t>(candidates[static_cast<std::size_t>(i)].row)];
  return drafts;
}

class DraftRules {
 public:
  explicit DraftRules(const Limits& limits) : limits_(limits) {
    prior_.fill(static_cast<std::uint16_t>(limits.prior));
  }

  Costs costs;
  bool variable = false;

  const Confidences& prior() const { return prior_; }

  // Drafts in all, of rows with these caps; `agreed`: the most tokens.
  std::int32_t choose(
      const std::vector<std::int32_t>& caps, const std::vector<Confidences>& total_data, std::int32_t agreed
  ) {
    const auto rows = static_cast<std::int32_t>(caps.size());
    const std::int32_t most = std::min(rows + std::accumulate(caps.begin(), caps.end(), 0), agreed);
    if (!limits_.varlen || rows == 0) return most - rows;
    const std::vector<Candidate> candidates = ranked(caps, total_data);
    const auto worth = [&](std::int32_t total) {
      std::int64_t sum = 0;
      for (std::int32_t i = 0; i < total - rows; ++i) sum += candidates[static_cast<std::size_t>(i)].survival;
      const std::size_t graph = limits_.graph_of(limits_.padded ? agreed : total);
      return (rows + static_cast<double>(sum) / 65536) / costs.cost(limits_, graph, rows);
    };
    const auto [best, gain] = best_total(rows, most, worth);
    variable = gain >= (variable ? limits_.min_gain / 2 : limits_.min_gain);
    return (variable ? best : most) - rows;
  }

  // Padded dispatch: the graph size to ask for.
  std::int32_t wish(std::int32_t rows) const {
    if (!limits_.padded) return 0;
    const std::int32_t most = rows * limits_.max_q;
    std::int32_t total = most;
    if (limits_.varlen && rows > 0 && costs.ready()) {
      const std::vector<Candidate> candidates = ranked(
          std::vector<std::int32_t>(static_cast<std::size_t>(rows), limits_.nextn),
          std::vector<Confidences>(static_cast<std::size_t>(rows), prior_)
      );
      const auto worth = [&](std::int32_t tokens) {
        std::int64_t sum = 0;
        for (std::int32_t i = 0; i < tokens - rows; ++i)
          sum += candidates[static_cast<std::size_t>(i)].survival;
        return (rows + static_cast<double>(sum) / 65536) / costs.curve(limits_.graph_of(tokens));
      };
      const auto [best, gain] = best_total(rows, most, worth);
      total = gain >= limits_.min_gain ? best : most;
    }
    return limits_.graph_sizes[limits_.graph_of(total)];
  }

 private:
  struct Best {
    std::int32_t total;
    double gain;
  };

  template <class Worth>
  Best best_total(std::int32_t rows, std::int32_t most, Worth worth) const {
    Best best{most, 0};
    double greatest = 0;
    for (const std::int32_t size : limits_.graph_sizes) {
      if (size < rows) continue;
      const std::int32_t total = std::min(size, most);
      const double value = worth(total);
      if (value > greatest) {
        greatest = value;
        best.total = total;
      }
      if (total == most) {
        best.gain = greatest / value - 1;
        break;
      }
    }
    return best;
  }

  const Limits& limits_;
  Confidences prior_{};
};

}  // namespace deepinfer::sim
