// Replaces libFuzzer for compilers without it: feeds the target random bytes,
// and the bytes of each file on the command line, unchanged and with random
// changes. It finds less than libFuzzer, which follows coverage; `./dev
// sanitize address` runs libFuzzer.
//
// Takes -runs=N, -seed=N (printed) and -max_total_time=N, as libFuzzer does; a
// file is one starting point.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

// libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(  // NOLINT(readability-identifier-naming)
    const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

struct Options {
  std::uint64_t runs = 50000;
  std::uint64_t seed = std::random_device{}();
  std::uint64_t max_total_seconds = 60;
  std::vector<Input> starts{Input{}};
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    const auto number = [&] {
      const auto at = argument.find('=') + 1;
      return std::strtoull(arguments[i] + at, nullptr, 10);
    };
    if (argument.starts_with("-runs=")) {
      options.runs = number();
    } else if (argument.starts_with("-seed=")) {
      options.seed = number();
    } else if (argument.starts_with("-max_total_time=")) {
      options.max_total_seconds = number();
    } else if (!argument.starts_with("-")) {
      std::ifstream file(arguments[i], std::ios::binary);
      options.starts.emplace_back(std::istreambuf_iterator<char>(file),
                                  std::istreambuf_iterator<char>());
    }
  }
  return options;
}

void change(Input& input, std::mt19937_64& random) {
  const auto below = [&](std::size_t limit) { return random() % limit; };
  for (std::size_t changes = below(8); changes > 0; --changes) {
    const auto byte = static_cast<std::uint8_t>(random());
    const auto at = static_cast<std::ptrdiff_t>(below(input.size() + 1));
    const bool inside = static_cast<std::size_t>(at) < input.size();
    switch (below(4)) {
      case 0:
        input.insert(input.begin() + at, byte);
        break;
      case 1:
        input.insert(input.end(), below(64), byte);
        break;
      case 2:
        if (inside) input[at] = byte;
        break;
      case 3:
        if (inside) input.erase(input.begin() + at, input.end());
        break;
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  std::printf("seed %llu\n", static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);
  std::mt19937_64 random(options.seed);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(options.max_total_seconds);
  std::uint64_t run = 0;
  for (; run < options.runs && std::chrono::steady_clock::now() < end; ++run) {
    Input input = options.starts[run % options.starts.size()];
    if (run >= options.starts.size()) change(input, random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%llu runs\n", static_cast<unsigned long long>(run));
}
