// Which captured graph serves a total of query tokens, and whether its rows hold every mix that can occur.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace deepinfer {

template <class Cfg>
struct GraphTable {
  // Index of the smallest graph with size >= total_q.
  static constexpr std::int32_t index(std::int32_t total_q) {
    const auto& sizes = Cfg::kGraphSizes;
    return static_cast<std::int32_t>(std::ranges::lower_bound(sizes, total_q) - sizes.begin());
  }

  // For every total: its rows, and padding tokens grouped max_q to a row, fit the graph that runs. That is
  // the smallest one, or with padded dispatch any that is large enough. Up to max_num_seqs one token more is
  // one row more; beyond, it only leaves less to pad.
  static constexpr bool rows_suffice() {
    std::int32_t least = 0;
    for (std::size_t graph = 0; graph < Cfg::kGraphSizes.size(); ++graph) {
      const std::int32_t size = Cfg::kGraphSizes[graph];
      const std::int32_t total = std::clamp(Cfg::kMaxNumSeqs, least, size);
      const std::int32_t padding_rows = (size - total + Cfg::kMaxQ - 1) / Cfg::kMaxQ;
      if (std::min(total, Cfg::kMaxNumSeqs) + padding_rows > Cfg::kGraphRows[graph]) return false;
      if constexpr (!Cfg::kPaddedDispatch) least = size + 1;
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
