#include "src/checkpoint/shard_writer.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <new>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/log.h"
#include "src/checkpoint/atomic_file.h"
#include "src/checkpoint/checkpoint_checksum.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/rank_zero.h"
#include "src/comm/group/group_core.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWriting = "writing a checkpoint";
constexpr std::string_view kSealing = "sealing a checkpoint";
// A multiple of every element's size, and of a cache line.
constexpr std::size_t kPieceAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Whether the shard's tensor alone tells which part it is.
bool is_plain(const StatePiece& piece) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : piece.part.shape) elements *= extent;
  return piece.part.order.empty() && piece.elements.numel() == elements;
}

}  // namespace

ShardWriter::ShardWriter(std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)),
      duplicate_(group_->core().duplicate()),
      before_leaving_(
          group_->core().finish_before_leaving([this] { join_and_tell(); })) {}

ShardWriter::~ShardWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    log(LogLevel::kError,
        std::string("the last checkpoint was not written: ") + error.what());
  }
}

void ShardWriter::snapshot(std::span<const StatePiece> pieces) {
  std::size_t bytes = 0;
  for (const StatePiece& piece : pieces)
    bytes += rounded_up(piece.elements.nbytes(), kPieceAlignment);
  if (bytes > room_) {
    memory_.reset();
    room_ = 0;
    const std::size_t room = rounded_up(bytes, kHugePage);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, room)));
    if (!memory_) throw std::bad_alloc();
    room_ = room;
    // Fewer page faults while training waits. Only advice.
    ::madvise(memory_.get(), room, MADV_HUGEPAGE);
  }
  tensors_.clear();
  parts_.clear();
  std::byte* to = memory_.get();
  for (const StatePiece& piece : pieces) {
    const at::Tensor& from = piece.elements;
    if (from.numel() > 0)
      at::from_blob(to, from.sizes(), at::TensorOptions(from.scalar_type()))
          .copy_(from);
    TensorBytes tensor{piece.name,
                       stored_type_of(from.scalar_type()),
                       {from.numel()},
                       {to, from.nbytes()}};
    if (is_plain(piece))
      tensor.shape = piece.part.shape;
    else
      parts_.emplace(piece.name, piece.part);
    tensors_.push_back(std::move(tensor));
    to += rounded_up(from.nbytes(), kPieceAlignment);
  }
}

void ShardWriter::start(SetToWrite set) {
  busy_ = true;
  error_ = nullptr;
  const auto work = [this, set = std::move(set)] {
    try {
      write(set);
    } catch (...) {
      error_ = std::current_exception();
    }
    busy_ = false;
  };
  try {
    std::promise<void> written;
    written_ = written.get_future();
    if (duplicate_)
      thread_ = std::thread([work, written = std::move(written)]() mutable {
        work();
        written.set_value();
      });
  } catch (const std::system_error& error) {
    // The other ranks' threads wait for this rank's shard.
    log(LogLevel::kWarn, std::string("training waits for a checkpoint, since "
                                     "no thread can be started to write it: ") +
                             error.what());
  }
  if (!thread_.joinable()) work();
}

void ShardWriter::join() {
  if (process_.is_current() && thread_.joinable()) thread_.join();
}

void ShardWriter::join_and_tell() {
  constexpr std::chrono::seconds kLong(5);
  if (!process_.is_current() || !thread_.joinable()) return;
  if (written_.wait_for(kLong) == std::future_status::timeout)
    log(LogLevel::kWarn,
        "the rank leaves its group once the checkpoint in progress is on the "
        "disk");
  join();
}

void ShardWriter::wait() {
  if (!process_.is_current()) return;
  join();
  if (auto error = std::exchange(error_, nullptr))
    std::rethrow_exception(error);
}

void ShardWriter::write(const SetToWrite& set) {
  ProcessGroup& group = duplicate_ ? *duplicate_ : *group_;
  try {
    ShardFile own;
    run_on_all_ranks(group, kWriting, [&] { own = write_shard(set); });
    seal(set, own);
  } catch (...) {
    std::error_code ignored;
    if (group_->rank() == 0) fs::remove_all(set.unsealed, ignored);
    throw;
  }
}

ShardFile ShardWriter::write_shard(const SetToWrite& set) const {
  const auto rank = static_cast<std::size_t>(group_->rank());
  ShardFile own{.file =
                    shard_name(rank, static_cast<std::size_t>(group_->size()))};
  CheckpointChecksum checksum;
  std::vector<TensorStream> streams;
  for (const TensorBytes& tensor : tensors_)
    streams.push_back({tensor.name, tensor.type, tensor.shape,
                       [&](const ByteSink& sink) { sink(tensor.bytes); }});
  const auto write = [&](const ByteSink& sink) {
    const auto counting = [&](std::span<const std::byte> bytes) {
      own.bytes += bytes.size();
      checksum.add(bytes);
      sink(bytes);
    };
    write_safetensors(counting, std::move(streams),
                      shard_metadata(parts_, set.manifest.step, rank));
  };
  replace_file(set.unsealed / own.file, write, set.sealed / own.file);
  own.checksum = checksum.hex();
  return own;
}

void ShardWriter::seal(const SetToWrite& set, const ShardFile& own) {
  ProcessGroup& group = duplicate_ ? *duplicate_ : *group_;
  const std::string text = nlohmann::json(own).dump();
  const std::vector<Bytes> all = gather_bytes(
      group, std::as_bytes(std::span(text)), 0, {.label = kSealing});
  run_on_rank_zero(group, kSealing, [&] {
    CheckpointManifest manifest = set.manifest;
    for (const Bytes& shard : all)
      manifest.shards.push_back(
          nlohmann::json::parse(
              std::string_view(reinterpret_cast<const char*>(shard.data()),
                               shard.size()))
              .get<ShardFile>());
    const std::string sealed = to_text(std::move(manifest));
    replace_file(
        set.unsealed / kManifestName,
        [&](const ByteSink& sink) { sink(std::as_bytes(std::span(sealed))); },
        set.sealed / kManifestName);
    // Older checkpoints may be deleted only for one that can be read.
    const CheckpointSet readable(set.unsealed);
    replace_folder(set.unsealed, set.sealed);
    if (set.when_sealed) set.when_sealed();
  });
}

}  // namespace lockstep
