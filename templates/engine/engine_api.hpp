// The interface between the bindings and a generated engine: plain data and spans, no Python, no templates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/constants.hpp"
#include "engine/engine_types.hpp"
#include "engine/request.hpp"

namespace deepinfer {

// A borrowed matrix, row major, rows contiguous.
template <class T>
struct Matrix {
  const T* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
};

// One scheduled step. The spans stay valid until the next begin_step. R rows, T tokens: docs/formats.md,
// section 3.
struct StepView {
  std::uint64_t step_id = 0;
  StepKind kind = StepKind::None;
  std::int32_t num_rows = 0;  // real rows
  std::int32_t total_q = 0;   // real tokens
  std::int32_t graph = 0;     // graph size, 0 in prefill
  std::span<const std::uint64_t> ids;
  std::span<const std::int32_t> q_len;
  std::span<const std::int32_t> k_len;
  std::span<const std::int32_t> prefill_len;
  std::span<const std::int32_t> slot;
  std::span<const std::int32_t> remap;
  std::span<const std::int32_t> samples;
  Matrix<std::int32_t> block_table;
  Matrix<std::int32_t> history;
  std::span<const std::int32_t> input_ids;
  std::span<const std::int32_t> positions;
  std::span<const std::int32_t> row_of_token;
  std::int32_t provisional = 0;  // the device splits the verification lengths again
  std::span<const std::int32_t> caps;
  Matrix<std::int32_t> clone_blocks;
  Matrix<std::int32_t> clone_states;
  std::span<const std::int32_t> zero_states;
  std::span<const std::uint64_t> ignored;
  std::span<const std::uint64_t> preempted;
  std::span<const std::uint64_t> loads;
};

// When a request ends by itself.
struct RequestLimits {
  std::int64_t max_tokens = 0;
  std::int64_t min_tokens = 0;
  std::span<const std::int32_t> end_ids;
};

// A request to prefill.
struct NewPrompt {
  std::uint64_t id = 0;
  std::span<const std::int32_t> tokens;
  RequestLimits limits;
  std::span<const std::int32_t> checkpoints;
  std::span<const ImageSpan> image_spans;
};

// A request whose cache was computed elsewhere: its prompt and the output so far, whose last token has no
// cache yet.
struct NewPrompted {
  std::uint64_t id = 0;
  std::span<const std::int32_t> tokens;
  std::int64_t prompt_length = 0;
  RequestLimits limits;
};

// What the device computed for one step, one row per real row.
struct StepResults {
  Matrix<std::int32_t> tokens;           // [rows, max_q]
  std::span<const std::int32_t> counts;  // accepted drafts and the bonus token
  Matrix<std::uint16_t> confidences;     // [rows, nextn]
};

// What a commit did, one entry per row of its step; valid until the next commit.
struct CommittedView {
  std::span<const std::uint64_t> ids;
  std::span<const std::int32_t> emitted;
  std::span<const std::int32_t> reasons;
};

// Requests that ended; valid until the next call of outcomes().
struct OutcomesView {
  std::span<const std::uint64_t> ids;
  std::span<const std::int32_t> reasons;
  std::span<const std::int32_t> stop_tokens;
};

struct Counter {
  std::string_view name;
  std::int64_t value;
};

// What each call means is in docs/formats.md, section 3. Throws std::invalid_argument for a call that breaks
// the contract, with the values; the state is then unchanged.
class EngineApi {
 public:
  virtual ~EngineApi() = default;

  virtual void add(const NewPrompt& prompt) = 0;
  virtual void add_prompted(const NewPrompted& prompted) = 0;
  virtual void fork(std::uint64_t parent, std::span<const std::uint64_t> children) = 0;
  virtual void pause(std::uint64_t id) = 0;
  virtual void resume(std::uint64_t id) = 0;
  virtual void begin_transfer(std::uint64_t id) = 0;
  virtual void end_transfer(std::uint64_t id) = 0;
  virtual std::vector<std::int32_t> blocks(std::uint64_t id) const = 0;
  virtual std::int32_t slot(std::uint64_t id) const = 0;
  virtual void abort(std::uint64_t id) = 0;
  virtual void finish(std::uint64_t id, std::int32_t reason) = 0;
  virtual void set_pending(bool pending) = 0;
  virtual void set_error(std::string_view message) = 0;
  virtual void set_cost_curve(std::span<const double> milliseconds) = 0;
  // `graph` is a size.
  virtual void observe(std::int32_t graph, std::int32_t rows, double forward_ms, double sampler_ms) = 0;
  // Queries of each row, as the device computes them in a provisional step.
  virtual std::vector<std::int32_t> split(
      std::span<const std::int32_t> caps, const Matrix<std::uint16_t>& confidences, std::int32_t total
  ) const = 0;

  // `flags` is the reduced record of the last step; null when no new one was exchanged.
  virtual Action begin_step(const Record* flags) = 0;
  virtual Record vote() const = 0;
  virtual Action resolve_vote(const Record& reduced) = 0;
  virtual Record flags() const = 0;
  virtual Decision decision() const = 0;
  virtual StepView step() const = 0;
  virtual CommittedView commit(std::uint64_t step_id, const StepResults& results) = 0;

  virtual OutcomesView outcomes() = 0;
  virtual std::uint64_t fingerprint() const = 0;
  virtual std::vector<Counter> stats() const = 0;
  virtual std::string fail_reason() const = 0;
  virtual std::unique_ptr<EngineApi> clone() const = 0;
  // Throws std::logic_error, naming the rule, when the bookkeeping contradicts itself: for tests and fuzzing.
  virtual void check_invariants() const = 0;
};

struct EngineInfo {
  std::string_view plan_digest;
  std::string_view files_digest;
  std::vector<Constant> constants;
};

// Defined by the generated engine.cpp.
std::unique_ptr<EngineApi> make_engine();
const EngineInfo& engine_info();

// Defined by the translation unit that the build writes: the digest covers engine.cpp, so it cannot stand in
// there.
extern const char kFilesDigest[];

}  // namespace deepinfer
