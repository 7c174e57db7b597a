// A rank of link_test.py: runs all-reduces and checks their results until all
// ranks are told to stop.
//
// A line of input on rank 0 ends them. Its last line tells how many sums were
// right.
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"

namespace lockstep {
namespace {

constexpr std::size_t kMost = 1 << 20;

// Element i of the contribution of `rank` to operation `number`: whole numbers,
// whose sums are exact.
float element(std::uint64_t number, int rank, std::size_t i) {
  return static_cast<float>(
      (number * 31 + static_cast<std::uint64_t>(rank) * 7 + i) % 1000);
}

bool is_sum(const std::vector<float>& data, std::uint64_t number, int ranks) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += element(number, rank, i);
    if (data[i] != sum) return false;
  }
  return true;
}

// Small and large operations, so that some are in progress when a link fails.
int run(unsigned seed) {
  const auto group = init_process_group();
  std::atomic<bool> told{false};
  std::thread listener;
  if (group->rank() == 0)
    listener = std::thread([&] {
      std::string line;
      std::getline(std::cin, line);
      told = true;
    });
  std::mt19937 random(seed);
  std::uint64_t number = 0;
  for (std::vector<int> stop{0}; stop[0] == 0; ++number) {
    std::vector<float> data(1 + random() % (random() % 2 == 0 ? 100 : kMost));
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = element(number, group->rank(), i);
    group->all_reduce(view(data), ReduceOp::kSum).wait();
    if (!is_sum(data, number, group->size())) {
      std::cout << "wrong sum in all_reduce " << number << std::endl;
      return 1;
    }
    if (number == 0) std::cout << "begun" << std::endl;
    stop[0] = told ? 1 : 0;
    group->broadcast(view(stop), 0).wait();
  }
  if (listener.joinable()) listener.join();
  std::cout << "right sums: " << number << std::endl;
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::run(argc > 1 ? static_cast<unsigned>(std::stoul(argv[1]))
                                  : 1);
  } catch (const lockstep::Error& error) {
    std::cout << error.what() << std::endl;
    return 10;
  }
}
