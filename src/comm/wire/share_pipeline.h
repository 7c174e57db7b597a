// Operations in which each rank owns a share of the elements: it receives the
// others' contributions to its share, combines them, and sends the result to
// the ranks that need it.
//
// These are all_reduce, reduce and reduce_scatter, and also broadcast, where
// the other ranks each own a share of the root's elements and pass it on: the
// root sends its elements once, not once per rank. Shares are sent in segments,
// several of which are in flight, so that the connections never idle and
// scratch memory stays small.
//
// Threads: the thread that carries out the group's collective.
// Errors:  those of WireCore's waits.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include "src/comm/operation/buffer_span.h"
#include "src/comm/reduce/reduce_kernels.h"
#include "src/comm/wire/arrivals.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {

// Bytes [at, at + bytes) of a run.
struct PipelineShare {
  BufferSpan run{};
  std::size_t at = 0;
  std::size_t bytes = 0;
};

// One rank's part in the operation. Vectors have one element per rank.
struct SharePlan {
  // This rank's contribution to each owner's share.
  std::vector<PipelineShare> contributions;
  // The local destination of each owner's result, or empty. This rank's own
  // entry gives the size of its share.
  std::vector<PipelineShare> results;
  // Whether this rank keeps its own result, or only sends it to others.
  enum class Own { kKept, kPassedOn } own = Own::kKept;
  std::vector<int> sources;       // ranks that contribute to the own share
  std::vector<int> audience;      // ranks that get the own result
  ReduceKernel kernel = nullptr;  // null: one source, nothing to combine
  std::size_t element_bytes = 1;
  // The length of segments, and their least number; 0: automatic.
  std::size_t segment_bytes = 0;
  std::size_t segments = 0;
  // If set, called before segment `n` is sent, and when all of it has arrived.
  std::function<void(std::size_t n)> before{};
  std::function<void(std::size_t n)> after{};
};

class SharePipeline {
 public:
  // `tag` and `tag + 1` are reserved for the operation's messages.
  SharePipeline(WireCore& core, const SharePlan& plan, int tag,
                Deadline deadline);

  void run();

 private:
  // Segments in flight. The wait for a segment's result happens while later
  // segments are queued behind it: the connection never idles.
  static constexpr std::size_t kDepth = 4;
  // Segments that are sent before the first is combined.
  static constexpr std::size_t kLead = 2;

  struct Landing {
    WireCore::Request request{};
    std::byte* memory = nullptr;
    int peer = 0;
    PipelineShare share{};  // its destination
    bool direct = false;    // it is received there directly
  };
  struct Round {
    std::vector<WireCore::Request> sends;
    std::vector<Landing> contributions;
    std::vector<Landing> results;
    // This round's memory, reused by the round kDepth later.
    std::vector<std::byte*> blocks;
    std::size_t blocks_used = 0;
  };

  Round& round(std::size_t number) { return rounds_[number % kDepth]; }
  PipelineShare segment(const PipelineShare& share, std::size_t number) const;
  std::byte* block(Round& round);
  const std::byte* flat(const PipelineShare& share, Round& round);
  Landing land(const PipelineShare& share, int peer, int tag, Round& round);
  void settle(Landing& landing);
  void post(std::size_t number);
  void combine(std::size_t number);
  const std::byte* add_up(const PipelineShare& own, Round& round);
  void retire(std::size_t number);
  void check();

  WireCore& core_;
  const SharePlan& plan_;
  const int tag_;
  const Deadline deadline_;
  std::size_t segment_bytes_ = 0;
  std::size_t segments_ = 0;  // of the largest share
  std::array<Round, kDepth> rounds_;
  Arrivals arrivals_;  // of the contributions
};

}  // namespace lockstep
