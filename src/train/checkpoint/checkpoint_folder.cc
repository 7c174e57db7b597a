#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/objects.h"
#include "lockstep/train/checkpoint.h"
#include "src/base/log.h"
#include "src/base/own_process.h"
#include "src/train/checkpoint/atomic_file.h"
#include "src/train/checkpoint/checkpoint_seal.h"
#include "src/train/checkpoint/checkpoint_search.h"
#include "src/train/checkpoint/checkpoint_set.h"
#include "src/train/checkpoint/folder_lock.h"
#include "src/train/checkpoint/rank_zero.h"
#include "src/train/checkpoint/shard_writer.h"
#include "src/train/checkpoint/tensor_archive.h"
#include "src/train/checkpoint/training_state.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStem = "checkpoint-";

// The wait for a killed earlier run whose memory is still being freed.
constexpr std::chrono::seconds kLockTimeout{5};

// The step in a checkpoint's name; empty for other files.
std::optional<std::int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  std::string_view text = name;
  if (!text.starts_with(kStem)) return std::nullopt;
  text.remove_prefix(kStem.size());
  std::int64_t step = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc{} || step < 0) return std::nullopt;
  const std::string_view ending(end, text.data() + text.size());
  if (ending == ending_of(CheckpointFormat::kSafetensors) ||
      ending == ending_of(CheckpointFormat::kLibTorch))
    return step;
  // Other programs make folders of such names.
  if (ending == ending_of(CheckpointFormat::kSharded) &&
      CheckpointSet::is_at(path))
    return step;
  return std::nullopt;
}

std::string name_of(std::int64_t step, CheckpointFormat format) {
  std::string digits = std::to_string(step);
  if (digits.size() < 6) digits.insert(0, 6 - digits.size(), '0');
  return std::string(kStem) + digits + std::string(ending_of(format));
}

// Names a folder that is not a checkpoint yet, or no longer, as a leftover.
fs::path leftover_of(const fs::path& path) {
  return path.parent_path() / ("." + path.filename().string() + "." +
                               std::to_string(::getpid()) + ".tmp");
}

// Whether a killed writer left the file or the folder: see
// src/train/checkpoint/atomic_file.h.
bool is_leftover(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("." + std::string(kStem)) && name.ends_with(".tmp");
}

// A failure is not an error: the new checkpoint has been written. A folder must
// not be a checkpoint while only some of its files are left.
void remove_or_warn(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path)) {
    fs::remove(path, error);
  } else if (is_leftover(path)) {
    fs::remove_all(path, error);
  } else {
    fs::rename(path, leftover_of(path), error);
    if (!error) fs::remove_all(leftover_of(path), error);
  }
  if (!error) return;
  log(LogLevel::kWarn, "cannot delete the old checkpoint \"" + path.string() +
                           "\": " + error.message());
}

// Those of a folder, by step.
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  auto files = entries_of(folder);
  std::erase_if(files, [](const fs::path& path) { return !step_of(path); });
  std::ranges::sort(files, {}, [](const fs::path& path) {
    return std::pair(*step_of(path), path);
  });
  return files;
}

// Deletes the files that `written` replaces and all except the `keep` newest,
// including `written`; damaged ones first.
void delete_old(const fs::path& written, int keep,
                const std::set<fs::path>& damaged) {
  auto old = checkpoints_in(written.parent_path());
  std::erase_if(old, [&](const fs::path& path) {
    if (step_of(path) != step_of(written)) return false;
    if (path != written) remove_or_warn(path);
    return true;
  });
  std::stable_partition(old.begin(), old.end(), [&](const fs::path& file) {
    return damaged.contains(file);
  });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < old.size() + 1;
       ++i)
    remove_or_warn(old[i]);
}

// Sends rank 0's bytes to all ranks without the copy on rank 0 that
// broadcast_bytes() makes.
SharedBytes share_bytes(ProcessGroup& group, const SharedBytes& own,
                        std::string_view label) {
  std::vector<std::int64_t> size{own ? static_cast<std::int64_t>(own->size())
                                     : 0};
  group.broadcast(view(size), 0, {.label = label}).wait();
  if (group.rank() == 0) {
    group.broadcast(view_bytes(*own), 0, {.label = label}).wait();
    return own;
  }
  auto bytes = std::make_shared<std::vector<std::byte>>(
      static_cast<std::size_t>(size[0]));
  group.broadcast(view_bytes(*bytes), 0, {.label = label}).wait();
  return bytes;
}

constexpr std::string_view kLoading = "loading a checkpoint";

