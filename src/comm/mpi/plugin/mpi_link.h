// All MPI calls of the plug-in, on its own communicator that spans all
// processes.
//
// Threads: one and the same thread from start() to finish().
// Errors:  MpiError.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace lockstep {

// MPI refused a call or cannot be used here. The text may have several lines.
struct MpiError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Memory that the plug-in owns, not initialised.
struct MpiBlock {
  MpiBlock() = default;
  explicit MpiBlock(std::size_t size)
      : memory(new std::byte[size]), bytes(size) {}

  std::byte* data() const { return memory.get(); }
  std::span<std::byte> span() const { return {memory.get(), bytes}; }
  explicit operator bool() const { return memory != nullptr; }

  std::unique_ptr<std::byte[]> memory;
  std::size_t bytes = 0;
};

// A message under way, with its own memory.
struct MpiTransfer {
  MPI_Request request = MPI_REQUEST_NULL;
  bool receives = false;
  MpiBlock block;
  std::size_t received = 0;  // bytes, once done
};

class MpiLink {
 public:
  // Throws unless mpirun, or srun as its equivalent, started this process.
  static void check_launcher();

  // Waits until all processes of the job have called it.
  void start();
  // Waits until all processes have called it. Call it only when no message is
  // under way.
  void finish();

  // Whether the program has finalised MPI, which a program that initialised MPI
  // may do.
  static bool is_over();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int last_tag() const { return last_tag_; }  // that MPI allows

  // Messages with the same ranks and tag arrive in order. A block is smaller
  // than 2 GiB.
  MpiTransfer send(int to, int tag, MpiBlock block);
  // From any rank where `from` is MPI_ANY_SOURCE.
  MpiTransfer receive(int from, int tag, std::size_t bytes);
  bool done(MpiTransfer& transfer);

  // Cancels a receive that has got no message.
  void cancel(MpiTransfer& transfer);

  // Keeps an abandoned transfer and its memory for as long as MPI may touch it:
  // for ever, if the peer never answers.
  void forget(MpiTransfer transfer);
  void look_at_forgotten();
  // Whether some of these are sends, which cannot be cancelled.
  bool has_forgotten_sends() const;
  void cancel_forgotten();

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  bool initialised_here_ = false;
  int rank_ = 0;
  int size_ = 1;
  int last_tag_ = 32767;
  std::list<MpiTransfer> forgotten_;
};

}  // namespace lockstep
