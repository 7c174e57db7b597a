// Operations in which each rank owns a share of the elements: it gets the
// others' part of its share, combines them, and hands the result to whoever
// wants it.
//
// all_reduce, reduce and reduce_scatter are such; so is broadcast, where the
// root's elements are divided among the others, which pass them on: the root
// sends them once, not once to each. Shares go in segments, several of which
// are in flight, so that the connections never idle and scratch stays small.
//
// Threads: whoever carries out the group's collective.
// Errors:  WireCore's waits.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include "lockstep/comm/buffer_run.h"
#include "lockstep/comm/reduce/reduce_kernels.h"
#include "lockstep/comm/wire/wire_core.h"

namespace lockstep {

// Bytes [at, at + bytes) of a run.
struct Share {
  Run run{};
  std::size_t at = 0;
  std::size_t bytes = 0;
};

// What one rank does in the operation. Vectors have one element a rank.
struct SharePlan {
  // What this rank brings for each owner's share.
  std::vector<Share> contributions;
  // Where each owner's result goes here; empty where it does not. The own one's
  // says how large the own share is.
  std::vector<Share> results;
  // Whether the own result goes to this rank's memory, or only to others.
  enum class Own { kKept, kPassedOn } own = Own::kKept;
  std::vector<int> sources;       // who brings something for the own share
  std::vector<int> audience;      // who gets the own result
  ReduceKernel kernel = nullptr;  // null: there is one source, nothing to add
  std::size_t element_bytes = 1;
  // How long segments are, and how many there are at least; 0: as suits.
  std::size_t segment_bytes = 0;
  std::size_t segments = 0;
  // Called before segment `n` is sent, and when all of it has come, if set.
  std::function<void(std::size_t n)> before{};
  std::function<void(std::size_t n)> after{};
};

class SharePipeline {
 public:
  // `tag` and `tag + 1` are free for the operation's messages.
  SharePipeline(WireCore& core, const SharePlan& plan, int tag,
                Deadline deadline);

  void run();

 private:
  // Segments in flight. What comes last of a segment, its result, is waited for
  // while later ones are queued behind it: the wire never runs dry.
  static constexpr std::size_t kDepth = 4;
  // Those that are sent before the first is combined.
  static constexpr std::size_t kLead = 2;

  struct Landing {
    WireCore::Request request{};
    std::byte* memory = nullptr;
    int peer = 0;
    Share share{};        // where it belongs
    bool direct = false;  // it lies there already
  };
  struct Round {
    std::vector<WireCore::Request> sends;
    std::vector<Landing> contributions;
    std::vector<Landing> results;
    // Memory of this round's own, reused by the round kDepth later.
    std::vector<std::byte*> blocks;
    std::size_t blocks_used = 0;
  };

  Round& round(std::size_t number) { return rounds_[number % kDepth]; }
  Share segment(const Share& share, std::size_t number) const;
  std::byte* block(Round& round);
  const std::byte* flat(const Share& share, Round& round);
  Landing land(const Share& share, int peer, int tag, Round& round);
  void settle(Landing& landing);
  void post(std::size_t number);
  void combine(std::size_t number);
  const std::byte* add_up(const Share& own, Round& round);
  void retire(std::size_t number);

  WireCore& core_;
  const SharePlan& plan_;
  const int tag_;
  const Deadline deadline_;
  std::size_t segment_bytes_ = 0;
  std::size_t segments_ = 0;  // of the largest share
  std::array<Round, kDepth> rounds_;
};

}  // namespace lockstep
