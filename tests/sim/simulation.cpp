// Groups of schedulers in one thread, with everything around them modelled: requests, devices, faults. Each
// seed is a run that can be repeated bit for bit.
//
//   simulation [--only NAME] [--seeds FIRST COUNT] [--seconds S] [--steps N] [--replay SEED] [--list]
//
// Each seed runs once on every engine, until the seeds, the seconds or the rank-steps are spent. A broken
// rule ends the program with status 1, after the events that lead to it were reduced to few.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "world/play.hpp"

namespace {

using namespace deepinfer::sim;

struct Options {
  std::string only;
  std::uint64_t first = 0;
  std::uint64_t count = 100;
  double seconds = 0;      // 0: no limit
  std::int64_t steps = 0;  // of all ranks; 0: no limit
  bool replay = false;
  bool list = false;
};

Options parse(int argc, char** argv) {
  Options options;
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  std::size_t i = 0;
  const auto value = [&]() -> const char* {
    if (++i < words.size()) return words[i].data();
    std::fprintf(stderr, "%s needs a value\n", words[i - 1].data());
    std::exit(2);
  };
  for (; i < words.size(); ++i) {
    if (words[i] == "--only") {
      options.only = value();
    } else if (words[i] == "--seeds") {
      options.first = std::strtoull(value(), nullptr, 10);
      options.count = std::strtoull(value(), nullptr, 10);
    } else if (words[i] == "--seconds") {
      options.seconds = std::atof(value());
    } else if (words[i] == "--steps") {
      options.steps = std::atoll(value());
    } else if (words[i] == "--replay") {
      options.replay = true;
      options.first = std::strtoull(value(), nullptr, 10);
      options.count = 1;
    } else if (words[i] == "--list") {
      options.list = true;
    } else {
      std::fprintf(stderr, "unknown option %s\n", words[i].data());
      std::exit(2);
    }
  }
  return options;
}

void run(const Setup& setup, std::uint64_t seed, bool print, Tally& tally) {
  const Scenario scenario = scenario_of(setup, seed);
  if (print) {
    for (const Event& event : scenario.events) std::printf("  %s\n", describe(event).c_str());
  }
  const Played played = play(setup, scenario, tally);
  if (print)
    std::printf(
        "%s seed %llu: %d ranks, %d steps, trace %016llx\n",
        setup.name.c_str(),
        static_cast<unsigned long long>(seed),
        scenario.ranks,
        played.steps,
        static_cast<unsigned long long>(played.trace)
    );
}

void report(const Setup& setup, std::uint64_t seed, const std::string& message) {
  std::printf(
      "%s seed %llu: %s\n", setup.name.c_str(), static_cast<unsigned long long>(seed), message.c_str()
  );
  const Scenario shrunk = shrink(setup, scenario_of(setup, seed), message);
  std::printf(
      "%d ranks, %s results, %zu events lead to it:\n",
      shrunk.ranks,
      shrunk.zos ? "late" : "prompt",
      shrunk.events.size()
  );
  for (const Event& event : shrunk.events) std::printf("  %s\n", describe(event).c_str());
  std::printf("again: --only %s --replay %llu\n", setup.name.c_str(), static_cast<unsigned long long>(seed));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::vector<Setup> chosen;
  for (Setup& setup : setups()) {
    if (options.only.empty() || options.only == setup.name) chosen.push_back(std::move(setup));
  }
  if (options.list) {
    for (const Setup& setup : chosen) std::printf("%s\n", setup.name.c_str());
    return 0;
  }
  if (chosen.empty()) {
    std::fprintf(stderr, "no engine is called %s\n", options.only.c_str());
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Tally tally;
  std::uint64_t seeds = 0;
  try {
    check_parts(options.first);
  } catch (const std::exception& fault) {
    std::printf("parts: %s\n", fault.what());
    return 1;
  }
  const auto spent = [&] {
    return (options.seconds > 0 && elapsed() >= options.seconds) ||
           (options.steps > 0 && tally.rank_steps >= options.steps);
  };
  for (; seeds < options.count && !spent(); ++seeds) {
    for (const Setup& setup : chosen) {
      try {
        run(setup, options.first + seeds, options.replay, tally);
      } catch (const std::exception& fault) {
        report(setup, options.first + seeds, fault.what());
        return 1;
      }
    }
  }
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  std::printf(
      "%llu seeds, %llu runs, %lld rank-steps (%lld idle), %.1f seconds, 0 violations\n",
      static_cast<unsigned long long>(seeds),
      static_cast<unsigned long long>(seeds * chosen.size()),
      number(tally.rank_steps),
      number(tally.idle),
      elapsed()
  );
  std::printf(
      "%lld tokens, %lld preemptions, %lld branches, %lld copies, %lld loads (%lld failed), %lld provisional "
      "steps, %lld bad calls, %lld lost groups\n",
      number(tally.tokens),
      number(tally.preemptions),
      number(tally.forks),
      number(tally.copies),
      number(tally.loads),
      number(tally.drains),
      number(tally.provisional),
      number(tally.bad_calls),
      number(tally.failures)
  );
  return 0;
}
