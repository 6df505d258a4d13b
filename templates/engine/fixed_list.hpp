// An ordered list of small integers with a fixed capacity: no allocation, order kept on removal.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace deepinfer {

template <std::int32_t Capacity>
class FixedList {
 public:
  std::int32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int32_t front() const { return items_[0]; }
  std::int32_t back() const { return items_[size_ - 1]; }
  std::int32_t operator[](std::int32_t index) const { return items_[index]; }
  const std::int32_t* begin() const { return items_.data(); }
  const std::int32_t* end() const { return items_.data() + size_; }

  void clear() { size_ = 0; }
  void push_back(std::int32_t item) { items_[size_++] = item; }
  std::int32_t pop_back() { return items_[--size_]; }

  void remove(std::int32_t item) {
    std::int32_t* const last = items_.data() + size_;
    size_ = static_cast<std::int32_t>(std::remove(items_.data(), last, item) - items_.data());
  }

 private:
  std::array<std::int32_t, static_cast<std::size_t>(Capacity)> items_{};
  std::int32_t size_ = 0;
};

}  // namespace deepinfer
