// Requests that have not ended, and the queue of those that wait for admission.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace deepinfer {

// Waiting: queued. Partial: some but not all prompt chunks scheduled. Prompted: the last chunk is scheduled.
// Running: decodes. A request that ends is removed.
enum class RequestState : std::uint8_t { Waiting, Partial, Prompted, Running };

struct Request {
  std::uint64_t id = 0;
  std::vector<std::int32_t> tokens;  // prompt, then the committed output
  std::int32_t prompt_length = 0;
  std::int32_t length_limit = 0;  // tokens, prompt included, at which it ends with `length`
  std::int32_t min_tokens = 0;    // end ids are ignored before this many output tokens
  std::vector<std::int32_t> end_ids;
  RequestState state = RequestState::Waiting;
  std::int32_t place = -1;  // in the SequenceTable, -1 while it waits
  std::int32_t previous = -1;
  std::int32_t next = -1;

  std::int32_t length() const { return static_cast<std::int32_t>(tokens.size()); }
  std::int32_t output_length() const { return length() - prompt_length; }
  bool is_end_id(std::int32_t token) const { return std::ranges::find(end_ids, token) != end_ids.end(); }
};

// Requests by a stable small index. Growth happens in `add` only.
class RequestTable {
 public:
  Request& operator[](std::int32_t index) { return pool_[static_cast<std::size_t>(index)]; }
  const Request& operator[](std::int32_t index) const { return pool_[static_cast<std::size_t>(index)]; }

  std::int32_t live_count() const { return static_cast<std::int32_t>(by_id_.size()); }
  std::int32_t waiting_count() const { return waiting_; }
  std::int32_t head() const { return head_; }  // first waiting request, -1 if none

  std::int32_t find(std::uint64_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? -1 : found->second;
  }

  std::int32_t add(Request&& request) {
    if (unused_.empty()) {
      pool_.emplace_back();
      unused_.push_back(static_cast<std::int32_t>(pool_.size()) - 1);
      unused_.reserve(pool_.capacity());  // so that remove() never allocates
    }
    const std::int32_t index = unused_.back();
    by_id_.emplace(request.id, index);
    unused_.pop_back();
    (*this)[index] = std::move(request);
    link(index, tail_, -1);
    return index;
  }

  void remove(std::int32_t index) {
    Request& request = (*this)[index];
    if (request.state == RequestState::Waiting) unlink(index);
    by_id_.erase(request.id);
    request = Request{};
    unused_.push_back(index);
  }

  // From the queue to a place in the SequenceTable. `tokens` gets its final capacity here, in a prefill step,
  // so that decode steps never allocate and waiting requests hold no more than their prompt.
  void admit(std::int32_t index, std::int32_t place) {
    unlink(index);
    Request& request = (*this)[index];
    request.tokens.reserve(static_cast<std::size_t>(request.length_limit));
    request.state = RequestState::Partial;
    request.place = place;
  }

  // Back to the front of the queue, where it came from: whatever waits now arrived after it was admitted.
  void requeue(std::int32_t index) {
    Request& request = (*this)[index];
    request.state = RequestState::Waiting;
    request.place = -1;
    link(index, -1, head_);
  }

 private:
  void link(std::int32_t index, std::int32_t previous, std::int32_t next) {
    (*this)[index].previous = previous;
    (*this)[index].next = next;
    (previous < 0 ? head_ : (*this)[previous].next) = index;
    (next < 0 ? tail_ : (*this)[next].previous) = index;
    ++waiting_;
  }

  void unlink(std::int32_t index) {
    const std::int32_t previous = (*this)[index].previous;
    const std::int32_t next = (*this)[index].next;
    (previous < 0 ? head_ : (*this)[previous].next) = next;
    (next < 0 ? tail_ : (*this)[next].previous) = previous;
    --waiting_;
  }

  std::vector<Request> pool_;
  std::vector<std::int32_t> unused_;
  std::unordered_map<std::uint64_t, std::int32_t> by_id_;
  std::int32_t head_ = -1;
  std::int32_t tail_ = -1;
  std::int32_t waiting_ = 0;
};

}  // namespace deepinfer
