// A long message that both ends have agreed on: chunk after chunk, through
// memory of the plug-in's own, a few of them under way.
//
// Threads: the progress thread.
// Errors:  MpiError.
#pragma once

#include <deque>

#include "lockstep/comm/mpi/plugin/mpi_link.h"
#include "lockstep/comm/mpi/plugin/mpi_request.h"

namespace lockstep {

class MpiStream {
 public:
  enum class Direction { kOut, kIn };
  struct Route {
    int world_rank = 0;  // of the other end
    int tag = 0;         // that no other stream to its receiver has
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

  // Goes as far as it can without waiting; returns whether anything happened.
  // One whose request was abandoned stands still.
  bool advance();
  bool finished() const { return settled_ == bytes_; }

  // What is under way is left to the link.
  void give_up();

 private:
  // What MPI sends at once: longer ones (64 KiB over TCP) first ask the
  // receiver, each, which left a third of a link of 1 Gbit/s unused. The window
  // is what such a link takes 8 ms for.
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
