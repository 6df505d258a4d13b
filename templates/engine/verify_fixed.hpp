// The verification policy `fixed`: every row verifies all the drafts it may use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>

#include "engine/fingerprint_hash.hpp"
#include "engine/graph_table.hpp"
#include "engine/verify_row.hpp"

namespace deepinfer {

template <class Cfg>
class FixedVerification {
 public:
  static constexpr bool kUsesCurve = false;

  void set_curve(std::span<const double>) {
    throw std::invalid_argument("cost curve: this engine always verifies all drafts and takes none");
  }
  bool ready() const { return true; }
  void restart() {}
  void observe(std::int32_t, std::int32_t, double, double) {}
  void mix_into(FingerprintHash&) const {}

  // `drafts` receives how many drafts each row verifies. Where rows and drafts exceed `limit` tokens, the
  // last rows give up theirs; the rows alone do not exceed it.
  void choose(std::span<const VerifyRow> rows, std::int32_t limit, std::span<std::int32_t> drafts) const {
    std::int32_t room = limit - static_cast<std::int32_t>(rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      drafts[r] = std::min(rows[r].cap, room);
      room -= drafts[r];
    }
  }

  // Padded dispatch: the graph size to ask for when the next step has `rows` rows.
  std::int32_t wish(std::int32_t rows) const {
    return Cfg::kGraphSizes[GraphTable<Cfg>::index(rows * Cfg::kMaxQ)];
  }
};

}  // namespace deepinfer
