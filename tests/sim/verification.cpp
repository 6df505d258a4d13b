// The verification policies behind C functions, so that tests drive the real headers with random cases. Each
// config is reached by its index; a policy is created, driven and destroyed by the caller. Functions that may
// refuse return 0, or 1 with the sentence in `message`.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "engine/fingerprint_hash.hpp"
#include "engine/split.hpp"
#include "engine/verify_fixed.hpp"
#include "engine/verify_row.hpp"
#include "engine/verify_varlen.hpp"

namespace {

using deepinfer::VerifyRow;

template <std::size_t N>
constexpr std::array<std::int32_t, N> filled(std::int32_t rows) {
  std::array<std::int32_t, N> result{};
  result.fill(rows);
  return result;
}

// MinGain in percent.
template <std::int32_t Seqs, std::int32_t Nextn, std::int32_t MinGain, bool Padded>
struct Sizes {
  static constexpr std::int32_t kMaxNumSeqs = Seqs;
  static constexpr std::int32_t kNextn = Nextn;
  static constexpr std::int32_t kMaxQ = Nextn + 1;
  static constexpr std::int32_t kMaxTotalQ = Seqs * kMaxQ;
  static constexpr std::uint16_t kPriorSurvival = 52'428;
  static constexpr std::int64_t kMinGainNumerator = MinGain;
  static constexpr std::int64_t kMinGainDenominator = 100;
  static constexpr bool kPaddedDispatch = Padded;
};

template <class Base, std::int32_t... Size>
struct Listed : Base {
  static constexpr std::array<std::int32_t, sizeof...(Size)> kGraphSizes{Size...};
  static constexpr std::array<std::int32_t, sizeof...(Size)> kGraphRows =
      filled<sizeof...(Size)>(Base::kMaxTotalQ);
  static constexpr std::int32_t kMaxGraphRows = Base::kMaxTotalQ;
};

// 1, then every Interval tokens, then the largest.
template <class Base, std::int32_t Interval>
struct Spaced : Base {
  static constexpr std::size_t kCount = 1 + (Base::kMaxTotalQ - 1 + Interval - 1) / Interval;
  static constexpr std::array<std::int32_t, kCount> kGraphSizes = [] {
    std::array<std::int32_t, kCount> sizes{};
    for (std::size_t i = 0; i < kCount; ++i)
      sizes[i] = std::min(std::max(static_cast<std::int32_t>(i) * Interval, 1), Base::kMaxTotalQ);
    sizes[kCount - 1] = Base::kMaxTotalQ;
    return sizes;
  }();
  static constexpr std::array<std::int32_t, kCount> kGraphRows = filled<kCount>(Base::kMaxTotalQ);
  static constexpr std::int32_t kMaxGraphRows = Base::kMaxTotalQ;
};

// What the tests see of a config and its policy.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::vector<std::int64_t> constants() const = 0;
  virtual void set_curve(std::span<const double> milliseconds) = 0;
  virtual void observe(std::int32_t graph, std::int32_t rows, double forward_ms, double sampler_ms) = 0;
  virtual void choose(
      std::span<const VerifyRow> rows, std::int32_t limit, std::span<std::int32_t> drafts
  ) = 0;
  virtual void split(
      std::span<const std::int32_t> caps, std::span<const std::uint16_t> confidences, std::int32_t total,
      std::span<std::int32_t> queries
  ) const = 0;
  virtual std::int32_t wish(std::int32_t rows) const = 0;
  virtual std::uint64_t fingerprint() const = 0;
  virtual void restart() = 0;
};

template <class Cfg, template <class> class Verification>
class Driven final : public Policy {
 public:
  // Varlen, sequences, drafts, prior, min_gain, padded, then the graph sizes.
  std::vector<std::int64_t> constants() const override {
    std::vector<std::int64_t> result{
        Verification<Cfg>::kUsesCurve,
        Cfg::kMaxNumSeqs,
        Cfg::kNextn,
        Cfg::kPriorSurvival,
        Cfg::kMinGainNumerator,
        Cfg::kMinGainDenominator,
        Cfg::kPaddedDispatch
    };
    result.insert(result.end(), Cfg::kGraphSizes.begin(), Cfg::kGraphSizes.end());
    return result;
  }
  void set_curve(std::span<const double> milliseconds) override { verification_.set_curve(milliseconds); }
  void observe(std::int32_t graph, std::int32_t rows, double forward_ms, double sampler_ms) override {
    verification_.observe(graph, rows, forward_ms, sampler_ms);
  }
  void choose(std::span<const VerifyRow> rows, std::int32_t limit, std::span<std::int32_t> drafts) override {
    verification_.choose(rows, limit, drafts);
  }
  void split(
      std::span<const std::int32_t> caps, std::span<const std::uint16_t> confidences, std::int32_t total,
      std::span<std::int32_t> queries
  ) const override {
    deepinfer::split_total<Cfg>(caps, confidences, total, queries);
  }
  std::int32_t wish(std::int32_t rows) const override { return verification_.wish(rows); }
  std::uint64_t fingerprint() const override {
    deepinfer::FingerprintHash hash;
    verification_.mix_into(hash);
    return hash.value();
  }
  void restart() override { verification_.restart(); }

