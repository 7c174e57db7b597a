#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <functional>
#include <iterator>
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
#include "src/train/checkpoint/atomic_file.h"
#include "src/train/checkpoint/checkpoint_seal.h"
#include "src/train/checkpoint/folder_lock.h"
#include "src/train/checkpoint/rank_zero.h"
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
  if (ending != ending_of(CheckpointFormat::kSafetensors) &&
      ending != ending_of(CheckpointFormat::kLibTorch))
    return std::nullopt;
  return step;
}

std::string name_of(std::int64_t step, CheckpointFormat format) {
  std::string digits = std::to_string(step);
  if (digits.size() < 6) digits.insert(0, 6 - digits.size(), '0');
  return std::string(kStem) + digits + std::string(ending_of(format));
}

// Whether a killed writer left the file: see
// src/train/checkpoint/atomic_file.h.
bool is_leftover(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("." + std::string(kStem)) && name.ends_with(".tmp");
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  std::vector<fs::path> paths;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    paths.push_back(entry->path());
  if (error)
    throw SystemError(
        "cannot read the folder of checkpoints \"" + folder.string() + "\"",
        error.value());
  return paths;
}

// A failure is not an error: the new checkpoint has been written.
void remove_or_warn(const fs::path& path) {
  std::error_code error;
  if (fs::remove(path, error) || !error) return;
  log(LogLevel::kWarn, "cannot delete the old checkpoint \"" + path.string() +
                           "\": " + error.message());
}

// A complete checkpoint: its bytes and their contents.
struct Loaded {
  fs::path path{};
  SharedBytes bytes{};
  TensorArchive archive{};
};

Loaded load_whole(const fs::path& path) {
  Loaded loaded{.path = path, .bytes = read_bytes(path)};
  loaded.archive = parse_archive(loaded.bytes, path.string());
  check_seal(loaded.archive, path.string());
  return loaded;
}

// The newest of `files`, oldest first, that is not damaged; adds damaged ones
// to `damaged`.
std::optional<Loaded> load_newest_of(const std::vector<fs::path>& files,
                                     std::set<fs::path>& damaged) {
  std::string problems;
  for (auto path = files.rbegin(); path != files.rend(); ++path) {
    try {
      return load_whole(*path);
    } catch (const NewerCheckpoint&) {
      throw;
    } catch (const InvalidArgument& error) {
      log(LogLevel::kWarn, std::string("skipping a checkpoint that cannot be "
                                       "used: ") +
                               error.what());
      damaged.insert(*path);
      problems += std::string("\n  ") + error.what();
    }
  }
  if (!problems.empty())
    throw InvalidArgument("none of the checkpoints can be used:" + problems +
                          "\n  next:    delete them to train from the start, "
                          "or name another folder");
  return std::nullopt;
}

// A file that cannot be read now may be complete, so an older one must not
// replace it. But a running writer may delete a file between the listing and
// the reading: then newer files exist, and the search starts again.
std::optional<Loaded> load_newest(const CheckpointFolder& folder,
                                  std::set<fs::path>& damaged) {
  for (auto files = folder.files();;) {
    try {
      return load_newest_of(files, damaged);
    } catch (const SystemError& error) {
      auto now = folder.files();
      if (error.error_number() != ENOENT || now == files) throw;
      files = std::move(now);
    }
  }
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

// Rank 0 finds a checkpoint with `find`, and every rank restores it. Returns
// its path.
std::optional<fs::path> restore_found(
    ProcessGroup& group, const TrainingState& state,
    const std::function<std::optional<Loaded>()>& find) {
  constexpr std::string_view kLabel = "loading a checkpoint";
  std::optional<Loaded> found;
  run_on_rank_zero(group, kLabel, [&] { found = find(); });
  const std::string own_name = found ? found->path.string() : "";
  const Bytes name = broadcast_bytes(group, std::as_bytes(std::span(own_name)),
                                     0, {.label = kLabel});
  if (name.empty()) return std::nullopt;
  const fs::path path(
      std::string(reinterpret_cast<const char*>(name.data()), name.size()));
  const SharedBytes bytes =
      share_bytes(group, found ? found->bytes : nullptr, kLabel);
  const TensorArchive archive =
      found ? std::move(found->archive) : parse_archive(bytes, path.string());
  restore(state, archive, group, path.string());
  return path;
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
CheckpointFolder& CheckpointFolder::operator=(CheckpointFolder&&) noexcept =
    default;

ProcessGroup& CheckpointFolder::group() {
  if (!options_.group) options_.group = default_group();
  return *options_.group;
}

void CheckpointFolder::save(const TrainingState& state, std::int64_t step) {
  collect(state, group(), [&](TensorArchive checkpoint) {
    write_checkpoint(*this, std::move(checkpoint), step);
  });
}

std::optional<fs::path> CheckpointFolder::resume(const TrainingState& state) {
  return restore_found(group(), state,
                       [&] { return load_newest(*this, damaged_); });
}

fs::path CheckpointFolder::load(const fs::path& path,
                                const TrainingState& state) {
  return *restore_found(group(), state, [&]() -> std::optional<Loaded> {
    if (!fs::is_directory(path)) return load_whole(path);
    auto newest = load_newest(CheckpointFolder(path), damaged_);
    if (!newest)
      throw InvalidArgument("the folder \"" + path.string() +
                            "\" holds no checkpoint to resume from");
    return newest;
  });
}

void CheckpointFolder::prepare() {
  prepare_to_replace(folder_ / name_of(0, options_.format));
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
  auto files = entries_of(folder_);
  std::erase_if(files, [](const fs::path& path) { return !step_of(path); });
  std::ranges::sort(files, {}, [](const fs::path& path) {
    return std::pair(*step_of(path), path);
  });
  return files;
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
  std::set<fs::path> damaged;
  const auto found = load_newest(*this, damaged);
  return found ? std::optional(found->path) : std::nullopt;
}

fs::path write_checkpoint(CheckpointFolder& folder, TensorArchive checkpoint,
                          std::int64_t step) {
  folder.prepare();
  folder.check_step(step);
  for (const fs::path& path : entries_of(folder.folder_))
    if (is_leftover(path)) remove_or_warn(path);
  for (auto& [name, tensor] : checkpoint.tensors)
    tensor = storable(name, tensor);
  seal(checkpoint);
  const CheckpointFormat format = folder.options_.format;
  const fs::path path = folder.folder_ / name_of(step, format);
  write_archive(path, checkpoint, format);
  folder.damaged_.erase(path);
  folder.delete_old(path);
  return path;
}

// Deletes the files that `written` replaces and all except the newest,
// including `written`; damaged ones first.
void CheckpointFolder::delete_old(const fs::path& written) {
  auto old = files();
  std::erase_if(old, [&](const fs::path& path) {
    if (step_of(path) != step_of(written)) return false;
    if (path != written) remove_or_warn(path);
    return true;
  });
  std::ranges::stable_partition(
      old, [&](const fs::path& file) { return damaged_.contains(file); });
  for (std::size_t i = 0;
       i + static_cast<std::size_t>(options_.keep) < old.size() + 1; ++i)
    remove_or_warn(old[i]);
}

}  // namespace lockstep