// Opens the set on every rank; the ranks divide the reading of its shards.
// Returns the first damage that some rank found, the same on all.
std::string open_set(ProcessGroup& group, const fs::path& path,
                     std::optional<CheckpointSet>& set) {
  std::string damage;
  run_on_all_ranks(group, kLoading, [&] {
    try {
      if (!set) set.emplace(path);
      const std::size_t shards = set->manifest().shards.size();
      for (auto shard = static_cast<std::size_t>(group.rank()); shard < shards;
           shard += static_cast<std::size_t>(group.size()))
        set->check_shard(shard);
    } catch (const NewerCheckpoint&) {
      throw;
    } catch (const InvalidArgument& error) {
      damage = error.what();
    }
  });
  for (const Bytes& told : all_gather_bytes(
           group, std::as_bytes(std::span(damage)), {.label = kLoading}))
    if (!told.empty())
      return {reinterpret_cast<const char*>(told.data()), told.size()};
  return "";
}

// Sends rank 0's path to all ranks; empty for none.
fs::path share_path(ProcessGroup& group, const std::string& own,
                    std::string_view label) {
  const Bytes name = broadcast_bytes(group, std::as_bytes(std::span(own)), 0,
                                     {.label = label});
  return std::string(reinterpret_cast<const char*>(name.data()), name.size());
}

// Throws where this rank does not see `folder`, which rank 0 has made.
void check_seen(const fs::path& folder, int rank) {
  if (fs::is_directory(folder)) return;
  throw SystemError(
      "rank " + std::to_string(rank) + " does not see the folder \"" +
          folder.string() +
          "\", which rank 0 has made\n  likely:  the ranks' hosts share no "
          "file system there\n  next:    name a folder that all ranks see, or "
          "save checkpoints in one file",
      ENOENT);
}

void restore_file(ProcessGroup& group, const TrainingState& state,
                  std::optional<FoundCheckpoint>& found, const fs::path& path) {
  const SharedBytes bytes =
      share_bytes(group, found ? found->bytes : nullptr, kLoading);
  const TensorArchive archive =
      found ? std::move(found->archive) : parse_archive(bytes, path.string());
  restore(state, archive, group, path.string());
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path folder,
                                   CheckpointFolderOptions options)
    : folder_(folder.empty() ? "." : std::move(folder)),
      options_(std::move(options)) {
  if (options_.keep < 1)
    throw InvalidArgument("a folder of checkpoints cannot keep " +
                          std::to_string(options_.keep) +
                          " of them; the minimum is 1");
}

CheckpointFolder::~CheckpointFolder() = default;
CheckpointFolder::CheckpointFolder(CheckpointFolder&&) noexcept = default;
CheckpointFolder& CheckpointFolder::operator=(
    CheckpointFolder&& other) noexcept {
  writer_ = std::move(other.writer_);  // ends before the lock
  lock_ = std::move(other.lock_);
  folder_ = std::move(other.folder_);
  options_ = std::move(other.options_);
  damaged_ = std::move(other.damaged_);
  waits_ = other.waits_;
  return *this;
}

ProcessGroup& CheckpointFolder::group() {
  if (!options_.group) options_.group = default_group();
  return *options_.group;
}

void CheckpointFolder::save(const TrainingState& state, std::int64_t step) {
  if (options_.format == CheckpointFormat::kSharded)
    return save_shards(state, step);
  collect(state, group(), [&](TensorArchive checkpoint) {
    write_checkpoint(*this, std::move(checkpoint), step);
  });
}

void CheckpointFolder::save_shards(const TrainingState& state,
                                   std::int64_t step) {
  constexpr std::string_view kSaving = "saving a checkpoint";
  const auto start = std::chrono::steady_clock::now();
  const bool waits = writer_ && writer_->is_busy();
  finish();
  if (waits) {
    ++waits_.count;
    waits_.time += std::chrono::steady_clock::now() - start;
  }
  group();
  if (!writer_)
    writer_ = make_shared_in_own_process<ShardWriter>(options_.group);
  SetToWrite set{.sealed = folder_ / name_of(step, options_.format)};
  set.manifest.step = step;
  const std::vector<StatePiece> pieces =
      collect_pieces(state, group(), set.manifest.texts);
  run_on_rank_zero(group(), kSaving, [&] {
    begin_step(step);
    set.unsealed = leftover_of(set.sealed);
    fs::create_directory(set.unsealed);
  });
  // The number of rank 0's process is in the name.
  set.unsealed =
      folder_ / share_path(group(), set.unsealed.filename().string(), kSaving);
  run_on_all_ranks(group(), kSaving, [&] {
    check_seen(set.unsealed, group().rank());
    writer_->snapshot(pieces);
  });
  damaged_.erase(set.sealed);
  set.when_sealed = [path = set.sealed, keep = options_.keep,
                     damaged = damaged_] { delete_old(path, keep, damaged); };
  writer_->start(std::move(set));
}