 private:
  Verification<Cfg> verification_;
};

template <class Cfg>
using Varlen = Driven<Cfg, deepinfer::VarlenVerification>;
template <class Cfg>
using Fixed = Driven<Cfg, deepinfer::FixedVerification>;

template <class Driver>
std::unique_ptr<Policy> make() {
  return std::make_unique<Driver>();
}

constexpr std::array kMakers{
    make<Varlen<Listed<Sizes<1, 1, 0, false>, 1, 2>>>,
    make<Varlen<Listed<Sizes<2, 2, 0, false>, 6>>>,
    make<Varlen<Listed<Sizes<16, 7, 0, false>, 3, 10, 11, 50, 128>>>,
    make<Varlen<Spaced<Sizes<6, 5, 10, false>, 4>>>,
    make<Varlen<Spaced<Sizes<60, 5, 0, false>, 8>>>,
    make<Varlen<Spaced<Sizes<8, 3, 0, true>, 4>>>,
    make<Varlen<Spaced<Sizes<8, 3, 3, true>, 4>>>,
    make<Fixed<Spaced<Sizes<8, 3, 0, true>, 4>>>,
    make<Fixed<Listed<Sizes<4, 0, 0, false>, 1, 2, 4>>>,
    make<Varlen<Spaced<Sizes<1024, 5, 0, false>, 8>>>,
    make<Varlen<Listed<Sizes<2, 3, 0, false>, 1, 2, 3, 4, 5, 6, 7, 8>>>,
    make<Varlen<Listed<Sizes<4, 3, 0, false>, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16>>>,
};

template <class Action>
std::int32_t guarded(char* message, std::size_t capacity, Action action) {
  try {
    action();
    return 0;
  } catch (const std::exception& fault) {
    std::strncpy(message, fault.what(), capacity - 1);
    message[capacity - 1] = '\0';
    return 1;
  }
}

}  // namespace

extern "C" {

std::int32_t policy_configs() { return static_cast<std::int32_t>(kMakers.size()); }

Policy* policy_create(std::int32_t config) { return kMakers[static_cast<std::size_t>(config)]().release(); }

void policy_destroy(Policy* policy) { delete policy; }

// Fills `values` and returns how many there are.
std::int32_t policy_constants(const Policy* policy, std::int64_t* values, std::int32_t capacity) {
  const std::vector<std::int64_t> constants = policy->constants();
  const auto count = std::min(constants.size(), static_cast<std::size_t>(capacity));
  std::copy_n(constants.begin(), count, values);
  return static_cast<std::int32_t>(constants.size());
}

std::int32_t policy_set_curve(
    Policy* policy, const double* milliseconds, std::size_t count, char* message, std::size_t capacity
) {
  return guarded(message, capacity, [&] { policy->set_curve({milliseconds, count}); });
}

std::int32_t policy_observe(
    Policy* policy, std::int32_t graph, std::int32_t rows, double forward_ms, double sampler_ms,
    char* message, std::size_t capacity
) {
  return guarded(message, capacity, [&] { policy->observe(graph, rows, forward_ms, sampler_ms); });
}

// `has_total` and `has_split` say for each row whether its entries of `total_data` and `split_data` exist.
void policy_choose(
    Policy* policy, const std::int32_t* caps, const std::uint16_t* total_data, const std::uint8_t* has_total,
    const std::uint16_t* split_data, const std::uint8_t* has_split, std::size_t count, std::size_t nextn,
    std::int32_t limit, std::int32_t* drafts
) {
  std::vector<VerifyRow> rows;
  for (std::size_t r = 0; r < count; ++r)
    rows.push_back(
        {caps[r],
         has_total[r] != 0 ? total_data + r * nextn : nullptr,
         has_split[r] != 0 ? split_data + r * nextn : nullptr}
    );
  policy->choose(rows, limit, {drafts, count});
}

std::int32_t policy_split(
    const Policy* policy, const std::int32_t* caps, std::size_t rows, const std::uint16_t* confidences,
    std::size_t confidence_count, std::int32_t total, std::int32_t* queries, char* message,
    std::size_t capacity
) {
  return guarded(message, capacity, [&] {
    policy->split({caps, rows}, {confidences, confidence_count}, total, {queries, rows});
  });
}

std::int32_t policy_wish(const Policy* policy, std::int32_t rows) { return policy->wish(rows); }

std::uint64_t policy_fingerprint(const Policy* policy) { return policy->fingerprint(); }

void policy_restart(Policy* policy) { policy->restart(); }
}
