// Faults on purpose, chosen by the argument: a sanitizer that stays silent about one of them watches nothing.
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string_view>
#include <thread>

#include "engine/fixed_list.hpp"

namespace {

// Writes past the end of a list that the scheduler is made of.
void overrun(int count) {
  const auto list = std::make_unique<deepinfer::FixedList<4>>();
  for (int i = 0; i < 1000 * count; ++i) list->push_back(i);
  std::printf("%d\n", list->size());
}

// Reads what is gone.
void stale(int count) {
  auto list = std::make_unique<deepinfer::FixedList<4>>();
  for (int i = 0; i < count; ++i) list->push_back(i);
  const auto* const borrowed = list.get();
  list.reset();
  std::printf("%d\n", borrowed->size());
}

void overflow(int count) {
  const std::int32_t sum = std::numeric_limits<std::int32_t>::max() + count;
  std::printf("%d\n", sum);
}

void race(int count) {
  int shared = 0;
  const auto add = [&shared, count] {
    for (int i = 0; i < 100000 * count; ++i) ++shared;
  };
  std::thread other(add);
  add();
  other.join();
  std::printf("%d\n", shared);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view fault = argc > 1 ? argv[1] : "none";
  const int count = argc - 1;  // 1, unknown to the compiler
  if (fault == "overrun") overrun(count);
  if (fault == "stale") stale(count);
  if (fault == "overflow") overflow(count);
  if (fault == "race") race(count);
  return 0;
}
