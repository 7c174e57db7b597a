#include "src/comm/testing/gpu_ranks.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/comm/nccl/gpu_plugin.h"

namespace lockstep {
namespace {

struct TableInUse {
  explicit TableInUse(const LockstepGpuTable& table) { use_gpu_table(&table); }
  ~TableInUse() { use_gpu_table(nullptr); }
  TableInUse(const TableInUse&) = delete;
  TableInUse& operator=(const TableInUse&) = delete;
};

// The time that ranks wait for each other after a test.
constexpr std::chrono::seconds kEndOfTest{15};

std::vector<int> first_ranks(int ranks) {
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// The exception of `body`. A rank that has given up aborts its group, in which
// the others would wait for it.
std::exception_ptr run_member(ProcessGroup& world, int ranks,
                              const RankBody& body) {
  std::shared_ptr<ProcessGroup> group;
  std::exception_ptr error;
  try {
    group = new_group(world, ranks == 1 ? std::vector<int>{world.rank()}
                                        : first_ranks(ranks));
    body(group);
  } catch (...) {
    error = std::current_exception();
  }
  if (group && (error || ::testing::Test::HasFatalFailure()))
    group->abort("the test has failed on this rank");
  return error;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

}  // namespace

void run_gpu_ranks(const LockstepGpuTable& table, int ranks,
                   const RankBody& body) {
  const std::vector<std::string> one_host(static_cast<std::size_t>(ranks),
                                          "one host");
  const TableInUse in_use(table);
  run_ranks_on(one_host, "hybrid", body);
}

bool tests_use_real_gpus() {
  const char* const chosen = std::getenv("LOCKSTEP_TEST_GPUS");
  return chosen != nullptr && std::string_view(chosen) == "real";
}

int real_gpus() {
  static const int count = Gpu::count(load_gpu_table({}));
  return count;
}

ProcessGroup& world_of_processes() {
  static const auto world = init_process_group();
  return *world;
}

void run_on_real_gpus(int ranks, const RankBody& body) {
  ProcessGroup& world = world_of_processes();
  if (ranks > world.size())
    GTEST_SKIP() << "for " << ranks << " ranks, of which there are "
                 << world.size();
  const bool is_member = ranks == 1 || world.rank() < ranks;
  const std::exception_ptr error =
      is_member ? run_member(world, ranks, body) : nullptr;
  // No rank begins the next run() while another is in this one. All go on
  // alike: a rank that alone leaves the test would miss the others' next run().
  std::vector<std::int32_t> threw{error || !is_member ? 1 : 0};
  world
      .all_reduce(view(threw), ReduceOp::kMin,
                  {.timeout = kEndOfTest, .label = "the end of a test"})
      .wait();
  if (threw[0] == 1 && error) std::rethrow_exception(error);
  if (threw[0] == 1) throw Error("the ranks of this run threw an exception");
  if (error)
    ADD_FAILURE() << "rank " << world.rank() << " threw: " << text_of(error);
}

std::shared_ptr<ProcessGroup> group_beside(ProcessGroup& group) {
  return new_group(group, first_ranks(group.size()),
                   {.timeout = std::chrono::minutes(1)});
}

void GpuRanks::SetUp() {
  if (is_fake()) return;
  const GpuStatus found = gpu_status({});
  if (found.devices == 0) GTEST_SKIP() << "there is no GPU: " << found.detail;
}

void GpuRanks::TearDown() {
  EXPECT_THAT(fake_.violations(), ::testing::IsEmpty());
}

void GpuRanks::run(int ranks, const RankBody& body) {
  is_fake() ? run_gpu_ranks(fake_.table(), ranks, body)
            : run_on_real_gpus(ranks, body);
}

const LockstepGpuTable& GpuRanks::table() const {
  return is_fake() ? fake_.table() : load_gpu_table({});
}

Gpu GpuRanks::gpu_of(int rank) const {
  return {table(), is_fake() ? rank : rank % real_gpus()};
}

Gpu GpuRanks::gpu_of(const std::shared_ptr<ProcessGroup>& group) const {
  return gpu_of(group->rank());
}

std::vector<float> GpuRanks::read(const DeviceBlock& block) {
  if (is_fake()) fake_.host_reads(block.data(), block.bytes());
  std::vector<float> elements(block.bytes() / sizeof(float));
  block.download(elements.data());
  return elements;
}

void GpuRanks::write(const DeviceBlock& block,
                     const std::vector<float>& elements) {
  if (is_fake()) fake_.host_writes(block.data(), block.bytes());
  block.upload(elements.data());
}

}  // namespace lockstep
