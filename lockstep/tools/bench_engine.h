// What carries out the collectives that a benchmark measures: a group of ours,
// or a peer.
//
// How often, with what in the buffers and by which clock is not the engine's
// business: see bench_measure.h.
//
// Threads: one thread at a time.
// Errors:  whatever the engine throws.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/data_type.h"
#include "lockstep/comm/operation.h"

namespace lockstep {

// send_recv: every rank sends to the next and receives from the one before.
enum class Collective {
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

std::string_view name_of(Collective collective);
std::optional<Collective> find_collective(std::string_view name);

// Whether the collective looks at the reduction.
bool reduces(Collective collective);

// Whether one buffer of each rank holds its elements and gets the result.
bool is_in_place(Collective collective);

// How many blocks of equal size rank `rank` of `size` passes in and gets out. A
// collective in place passes none in. Rank 0 is the root.
struct BlockCounts {
  int in = 0;
  int out = 0;
};
BlockCounts block_counts(Collective collective, int rank, int size);

// The number of blocks that the bytes of a benchmark's row are divided into: as
// nccl-tests has it, a row's size is that of the longer buffer.
int blocks_of_row(Collective collective, int size);

// One call, on buffers that hold as many blocks as block_counts() says. In
// place it is `output` that holds the elements.
struct CollectiveCall {
  Collective collective = Collective::kBarrier;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;  // elements of a block
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};

class Engine {
 public:
  // Whether the engine may place the memory where other ranks reach it.
  enum class Memory { kPlain, kShared };

  virtual ~Engine() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes,
                                              Memory memory) = 0;

  // Lets `fill` write so many bytes of such memory, or `look` read them: where
  // they lie if the host reaches that, and otherwise in a copy.
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

  // Returns when this rank's part is done.
  virtual void run(const CollectiveCall& call) = 0;
  // The same as it is timed: once, or several times in a row where one call
  // takes less than for the host to wait for it. Returns how often; after more
  // than once, what is reduced in place is no result.
  virtual int run_timed(const CollectiveCall& call) {
    run(call);
    return 1;
  }
  virtual void barrier() = 0;
  // Every rank's `value`, in rank order.
  virtual std::vector<double> gather(double value) = 0;
};

// Memory on a cache line's border that no peer reaches.
std::shared_ptr<std::byte> allocate_plain(std::size_t bytes);

}  // namespace lockstep
