// Which drafts are verified when not all of them are: those most likely to survive.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "engine/counting.hpp"
#include "engine/survival.hpp"

namespace deepinfer {

// Give `drafts[row]` its share of the `count` drafts that are first by survival descending, draft position
// ascending, row ascending; `last` is the survival of the last of them. That order asks no draft for its
// value, and makes each share a prefix of its row.
template <class Cfg>
void split(
    const SurvivalTable<Cfg>& table, std::int32_t count, std::uint16_t last, std::span<std::int32_t> drafts
) {
  std::int32_t left = count;
  for (std::int32_t r = 0; r < table.rows(); ++r) {
    std::int32_t above = 0;
    for (const std::uint16_t survival : table.row(r)) above += survival > last ? 1 : 0;
    drafts[r] = above;
    left -= above;
  }
  // What is left goes to equals of the last one. They follow each other in their row, so a row takes the
  // draft at `position` only if it has all before it.
  for (std::int32_t position = 0; left > 0; ++position) {
    for (std::int32_t r = 0; r < table.rows() && left > 0; ++r) {
      if (drafts[r] != position || position >= table.cap(r)) continue;
      if (table.row(r)[static_cast<std::size_t>(position)] != last) continue;
      ++drafts[r];
      --left;
    }
  }
}

// The same for a `count` whose last survival is not known yet.
template <class Cfg>
void split(const SurvivalTable<Cfg>& table, std::int32_t count, std::span<std::int32_t> drafts) {
  if (count == 0) {
    std::ranges::fill(drafts, 0);
  } else {
    split(table, count, nth_greatest(table.all(), static_cast<std::size_t>(count)), drafts);
  }
}

// The queries of each row when `total` tokens are verified: what the device computes in a provisional step.
// `confidences` holds Cfg::kNextn entries a row. Throws std::invalid_argument, naming the values.
template <class Cfg>
void split_total(
    std::span<const std::int32_t> caps, std::span<const std::uint16_t> confidences, std::int32_t total,
    std::span<std::int32_t> queries
) {
  const auto refuse = [](const std::string& sentence) { throw std::invalid_argument("split: " + sentence); };
  const std::string rows = std::to_string(caps.size()) + " rows";
  if (caps.size() > static_cast<std::size_t>(Cfg::kMaxNumSeqs))
    refuse(rows + ", but the engine holds " + std::to_string(Cfg::kMaxNumSeqs));
  const std::size_t expected = caps.size() * static_cast<std::size_t>(Cfg::kNextn);
  if (confidences.size() != expected || queries.size() != caps.size())
    refuse(
        std::to_string(confidences.size()) + " confidences for " + rows + " of " +
        std::to_string(Cfg::kNextn) + " drafts"
    );
  for (const std::int32_t cap : caps) {
    if (cap < 0 || cap > Cfg::kNextn)
      refuse(
          "a cap of " + std::to_string(cap) + ", but a row has 0 to " + std::to_string(Cfg::kNextn) +
          " drafts"
      );
  }
  SurvivalTable<Cfg> table;
  for (std::size_t r = 0; r < caps.size(); ++r)
    table.add(caps[r], confidences.data() + r * static_cast<std::size_t>(Cfg::kNextn));
  if (total < table.rows() || total > table.rows() + table.drafts())
    refuse(
        "a total of " + std::to_string(total) + " for " + rows + " with " + std::to_string(table.drafts()) +
        " drafts"
    );
  split(table, total - table.rows(), queries);
  for (std::int32_t& row : queries) ++row;
}

}  // namespace deepinfer
