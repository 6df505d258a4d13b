// What the bindings lend out, and the checks that nobody reads it when it has changed.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "engine/engine_api.hpp"

namespace deepinfer::bindings {

namespace py = pybind11;

// Arrays that borrow the engine's memory until the next call of the same kind. They hold the token and with
// it the engine; the token's references tell how many there are.
class Loan {
 public:
  explicit Loan(const char* ends_with) : ends_with_(ends_with) {}

  std::uint64_t generation() const { return generation_; }
  py::handle token() const { return token_; }

  // Refuse a call that would change the memory of an array that somebody still holds.
  void check_returned() const {
    const auto held = token_ ? token_.ref_count() - 1 : 0;
    if (held == 0) return;
    throw py::value_error(
        std::string(ends_with_) + ": " + std::to_string(held) +
        " arrays of the last one are still held; copy what is needed longer and drop the rest"
    );
  }

  void renew(std::shared_ptr<EngineApi> engine) {
    ++generation_;
    auto* const kept = new std::shared_ptr<EngineApi>(std::move(engine));
    token_ =
        py::capsule(kept, [](void* pointer) { delete static_cast<std::shared_ptr<EngineApi>*>(pointer); });
  }

  void check_current(std::uint64_t generation) const {
    if (generation == generation_) return;
    throw py::value_error(std::string("this view is over: ") + ends_with_ + " was called since it was made");
  }

 private:
  const char* ends_with_;
  std::uint64_t generation_ = 0;
  py::object token_;
};

}  // namespace deepinfer::bindings
