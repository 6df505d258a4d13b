// Which captured graph serves a total of query tokens, and whether its rows hold every mix that can occur.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deepinfer {

template <class Cfg>
struct GraphTable {
  // Index of the smallest graph with size >= total_q.
  static constexpr std::int32_t index(std::int32_t total_q) {
    const auto& sizes = Cfg::kGraphSizes;
    return static_cast<std::int32_t>(std::ranges::lower_bound(sizes, total_q) - sizes.begin());
  }

  // For every total: the real rows, and padding tokens grouped max_q to a row, fit the graph's rows.
  static constexpr bool rows_suffice() {
    for (std::int32_t total = 0; total <= Cfg::kMaxTotalQ; ++total) {
      const std::int32_t graph = index(total);
      const std::int32_t padding = Cfg::kGraphSizes[graph] - total;
      const std::int32_t rows = std::min(total, Cfg::kMaxNumSeqs) + (padding + Cfg::kMaxQ - 1) / Cfg::kMaxQ;
      if (rows > Cfg::kGraphRows[graph]) return false;
    }
    return true;
  }

  static_assert(std::ranges::is_sorted(Cfg::kGraphSizes), "graph sizes ascend");
  static_assert(
      Cfg::kGraphSizes.back() == Cfg::kMaxTotalQ, "the largest graph holds every sequence with all drafts"
  );
  static_assert(Cfg::kMaxTotalQ == Cfg::kMaxNumSeqs * Cfg::kMaxQ);
  static_assert(std::ranges::max(Cfg::kGraphRows) == Cfg::kMaxGraphRows);
};

}  // namespace deepinfer