void CheckpointFolder::finish() {
  if (writer_) writer_->wait();
}

std::optional<fs::path> CheckpointFolder::resume(const TrainingState& state) {
  return restore_found(state, "");
}

fs::path CheckpointFolder::load(const fs::path& path,
                                const TrainingState& state) {
  return *restore_found(state, path.empty() ? "." : path);
}

// Restores the checkpoint at `from`, or the newest one of this folder, and
// returns its path.
std::optional<fs::path> CheckpointFolder::restore_found(
    const TrainingState& state, const fs::path& from) {
  finish();
  for (Damage damage;;) {
    std::optional<FoundCheckpoint> found;
    run_on_rank_zero(group(), kLoading, [&] {
      found = from.empty() ? find_newest(*this, damage) : find_at(from, damage);
      for (const auto& [path, problem] : damage) damaged_.insert(path);
    });
    const bool has_set = found && found->set;
    const std::string kind = has_set ? "set " : "file ";
    const std::string told =
        share_path(group(), found ? kind + found->path.string() : "", kLoading)
            .string();
    if (told.empty()) return std::nullopt;
    const fs::path path = told.substr(told.find(' ') + 1);
    if (!told.starts_with("set ")) {
      restore_file(group(), state, found, path);
      return path;
    }
    std::optional<CheckpointSet> set;
    if (found) set = std::move(found->set);
    const std::string problem = open_set(group(), path, set);
    if (problem.empty()) {
      restore(state, *set, group(), path.string());
      return path;
    }
    if (group().rank() == 0) note_damage(path, problem, damage);
  }
}

void CheckpointFolder::prepare() {
  prepare_to_replace(folder_ / name_of(0, CheckpointFormat::kSafetensors));
  // Another run may have created the folder again after a user deleted it.
  if (lock_ && lock_->is_of(folder_)) return;
  lock_.reset();
  lock_ = std::make_unique<FolderLock>(folder_, Deadline(lock_timeout()));
}

std::chrono::nanoseconds CheckpointFolder::lock_timeout() const {
  if (!options_.group) return kLockTimeout;
  return std::min<std::chrono::nanoseconds>(kLockTimeout,
                                            options_.group->timeout() / 2);
}

std::vector<fs::path> CheckpointFolder::files() const {
  return checkpoints_in(folder_);
}

void CheckpointFolder::check_step(std::int64_t step) const {
  if (step < 0)
    throw InvalidArgument("a checkpoint cannot be of step " +
                          std::to_string(step) + "; the first is 0");
  auto later = files();
  std::erase_if(later, [&](const fs::path& path) {
    return *step_of(path) <= step || damaged_.contains(path);
  });
  if (later.empty()) return;
  throw InvalidArgument(
      "the folder \"" + folder_.string() + "\" holds \"" +
      later.back().filename().string() + "\", of a later step than " +
      std::to_string(step) +
      ", which would count as the newest"
      "\n  next:    save to another folder, or move the later checkpoints "
      "out of this one");
}

std::optional<fs::path> CheckpointFolder::newest() const {
  for (Damage damage;;) {
    const auto found = find_newest(*this, damage);
    if (!found) return std::nullopt;
    try {
      if (found->set) found->set->check_shards();
      return found->path;
    } catch (const InvalidArgument& error) {
      note_damage(found->path, error.what(), damage);
    } catch (const SystemError& error) {
      // A running writer may have deleted it: then a newer one exists.
      if (error.error_number() != ENOENT || CheckpointSet::is_at(found->path))
        throw;
    }
  }
}

// What precedes the writing of a checkpoint.
void CheckpointFolder::begin_step(std::int64_t step) {
  prepare();
  check_step(step);
  for (const fs::path& path : entries_of(folder_))
    if (is_leftover(path)) remove_or_warn(path);
}

fs::path write_checkpoint(CheckpointFolder& folder, TensorArchive checkpoint,
                          std::int64_t step) {
  folder.begin_step(step);
  for (auto& [name, tensor] : checkpoint.tensors)
    tensor = storable(name, tensor);
  seal(checkpoint);
  const CheckpointFormat format = folder.options_.format;
  fs::path path = folder.folder_ / name_of(step, format);
  write_archive(path, checkpoint, format);
  folder.damaged_.erase(path);
  delete_old(path, folder.options_.keep, folder.damaged_);
  return path;
}

}  // namespace lockstep
