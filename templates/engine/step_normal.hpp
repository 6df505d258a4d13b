// The step policy of a NORMAL engine: when the group votes, and what the votes decide.
#pragma once

#include <cstdint>

#include "engine/decode.hpp"
#include "engine/fingerprint_hash.hpp"
#include "engine/group_flags.hpp"
#include "engine/incoming.hpp"
#include "engine/prefill.hpp"
#include "engine/vote.hpp"

namespace deepinfer {

// Counters move by outcomes that the whole group has agreed on, so all ranks hold equal values at all times.
template <class Cfg, template <class> class Verification, template <class> class Order>
class NormalStep {
  static_assert(Cfg::kPrefillAttemptInterval >= 1);
  static_assert(Cfg::kPrefillAnyAttemptInterval > Cfg::kPrefillAttemptInterval);
  static_assert(Cfg::kPrefillBurst >= 1);

 public:
  using PrefillHalf = Prefill<Cfg>;
  using DecodeHalf = Decode<Cfg, Verification, Order>;
  using IncomingHalf = Incoming<Cfg>;

  DecodeHalf decode_half;

  // `flags` is the reduced record of the last step, or null; `vote` is filled when the verdict is Vote.
  Verdict begin(const Record* flags, const LocalState& local, Record& vote) {
    decision_ = Decision{.point = Point::None, .decode_counter = decode_steps_};
    if (flags != nullptr) {
      if ((*flags)[group_flags::kError] != 0) return Verdict::Error;
      group_idle_ = (*flags)[group_flags::kDecodable] == 0;
    }
    point_ = point();
    decision_.point = point_;
    if (point_ == Point::None) return decode();
    round_ = 1;
    decision_.want = local.want;
    vote = round_one_record(local);
    return Verdict::Vote;
  }

  Verdict resolve(const Record& reduced) {
    if (round_ == 1) return resolve_round_one(reduced);
    round_ = 0;
    return reduced[round_two::kScheduled] != 0 ? prefill() : no_prefill();
  }

  // After the verdict Attempt.
  Verdict attempted(bool scheduled, Record& vote) {
    round_ = 2;
    decision_.scheduled = scheduled;
    vote = round_two_record(scheduled);
    return Verdict::Vote;
  }

  // The engine's part of `work` in the published record: a NORMAL engine votes instead.
  static bool work(const LocalState&) { return false; }

  const Decision& decision() const { return decision_; }

  // Intervals are the only thing that the count of decode steps is compared with, so its residues are the
  // state.
  void mix_into(FingerprintHash& hash) const {
    hash.mix(decode_steps_ > 0);
    hash.mix(decode_steps_ % Cfg::kPrefillAttemptInterval);
    hash.mix(decode_steps_ % Cfg::kPrefillAnyAttemptInterval);
    hash.mix(burst_);
    hash.mix(burst_ > 0 && burst_at_any_);
    hash.mix(group_idle_);
    hash.mix(round_);
    if (round_ == 0) return;
    hash.mix(point_ == Point::Any);
    if (round_ == 2)
      for (const std::int32_t value : round_one_) hash.mix(value);
  }

 private:
  Point point() const {
    const bool in_burst = 0 < burst_ && burst_ < Cfg::kPrefillBurst;
    const auto due = [this](std::int32_t interval) {
      return decode_steps_ > 0 && decode_steps_ % interval == 0;
    };
    if (group_idle_ || due(Cfg::kPrefillAnyAttemptInterval) || (in_burst && burst_at_any_)) return Point::Any;
    if (due(Cfg::kPrefillAttemptInterval) || in_burst) return Point::All;
    return Point::None;
  }

  Verdict resolve_round_one(const Record& reduced) {
    round_ = 0;
    round_one_ = reduced;
    if (reduced[round_one::kError] != 0) return Verdict::Error;
    if (reduced[round_one::kUnfinished] == 0 && reduced[round_one::kPending] == 0) return done();
    // At an ALL point every rank must want a prefill, at an ANY point one is enough.
    const bool go = point_ == Point::Any ? reduced[round_one::kWant] != 0 : reduced[round_one::kDecline] == 0;
    decision_.go = go;
    return go ? Verdict::Attempt : no_prefill();
  }

  Verdict prefill() {
    decode_steps_ = 0;
    if (burst_ == 0) burst_at_any_ = point_ == Point::Any;
    // Counting further than the burst would tell apart states that behave alike.
    if (burst_ < Cfg::kPrefillBurst) ++burst_;
    return Verdict::Prefill;
  }

  Verdict decode() {
    ++decode_steps_;
    burst_ = 0;
    return Verdict::Decode;
  }

  Verdict no_prefill() {
    if (!group_idle_ || round_one_[round_one::kDecodable] != 0) return decode();
    burst_ = 0;
    const bool hope = round_one_[round_one::kWant] != 0 || round_one_[round_one::kPending] != 0;
    return hope ? Verdict::Idle : Verdict::Stalled;
  }

  Verdict done() {
    decode_steps_ = 0;
    burst_ = 0;
    group_idle_ = true;
    return Verdict::Done;
  }

  std::int64_t decode_steps_ = 0;  // since the last executed prefill step, dummy steps included
  std::int32_t burst_ = 0;         // prefill steps in a row, counted up to the limit
  bool burst_at_any_ = false;
  bool group_idle_ = true;
  std::int32_t round_ = 0;  // the voting round that waits for its result, 0 if none
  Point point_ = Point::None;
  Record round_one_{};
  Decision decision_;
};

}  // namespace deepinfer
