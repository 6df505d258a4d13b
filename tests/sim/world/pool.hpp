// What the simulation knows of a pool of ids. It predicts how many are taken; which ones it learns from the
// engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "world/basics.hpp"

namespace deepinfer::sim {

// An id that the engine chose and the simulation has not seen yet.
inline constexpr std::int32_t kUnknown = -1;

class Pool {
 public:
  // `what` names the pool in messages.
  Pool(const char* what, std::int32_t count)
      : what_(what), references_(static_cast<std::size_t>(count)), pins_(references_), free_(count - 1) {}

  std::int32_t free() const { return free_; }
  std::int32_t used() const { return static_cast<std::int32_t>(references_.size()) - 1 - free_; }

  std::int32_t take() {
    require(free_ > 0, "I9: taken from an empty pool:", what_);
    --free_;
    return kUnknown;
  }

  // An id that was taken turns out to be `id`.
  void learn(std::int32_t id) {
    require(id > 0 && id < static_cast<std::int32_t>(references_.size()), "I9: handed out", what_, id);
    require(references_[at(id)] == 0, "I10: handed out while a table holds it:", what_, id);
    require(pins_[at(id)] == 0, "B9: handed out while a copy reads it:", what_, id);
    references_[at(id)] = 1;
  }

  std::int32_t references(std::int32_t id) const { return id == kUnknown ? 1 : references_[at(id)]; }
  // Releasing a reference makes it free.
  bool last(std::int32_t id) const {
    return id != kUnknown && references_[at(id)] == 1 && pins_[at(id)] == 0;
  }

  void share(std::int32_t id) { ++references_[at(id)]; }
  void release(std::int32_t id) {
    require(id != kUnknown && --references_[at(id)] >= 0, "I10: released too often:", what_, id);
    free_ += unused(id);
  }
  void pin(std::int32_t id) { ++pins_[at(id)]; }
  void unpin(std::int32_t id) {
    --pins_[at(id)];
    free_ += unused(id);
  }

 private:
  static std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }
  std::int32_t unused(std::int32_t id) const {
    return references_[at(id)] == 0 && pins_[at(id)] == 0 ? 1 : 0;
  }

  const char* what_;
  std::vector<std::int32_t> references_;
  std::vector<std::int32_t> pins_;
  std::int32_t free_;
};

}  // namespace deepinfer::sim
