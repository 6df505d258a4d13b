// The verification policy `varlen`: verify as many drafts as are worth their time, and the likeliest ones.
//
// How many are verified follows from confidences that no draft of this step had a part in; which ones, from
// the newest. Otherwise the output would not have the distribution of the target model.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/cost_model.hpp"
#include "engine/fingerprint_hash.hpp"
#include "engine/graph_table.hpp"
#include "engine/greatest_sums.hpp"
#include "engine/split.hpp"
#include "engine/survival.hpp"
#include "engine/verify_row.hpp"

namespace deepinfer {

template <class Cfg>
class VarlenVerification {
  static_assert(Cfg::kNextn > 0, "there are drafts to choose from");

 public:
  static constexpr bool kUsesCurve = true;

  void set_curve(std::span<const double> milliseconds) { costs_.set_curve(milliseconds); }
  bool ready() const { return costs_.ready(); }
  void observe(std::int32_t graph_size, std::int32_t rows, double forward_ms, double sampler_ms) {
    costs_.observe(graph_size, rows, forward_ms, sampler_ms);
  }

  // The group has finished all its work: the next step decides as the first one did.
  void restart() { variable_ = false; }

  // Estimators do not count: they follow a clock.
  void mix_into(FingerprintHash& hash) const { hash.mix(variable_); }

  // `drafts` receives how many drafts each row verifies. Rows and drafts take `limit` tokens at most; the
  // rows alone do not exceed it. Needs the curve.
  void choose(std::span<const VerifyRow> rows, std::int32_t limit, std::span<std::int32_t> drafts) {
    if (rows.empty()) return;
    Table table;
    bool same_data = true;
    for (const VerifyRow& row : rows) {
      table.add(row.cap, row.total_data);
      same_data = same_data && row.split_data == nullptr;
    }
    const Total total = choose_total(table, limit);
    if (total.drafts == table.drafts()) {
      for (std::size_t r = 0; r < rows.size(); ++r) drafts[r] = rows[r].cap;
    } else if (same_data && total.drafts > 0) {
      split(table, total.drafts, total.last, drafts);
    } else {
      table.clear();
      for (const VerifyRow& row : rows)
        table.add(row.cap, row.split_data == nullptr ? row.total_data : row.split_data);
      split(table, total.drafts, drafts);
    }
  }

  // Padded dispatch: the graph size to ask for when the next step has `rows` rows. Their confidences are not
  // known yet, so all drafts count as the prior says; without a curve all are verified.
  std::int32_t wish(std::int32_t rows) const {
    const bool choice = rows > 0 && ready();
    return Cfg::kGraphSizes[GraphTable<Cfg>::index(choice ? wished_total(rows) : rows * Cfg::kMaxQ)];
  }

 private:
  using Table = SurvivalTable<Cfg>;
  static constexpr std::size_t kDrafts = static_cast<std::size_t>(Cfg::kMaxNumSeqs) * Table::kColumns;
  static constexpr double kMinGain =
      static_cast<double>(Cfg::kMinGainNumerator) / static_cast<double>(Cfg::kMinGainDenominator);

  struct Total {
    std::int32_t drafts;
    std::uint16_t last;  // the least survival among them; of no meaning when there are none, or all
  };

  // Rows and a sum of survivals per millisecond; exact up to the division, so it never falls as the sum
  // grows.
  static double throughput(std::int32_t rows, std::int64_t sum, double cost) {
    return (static_cast<double>(rows) + static_cast<double>(sum) / kCertain) / cost;
  }

  // Only a total that fills its graph, or the largest one, can be the best, so there is one for each graph
  // from that of the rows on. Ties go to the smaller total.
  Total choose_total(const Table& known, std::int32_t limit) {
    const std::int32_t rows = known.rows();
    const std::int32_t most = std::min(rows + known.drafts(), limit);
    const std::int32_t last_graph = GraphTable<Cfg>::index(most);
    const auto drafts = [rows, most](std::int32_t graph) {
      return std::min(Cfg::kGraphSizes[graph], most) - rows;
    };
    // With padded dispatch the agreed graph runs, whatever it is filled with.
    const auto cost = [this, agreed = GraphTable<Cfg>::index(limit), sampler = costs_.sampler(rows)](
                          std::int32_t graph
                      ) { return costs_.cost(Cfg::kPaddedDispatch ? agreed : graph, sampler); };

    GreatestSums<kDrafts> sums(known.all(), known.drafts());
    std::array<double, Cfg::kGraphSizes.size()> reach;  // the most that the throughput of each total can be
    double certain = 0;                                 // the least that the best one can be
    std::int32_t first = GraphTable<Cfg>::index(rows);
    for (std::int32_t graph = first; graph <= last_graph; ++graph) {
      const auto [low, high] = sums.bounds(drafts(graph));
      const double duration = cost(graph);
      reach[graph] = throughput(rows, high, duration);
      certain = std::max(certain, throughput(rows, low, duration));
    }
    // Exact sums are needed for those that may be the best. The sum of all drafts is exact already.
    std::int32_t last = last_graph;
    while (reach[first] < certain) ++first;
    if (most == rows + known.drafts()) {
      while (reach[last] < certain) --last;
    }
    sums.resolve(drafts(first), drafts(last));

    std::int32_t best = last_graph;
    double greatest = 0;
    double current = 0;
    std::int64_t sum = sums.base();
    std::int32_t taken = sums.skipped();
    for (std::int32_t graph = first; graph <= last; ++graph) {
      for (; taken < drafts(graph); ++taken) sum += sums.key(taken);
      current = throughput(rows, sum, cost(graph));
      if (current > greatest) {
        greatest = current;
        best = graph;
      }
    }
    const double gain = greatest / (last == last_graph ? current : reach[last_graph]) - 1;
    variable_ = gain >= (variable_ ? kMinGain / 2 : kMinGain);
    const std::int32_t chosen = drafts(variable_ ? best : last_graph);
    const bool some = chosen > 0 && chosen < known.drafts();
    return {chosen, some ? sums.key(chosen - 1) : std::uint16_t{0}};
  }

  // The total with the greatest throughput by the curve alone, when each of `rows` has all drafts and no
  // history.
  std::int32_t wished_total(std::int32_t rows) const {
    const std::int32_t most = rows * Cfg::kMaxQ;
    const std::int32_t last_graph = GraphTable<Cfg>::index(most);
    std::int32_t best = most;
    double greatest = 0;
    double current = 0;
    std::int64_t sum = 0;
    std::int32_t taken = 0;
    for (std::int32_t graph = GraphTable<Cfg>::index(rows); graph <= last_graph; ++graph) {
      const std::int32_t total = std::min(Cfg::kGraphSizes[graph], most);
      // All first drafts survive alike, then all second ones, and so on.
      for (; taken < total - rows; ++taken) sum += kPriorSurvivals<Cfg>[taken / rows];
      current = throughput(rows, sum, costs_.curve(graph));
      if (current > greatest) {
        greatest = current;
        best = total;
      }
    }
    return greatest / current - 1 >= kMinGain ? best : most;
  }

  CostModel<Cfg> costs_;
  bool variable_ = false;
};

}  // namespace deepinfer
