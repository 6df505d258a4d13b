// Random cases through the verification policies of verification.cpp, for the sanitizers, and with every
// allocation counted: once the policies exist, choosing and observing allocate nothing. Usage:
// verification_driver CASES [SEED].
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "verification.cpp"

namespace {

std::int64_t allocations = 0;

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using Random = std::mt19937_64;

void require(bool holds, std::string_view rule) {
  if (holds) return;
  std::printf("%.*s\n", static_cast<int>(rule.size()), rule.data());
  std::exit(1);
}

std::int32_t below(Random& random, std::int64_t limit) {
  return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(limit));
}

// Often at an end of the range, and often equal.
std::uint16_t confidence(Random& random) {
  static constexpr std::array<std::uint16_t, 6> kFew{0, 1, 32'768, 52'428, 65'534, 65'535};
  return random() % 2 == 0 ? kFew[random() % kFew.size()] : static_cast<std::uint16_t>(random());
}

class Case {
 public:
  Case(Policy& policy, Random& random) : policy_(policy), random_(random) {
    const std::vector<std::int64_t> constants = policy.constants();
    varlen_ = constants[0] != 0;
    max_rows_ = constants[1];
    nextn_ = static_cast<std::size_t>(constants[2]);
    padded_ = constants[6] != 0;
    sizes_.assign(constants.begin() + 7, constants.end());
    const auto cells = static_cast<std::size_t>(max_rows_) * std::max<std::size_t>(nextn_, 1);
    total_data_.resize(cells);
    split_data_.resize(cells);
    rows_.resize(static_cast<std::size_t>(max_rows_));
    drafts_.resize(static_cast<std::size_t>(max_rows_));
    if (varlen_) set_curve();
  }

  void run() {
    const std::int64_t before = allocations;
    const auto count = static_cast<std::size_t>(below(random_, max_rows_ + 1));
    fill(count);
    const std::int32_t limit = limit_for(count);
    const std::span<std::int32_t> drafts = std::span(drafts_).first(count);
    policy_.choose(std::span<const VerifyRow>(rows_).first(count), limit, drafts);
    std::int32_t total = static_cast<std::int32_t>(count);
    for (std::size_t r = 0; r < count; ++r) {
      require(drafts[r] >= 0 && drafts[r] <= rows_[r].cap, "I15: a row verifies a prefix of its drafts");
      total += drafts[r];
    }
    require(total <= limit, "I14: the total fits");
    const auto wish = policy_.wish(below(random_, max_rows_ + 1));
    require(std::ranges::binary_search(sizes_, wish), "a graph asks for a size of the table");
    if (varlen_) {
      const auto size = static_cast<std::int32_t>(sizes_[random_() % sizes_.size()]);
      const std::int32_t rows = below(random_, std::min<std::int64_t>(size, max_rows_) + 1);
      policy_.observe(size, rows, below(random_, 40'000) / 1e3, below(random_, 1000) / 1e3);
    }
    require(allocations == before, "choosing and observing allocate nothing");
  }

 private:
  void set_curve() {
    std::vector<double> curve;
    double duration = 1;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      duration += random_() % 3 == 0 ? 0 : below(random_, 1000) / 1e3;
      curve.push_back(duration);
    }
    curve.back() += 1;
    policy_.set_curve(curve);
  }

  void fill(std::size_t count) {
    const bool one_value = random_() % 4 == 0;
    const std::uint16_t value = confidence(random_);
    const bool provisional = random_() % 2 == 0;
    for (std::size_t r = 0; r < count; ++r) {
      for (std::size_t k = 0; k < nextn_; ++k) {
        total_data_[r * nextn_ + k] = one_value ? value : confidence(random_);
        split_data_[r * nextn_ + k] = one_value ? value : confidence(random_);
      }
      rows_[r].cap = below(random_, static_cast<std::int64_t>(nextn_) + 1);
      rows_[r].total_data = random_() % 5 == 0 ? nullptr : &total_data_[r * nextn_];
      rows_[r].split_data = provisional || random_() % 5 == 0 ? nullptr : &split_data_[r * nextn_];
    }
  }

  // With padded dispatch any graph that holds the rows may have been agreed on.
  std::int32_t limit_for(std::size_t count) {
    if (!padded_) return static_cast<std::int32_t>(sizes_.back());
    const auto first = std::ranges::lower_bound(sizes_, static_cast<std::int64_t>(count)) - sizes_.begin();
    return static_cast<std::int32_t>(sizes_[static_cast<std::size_t>(
        first + below(random_, static_cast<std::int64_t>(sizes_.size()) - first)
    )]);
  }

  Policy& policy_;
  Random& random_;
  bool varlen_ = false;
  std::int64_t max_rows_ = 0;
  std::size_t nextn_ = 0;
  bool padded_ = false;
  std::vector<std::int64_t> sizes_;
  std::vector<std::uint16_t> total_data_;
  std::vector<std::uint16_t> split_data_;
  std::vector<VerifyRow> rows_;
  std::vector<std::int32_t> drafts_;
};

}  // namespace

int main(int argc, char** argv) {
  const int cases = argc > 1 ? std::atoi(argv[1]) : 2000;
  Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  for (std::size_t config = 0; config < kMakers.size(); ++config) {
    const std::unique_ptr<Policy> policy = kMakers[config]();
    Case scene(*policy, random);
    for (int i = 0; i < cases; ++i) scene.run();
  }
  std::printf("%zu verification policies, %d cases each, no allocation\n", kMakers.size(), cases);
  return 0;
}
