// What a verification policy knows about one row of a decode step.
#pragma once

#include <cstdint>

namespace deepinfer {

// Confidences are Cfg::kNextn entries each, those past `cap` included.
struct VerifyRow {
  std::int32_t cap = 0;                       // the most drafts that it may verify
  const std::uint16_t* total_data = nullptr;  // confidences that choose the total; null: the prior
  const std::uint16_t* split_data = nullptr;  // the newest confidences; null: as total_data
};

}  // namespace deepinfer
