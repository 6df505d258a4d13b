// Runs the fuzzer's entry without libFuzzer: on files, or on random inputs of a seed.
// Usage: fuzz_replay FILE... | fuzz_replay --random SEED COUNT
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--random") {
    std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
    const std::uint64_t count = std::strtoull(argv[3], nullptr, 10);
    for (std::uint64_t i = 0; i < count; ++i) {
      std::vector<std::uint8_t> bytes(1 + random() % 2048);
      for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
    std::printf("%llu random inputs\n", static_cast<unsigned long long>(count));
    return 0;
  }
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s: not readable\n", argv[i]);
      return 2;
    }
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%d inputs\n", argc - 1);
  return 0;
}
