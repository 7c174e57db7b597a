// A long message that both ends have agreed on. It is sent in chunks, of which
// a few are under way, through memory of the plug-in.
//
// Threads: the progress thread.
// Errors:  MpiError.
#pragma once

#include <deque>

#include "src/comm/mpi/plugin/mpi_link.h"
#include "src/comm/mpi/plugin/mpi_request.h"

namespace lockstep {

class MpiStream {
 public:
  enum class Direction { kOut, kIn };
  struct Route {
    int world_rank = 0;  // of the peer
    int tag = 0;         // unique among the streams to the receiver
    Direction direction = Direction::kOut;
  };

  MpiStream(MpiLink& link, MpiRequestPointer request, const Route& route,
            std::size_t bytes)
      : link_(link),
        request_(std::move(request)),
        route_(route),
        bytes_(bytes) {}

  const MpiRequestPointer& request() const { return request_; }
  const Route& route() const { return route_; }

  // Makes all progress possible without waiting; returns whether it made any. A
  // stream whose request was abandoned makes none.
  bool advance();
  bool finished() const { return settled_ == bytes_; }

  // Leaves the chunks under way to the link.
  void give_up();

 private:
  // MPI sends chunks of this size at once: for each longer chunk (64 KiB over
  // TCP) it first asks the receiver, which left a third of a 1 Gbit/s link
  // unused. The window is what such a link carries in 8 ms.
  static constexpr std::size_t kChunkBytes = std::size_t{32} << 10;
  static constexpr std::size_t kWindow = 32;

  bool post();

  MpiLink& link_;
  const MpiRequestPointer request_;
  const Route route_;
  const std::size_t bytes_;
  std::size_t posted_ = 0;
  std::size_t settled_ = 0;
  std::deque<MpiTransfer> flights_;
};

}  // namespace lockstep
