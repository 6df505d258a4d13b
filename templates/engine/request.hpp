// Requests that have not ended, and the two queues of those that wait for admission.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace deepinfer {

// Waiting: queued for prefill. Incoming: queued, its cache was computed elsewhere. Partial: some but not all
// prompt chunks scheduled. Loading: its cache is being written from outside. Prompted: decodes from the next
// decode step on. Running: decodes. A request that ends is removed.
enum class RequestState : std::uint8_t { Waiting, Incoming, Partial, Loading, Prompted, Running };

// The tokens start .. end - 1 of a prompt are one image, which no chunk may cut.
struct ImageSpan {
  std::int32_t start;
  std::int32_t end;
};

// What every decode step reads comes first and shares a cache line.
struct alignas(64) Request {
  std::uint64_t id = 0;
  std::vector<std::int32_t> tokens;  // prompt, then the committed output
  std::int32_t prompt_length = 0;
  std::int32_t length_limit = 0;  // tokens, prompt included, at which it ends with `length`
  std::int32_t min_tokens = 0;    // end ids are ignored before this many output tokens
  std::int32_t place = -1;        // in the SequenceTable, -1 while it waits
  RequestState state = RequestState::Waiting;
  bool paused = false;
  std::int32_t previous = -1;
  std::int32_t next = -1;
  std::vector<std::int32_t> end_ids;
  std::vector<std::int32_t> checkpoints;  // prompt lengths at which a chunk ends rather than elsewhere
  std::vector<ImageSpan> image_spans;

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
  std::int32_t paused_count() const { return paused_; }
  std::int32_t queued_count(RequestState queue) const { return queues_[number(queue)].count; }
  // First of a queue (Waiting or Incoming), -1 if it is empty; Request::next leads on.
  std::int32_t first(RequestState queue) const { return queues_[number(queue)].first; }

  std::int32_t first_unpaused(RequestState queue) const { return unpaused_from(first(queue)); }
  std::int32_t next_unpaused(std::int32_t index) const { return unpaused_from((*this)[index].next); }

  std::int32_t find(std::uint64_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? -1 : found->second;
  }

  // A request whose state is Waiting or Incoming joins that queue.
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
    if (is_queued((*this)[index])) link(index, queues_[number((*this)[index].state)].last, -1);
    return index;
  }

  void remove(std::int32_t index) {
    set_paused(index, false);
    Request& request = (*this)[index];
    if (is_queued(request)) unlink(index);
    by_id_.erase(request.id);
    request = Request{};
    unused_.push_back(index);
  }

  void set_paused(std::int32_t index, bool paused) {
    Request& request = (*this)[index];
    paused_ += static_cast<std::int32_t>(paused) - static_cast<std::int32_t>(request.paused);
    request.paused = paused;
  }

  // From its queue to a place in the SequenceTable. `tokens` gets its final capacity here, so that decode
  // steps never allocate and waiting requests hold no more than their prompt.
  void admit(std::int32_t index, std::int32_t place, RequestState state) {
    unlink(index);
    Request& request = (*this)[index];
    request.tokens.reserve(static_cast<std::size_t>(request.length_limit));
    request.state = state;
    request.place = place;
  }

  // Back to the front of the prefill queue: whatever waits there arrived after it was admitted.
  void requeue(std::int32_t index) {
    Request& request = (*this)[index];
    request.state = RequestState::Waiting;
    request.place = -1;
    link(index, -1, first(RequestState::Waiting));
  }

 private:
  struct Queue {
    std::int32_t first = -1;
    std::int32_t last = -1;
    std::int32_t count = 0;
  };

  static std::size_t number(RequestState queue) { return queue == RequestState::Waiting ? 0 : 1; }
  static bool is_queued(const Request& request) {
    return request.state == RequestState::Waiting || request.state == RequestState::Incoming;
  }

  std::int32_t unpaused_from(std::int32_t index) const {
    while (index >= 0 && (*this)[index].paused) index = (*this)[index].next;
    return index;
  }

  void link(std::int32_t index, std::int32_t previous, std::int32_t next) {
    Queue& queue = queues_[number((*this)[index].state)];
    (*this)[index].previous = previous;
    (*this)[index].next = next;
    (previous < 0 ? queue.first : (*this)[previous].next) = index;
    (next < 0 ? queue.last : (*this)[next].previous) = index;
    ++queue.count;
  }

  void unlink(std::int32_t index) {
    Queue& queue = queues_[number((*this)[index].state)];
    const std::int32_t previous = (*this)[index].previous;
    const std::int32_t next = (*this)[index].next;
    (previous < 0 ? queue.first : (*this)[previous].next) = next;
    (next < 0 ? queue.last : (*this)[next].previous) = previous;
    --queue.count;
  }

  std::vector<Request> pool_;
  std::vector<std::int32_t> unused_;
  std::unordered_map<std::uint64_t, std::int32_t> by_id_;
  Queue queues_[2];
  std::int32_t paused_ = 0;
};

}  // namespace deepinfer
