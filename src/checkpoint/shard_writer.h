// Writes a rank's shard of a checkpoint in the background, and makes all ranks'
// shards a complete checkpoint.
//
// snapshot() copies what this rank writes; training may then continue. A thread
// writes the copy to the disk, and waits for the other ranks' threads on a
// duplicate of the group, whose order of collectives is its own. When all
// shards are on the disk rank 0's thread writes the manifest, reads the set's
// headers, and gives the folder its name. A rank that leaves the group first
// waits for its thread, unless the group is aborted. The memory of the copy, as
// large as the largest shard so far, stays for the next one.
//
// Threads: an object belongs to one thread of a rank; every rank has one, and
//          starts it for the same checkpoints. Held by OwnProcessPointer: a
//          forked child has no such thread.
// Errors:  snapshot() throws std::bad_alloc, or LibTorch's errors; wait()
//          throws what writing or sealing threw, on every rank: Error quoting
//          the rank whose disk failed, on that rank SystemError naming the
//          file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/base/own_process.h"
#include "src/checkpoint/checkpoint_manifest.h"
#include "src/checkpoint/safetensors.h"
#include "src/checkpoint/state_pieces.h"

namespace lockstep {

// A checkpoint to write. The folder `unsealed` exists and is empty.
struct SetToWrite {
  std::filesystem::path unsealed{};
  std::filesystem::path sealed{};
  CheckpointManifest manifest{};        // without its shards
  std::function<void()> when_sealed{};  // on rank 0's thread
};

class ShardWriter {
 public:
  // A collective.
  explicit ShardWriter(std::shared_ptr<ProcessGroup> group);
  // Waits for the checkpoint in progress, and logs its error.
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Nothing may be in progress.
  void snapshot(std::span<const StatePiece> pieces);
  // Writes the last snapshot.
  void start(SetToWrite set);

  bool is_busy() const { return busy_; }
  // Waits for the checkpoint in progress, if there is one. In a forked child it
  // does nothing.
  void wait();

 private:
  void join();
  // Logs that it waits, if that takes some seconds.
  void join_and_tell();
  void write(const SetToWrite& set);
  ShardFile write_shard(const SetToWrite& set) const;
  void seal(const SetToWrite& set, const ShardFile& own);

  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<ProcessGroup> duplicate_;  // null where the backend has none

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t room_ = 0;
  std::vector<TensorBytes> tensors_;  // in memory_
  ShardedParts parts_;

  std::atomic<bool> busy_ = false;
  std::exception_ptr error_;   // of the thread, once it has ended
  std::future<void> written_;  // of the thread; ready when its work is done
  std::thread thread_;
  OwnProcess process_;
  std::shared_ptr<void> before_leaving_;  // when the group is left
};

}  // namespace lockstep
