// How likely drafts are to be accepted, in integers: host and device agree bit for bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace deepinfer {

// Survival of no drafts at all. A confidence is at most 65535 / 65536, so every draft's survival fits 16
// bits.
inline constexpr std::uint32_t kCertain = 65536;

// Survival of one draft more; the product fits 32 bits.
constexpr std::uint32_t survive(std::uint32_t survival, std::uint16_t confidence) {
  return (survival * confidence) >> 16U;
}

// Confidences of a row without history.
template <class Cfg>
inline constexpr std::array<std::uint16_t, Cfg::kNextn> kPriorConfidences = [] {
  std::array<std::uint16_t, Cfg::kNextn> confidences{};
  confidences.fill(static_cast<std::uint16_t>(Cfg::kPriorSurvival));
  return confidences;
}();

// Survivals of the drafts of a row without history.
template <class Cfg>
inline constexpr std::array<std::uint16_t, Cfg::kNextn> kPriorSurvivals = [] {
  std::array<std::uint16_t, Cfg::kNextn> survivals{};
  std::uint32_t survival = kCertain;
  for (std::uint16_t& entry : survivals) {
    survival = survive(survival, static_cast<std::uint16_t>(Cfg::kPriorSurvival));
    entry = static_cast<std::uint16_t>(survival);
  }
  return survivals;
}();

// The survivals of the drafts that rows may verify. Every row has Nextn entries, which never rise; those past
// its cap are 0, so that they come last in any order.
template <class Cfg>
class SurvivalTable {
 public:
  static constexpr auto kColumns = static_cast<std::size_t>(Cfg::kNextn);
  using Row = std::span<const std::uint16_t, kColumns>;

  // A row of `cap` drafts; `confidences` has Nextn entries, null stands for the prior.
  void add(std::int32_t cap, const std::uint16_t* confidences) {
    if (confidences == nullptr) confidences = kPriorConfidences<Cfg>.data();
    std::uint16_t* const row = items_.data() + static_cast<std::size_t>(rows_) * kColumns;
    std::uint32_t survival = kCertain;
    for (std::size_t k = 0; k < kColumns; ++k) {
      survival = survive(survival, confidences[k]);
      row[k] = static_cast<std::int32_t>(k) < cap ? static_cast<std::uint16_t>(survival) : std::uint16_t{0};
    }
    caps_[rows_++] = cap;
    drafts_ += cap;
  }

  void clear() { rows_ = drafts_ = 0; }
  std::int32_t rows() const { return rows_; }
  std::int32_t drafts() const { return drafts_; }
  std::int32_t cap(std::int32_t row) const { return caps_[row]; }
  Row row(std::int32_t index) const {
    return Row(items_.data() + static_cast<std::size_t>(index) * kColumns, kColumns);
  }
  std::span<const std::uint16_t> all() const {
    return std::span(items_).first(static_cast<std::size_t>(rows_) * kColumns);
  }

 private:
  std::int32_t rows_ = 0;
  std::int32_t drafts_ = 0;
  // Only what was added is ever read, so that a table on the stack costs nothing to make.
  std::array<std::int32_t, static_cast<std::size_t>(Cfg::kMaxNumSeqs)> caps_;
  std::array<std::uint16_t, static_cast<std::size_t>(Cfg::kMaxNumSeqs) * kColumns> items_;
};

}  // namespace deepinfer
