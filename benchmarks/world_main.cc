// One rank of a large world, which shows what each rank pays for it:
//
//   lockstep_world
//
// The ranks form a default group and eight sub-groups, of which number g has
// every g-th rank, and add up 4 bytes in each. Rank 0 prints a line of JSON:
// seconds, and the most descriptors and megabytes (Pss) of any rank.
#include <chrono>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/requests.h"
#include "lockstep/comm/groups.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSubGroups = 8;
constexpr int kRounds = 20;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void add_up(ProcessGroup& group) {
  std::vector<float> value(1, 1);
  group.all_reduce(view(value), ReduceOp::kSum).wait();
  if (value[0] != static_cast<float>(group.size()))
    throw std::runtime_error("the sum is wrong");
}

double descriptors() {
  const std::filesystem::directory_iterator list("/proc/self/fd");
  return static_cast<double>(std::distance(begin(list), end(list)));
}

void run() {
  const auto begin = Clock::now();
  const auto group = init_process_group();
  add_up(*group);
  const double formed = seconds_since(begin);
  const auto subs_begin = Clock::now();
  std::vector<std::shared_ptr<ProcessGroup>> subs;
  for (int step = 1; step <= kSubGroups; ++step) {
    if (group->rank() % step != 0) continue;
    std::vector<int> members;
    for (int rank = 0; rank < group->size(); rank += step)
      members.push_back(rank);
    subs.push_back(new_group(*group, members));
    if (members.size() > 1) add_up(*subs.back());
  }
  const double with_subs = seconds_since(subs_begin);
  group->barrier().wait();
  const auto rounds_begin = Clock::now();
  for (int round = 0; round < kRounds; ++round) add_up(*group);
  const double each = seconds_since(rounds_begin) / kRounds;
  std::vector<double> most{formed, with_subs, each, descriptors(), own_mib()};
  group->all_reduce(view(most), ReduceOp::kMax).wait();
  if (group->rank() == 0)
    std::cout << "{\"ranks\": " << group->size() << ", \"backend\": \""
              << group->backend() << "\", \"formed\": " << most[0]
              << ", \"sub_groups\": " << most[1]
              << ", \"all_reduce\": " << most[2]
              << ", \"descriptors\": " << most[3]
              << ", \"megabytes\": " << most[4] << '}' << std::endl;
}

}  // namespace
}  // namespace lockstep

int main() {
  try {
    lockstep::run();
    lockstep::destroy_process_group();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
