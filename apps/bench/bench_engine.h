// Carries out the collectives that a benchmark measures: one of our process
// groups, or another library.
//
// bench_measure.h decides on repetitions, buffer contents and clock.
//
// Threads: one thread at a time.
// Errors:  those of the engine.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/buffer.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

// kSendRecv: every rank sends to the next and receives from the previous one.
enum class BenchCollective {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSendRecv,
};

// In the order of the enumeration: "all_reduce", …
inline constexpr std::array<std::string_view, 10> kCollectiveNames{
    "all_reduce", "broadcast",      "reduce",     "all_gather", "gather",
    "scatter",    "reduce_scatter", "all_to_all", "barrier",    "send_recv"};

std::string_view name_of(BenchCollective collective);
std::optional<BenchCollective> find_collective(std::string_view name);

// Whether the collective uses the reduction.
bool reduces(BenchCollective collective);

// Whether one buffer per rank holds both the elements and the result.
bool is_in_place(BenchCollective collective);

// How many blocks of equal size rank `rank` of `size` passes in and receives.
// An in-place collective has no input blocks. Rank 0 is the root.
struct BlockCounts {
  int in = 0;
  int out = 0;
};
BlockCounts block_counts(BenchCollective collective, int rank, int size);

// The number of blocks in the bytes of a benchmark's row. As in nccl-tests, a
// row's size is that of the longer buffer.
int blocks_of_row(BenchCollective collective, int size);

// One call, on buffers of block_counts() blocks. For an in-place collective
// `output` holds the elements.
struct CollectiveCall {
  BenchCollective collective = BenchCollective::kBarrier;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;  // elements of a block
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};

class Engine {
 public:
  // Whether the engine may allocate memory that other ranks can access.
  enum class Memory { kPlain, kShared };

  virtual ~Engine() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes,
                                              Memory memory) = 0;

  // Lets `fill` write that many bytes of such memory, or `look` read them:
  // directly if the host can access the memory, otherwise through a copy.
  using Fill = std::function<void(std::byte*)>;
  using Look = std::function<void(const std::byte*)>;
  virtual void write(std::byte* memory, std::size_t /*bytes*/,
                     const Fill& fill) {
    fill(memory);
  }
  virtual void read(const std::byte* memory, std::size_t /*bytes*/,
                    const Look& look) {
    look(memory);
  }

  // Returns when this rank's part is complete.
  virtual void run(const CollectiveCall& call) = 0;
  // Runs the call for timing: once, or several times in a row when one call is
  // shorter than the host's wait for it. Returns the number of calls. After
  // more than one, an in-place reduction leaves no valid result.
  virtual int run_timed(const CollectiveCall& call) {
    run(call);
    return 1;
  }
  virtual void barrier() = 0;
  // Every rank's `value`, in rank order.
  virtual std::vector<double> gather(double value) = 0;
};

// Private memory, aligned to a cache line.
std::shared_ptr<std::byte> allocate_plain(std::size_t bytes);

}  // namespace lockstep
