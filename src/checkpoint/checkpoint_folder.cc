#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/groups.h"
#include "src/base/log.h"
#include "src/base/own_process.h"
#include "src/base/secret.h"
#include "src/checkpoint/atomic_file.h"
#include "src/checkpoint/checkpoint_seal.h"
#include "src/checkpoint/checkpoint_search.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/folder_lock.h"
#include "src/checkpoint/rank_zero.h"
#include "src/checkpoint/shard_writer.h"
#include "src/checkpoint/shared_folder.h"
#include "src/checkpoint/tensor_archive.h"
#include "src/checkpoint/training_state.h"
#include "src/comm/group/elastic_job.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStem = "checkpoint-";

// The wait for a killed earlier run whose memory is still being freed.
constexpr std::chrono::seconds kLockTimeout{5};

// The step in the name of a checkpoint, and what follows it.
struct NumberedName {
  std::int64_t step = 0;
  std::string ending;
};

std::optional<NumberedName> numbered_name(const fs::path& path) {
  const std::string name = path.filename().string();
  std::string_view text = name;
  if (!text.starts_with(kStem)) return std::nullopt;
  text.remove_prefix(kStem.size());
  std::int64_t step = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc{} || step < 0) return std::nullopt;
  return NumberedName{step, {end, text.data() + text.size()}};
}

// The step of a checkpoint; empty for other files.
std::optional<std::int64_t> step_of(const fs::path& path) {
  const auto name = numbered_name(path);
  if (!name) return std::nullopt;
  if (name->ending == ending_of(CheckpointFormat::kSafetensors) ||
      name->ending == ending_of(CheckpointFormat::kLibTorch))
    return name->step;
  // Other programs make folders of such names.
  if (name->ending == ending_of(CheckpointFormat::kSharded) &&
      CheckpointSet::is_at(path))
    return name->step;
  return std::nullopt;
}

std::string name_of(std::int64_t step, CheckpointFormat format) {
  std::string digits = std::to_string(step);
  if (digits.size() < 6) digits.insert(0, 6 - digits.size(), '0');
  return std::string(kStem) + digits + std::string(ending_of(format));
}

// A new name for a folder that is not a checkpoint yet, or no longer: that of a
// leftover. It is random, since ranks of an earlier run on other hosts may
// still write into the folder that they began.
fs::path leftover_of(const fs::path& path) {
  return path.parent_path() /
         ("." + path.filename().string() + "." + random_hex(8) + ".tmp");
}

// Whether a killed writer left the file or the folder: see
// src/checkpoint/atomic_file.h.
bool is_leftover(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("." + std::string(kStem)) && name.ends_with(".tmp");
}

void warn_of_old(const fs::path& path, const std::string& problem) {
  log(LogLevel::kWarn,
      "cannot delete the old checkpoint \"" + path.string() + "\": " + problem);
}

// A failure is not an error: the new checkpoint has been written. A folder must
// not be a checkpoint while only some of its files are left.
void remove_or_warn(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    fs::remove(path, error);
  } else if (is_leftover(path)) {
    fs::remove_all(path, error);
  } else {
    const fs::path leftover = leftover_of(path);
    fs::rename(path, leftover, error);
    if (!error) fs::remove_all(leftover, error);
  }
  if (error) warn_of_old(path, error.message());
}

struct Checkpoint {
  std::int64_t step = 0;
  fs::path path{};

  auto operator<=>(const Checkpoint&) const = default;
};

// Those of a folder, by step.
std::vector<Checkpoint> checkpoints_in(const fs::path& folder) {
  std::vector<Checkpoint> found;
  for (const fs::path& path : entries_of(folder))
    if (const auto step = step_of(path)) found.push_back({*step, path});
  std::ranges::sort(found);
  return found;
}

// Deletes the files that `written` replaces and all except the `keep` newest,
// including `written`; damaged ones first.
void delete_old(const Checkpoint& written, int keep,
                const std::set<fs::path>& damaged) {
  const fs::path folder = written.path.parent_path();
  std::vector<Checkpoint> old;
  try {
    old = checkpoints_in(folder);
  } catch (const SystemError& error) {
    return warn_of_old(folder, error.what());
  }
  std::erase_if(old, [&](const Checkpoint& found) {
    if (found.step != written.step) return false;
    if (found.path != written.path) remove_or_warn(found.path);
    return true;
  });
  std::stable_partition(old.begin(), old.end(), [&](const Checkpoint& found) {
    return damaged.contains(found.path);
  });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < old.size() + 1;
       ++i)
    remove_or_warn(old[i].path);
}

// Returns rank 0's number.
std::int64_t share_number(ProcessGroup& group, std::int64_t own,
                          std::string_view label) {
  std::array<std::int64_t, 1> number{own};
  group.broadcast(view(std::span<std::int64_t>(number)), 0, {.label = label})
      .wait();
  return number[0];
}

// Sends rank 0's bytes to all ranks without the copy on rank 0 that
// broadcast_bytes() makes.
SharedBytes share_bytes(ProcessGroup& group, const SharedBytes& own,
                        std::string_view label) {
  const std::int64_t size = share_number(
      group, own ? static_cast<std::int64_t>(own->size()) : 0, label);
  if (group.rank() == 0) {
    group.broadcast(view_bytes(*own), 0, {.label = label}).wait();
    return own;
  }
  auto bytes =
      std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(size));
  group.broadcast(view_bytes(*bytes), 0, {.label = label}).wait();
  return bytes;
}

constexpr std::string_view kSaving = "saving a checkpoint";

// Under which an ElasticJob keeps the last step that its ranks have saved.
std::string saved_step_key(const fs::path& folder) {
  std::error_code ignored;
  return "checkpoint in " +
         fs::absolute(folder, ignored).lexically_normal().string();
}

std::vector<Checkpoint> later_than(std::int64_t step, const fs::path& folder,
                                   const std::set<fs::path>& damaged) {
  auto later = checkpoints_in(folder);
  std::erase_if(later, [&](const Checkpoint& found) {
    return found.step <= step || damaged.contains(found.path);
  });
  return later;
}

// Throws where the name of a checkpoint belongs to something else.
void check_replaces_set(const fs::path& path) {
  std::error_code error;
  const fs::file_status there = fs::symlink_status(path, error);
  if (!fs::exists(there)) return;
  if (fs::is_directory(there) &&
      (fs::is_empty(path, error) || CheckpointSet::is_at(path)))
    return;
  throw InvalidArgument("\"" + path.string() +
                        "\" is not the folder of a checkpoint, and one of this "
                        "step needs its name\n  next:    move it to another "
                        "place");
}

// A checkpoint that replaces a private one is private from its first byte on.
void make_unsealed(const SetToWrite& set) {
  std::error_code error, ignored;
  const bool replaces = fs::is_directory(set.sealed, ignored);
  const bool is_made =
      replaces ? fs::create_directory(set.unsealed, set.sealed, error)
               : fs::create_directory(set.unsealed, error);
  if (!is_made)
    throw SystemError("cannot make the folder \"" + set.unsealed.string() +
                          "\" for a checkpoint",
                      error.value());
  if (replaces)
    fs::permissions(
        set.unsealed,
        fs::status(set.sealed, ignored).permissions() | fs::perms::owner_all,
        ignored);
}

// Throws where a later step would need the name of a set without a manifest.
void check_no_broken_set(const fs::path& folder, std::int64_t step) {
  std::error_code error;
  std::vector<fs::path> entries = entries_of(folder);
  std::ranges::sort(entries);  // so that the message names the earliest
  for (const fs::path& path : entries) {
    const auto name = numbered_name(path);
    if (!name || name->step <= step ||
        name->ending != ending_of(CheckpointFormat::kSharded) ||
        !fs::is_directory(path, error) || CheckpointSet::is_at(path) ||
        !has_shards(path))
      continue;
    throw InvalidArgument(
        "the folder \"" + path.string() + "\" holds shards, but no " +
        kManifestName +
        ", and a checkpoint of its step would need its name"
        "\n  likely:  the manifest was deleted"
        "\n  next:    restore the manifest, or move the folder to another "
        "place");
  }
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
  being_written_ = std::move(other.being_written_);
  return *this;
}

ProcessGroup& CheckpointFolder::group() { return *group_pointer(); }

const std::shared_ptr<ProcessGroup>& CheckpointFolder::group_pointer() {
  if (!options_.group) options_.group = default_group();
  return options_.group;
}

void CheckpointFolder::save(const TrainingState& state, std::int64_t step) {
  if (repeats(step)) return;
  if (options_.format == CheckpointFormat::kSharded)
    save_shards(state, step);
  else
    collect(state, group(), [&](TensorArchive checkpoint) {
      write_checkpoint(*this, std::move(checkpoint), step);
    });
  if (ElasticJob* const job = elastic_job())
    job->keep(saved_step_key(folder_), step);
}

// Whether the ranks repeat steps, after some of them have died, and have saved
// later ones before: rank 0 knows, and tells ranks that were not there.
bool CheckpointFolder::repeats(std::int64_t step) {
  ElasticJob* const job = elastic_job();
  if (job == nullptr || job->round().number <= 1) return false;
  await_earlier();
  const std::string key = saved_step_key(folder_);
  std::int64_t last = -1;
  run_on_rank_zero(group(), kSaving, [&] {
    const auto later = later_than(step, folder_, damaged_);
    const auto kept = job->kept(key);
    if (!later.empty() && kept && later.back().step <= *kept) last = *kept;
  });
  last = share_number(group(), last, kSaving);
  if (last >= 0) job->keep(key, last);
  return last >= 0;
}

// Waits for the checkpoint before, and counts that.
void CheckpointFolder::await_earlier() {
  const auto start = std::chrono::steady_clock::now();
  const bool waits = writer_ && writer_->is_busy();
  finish();
  if (!waits) return;
  ++waits_.count;
  waits_.time += std::chrono::steady_clock::now() - start;
}

void CheckpointFolder::save_shards(const TrainingState& state,
                                   std::int64_t step) {
  await_earlier();
  if (!writer_)
    writer_ = make_shared_in_own_process<ShardWriter>(group_pointer());
  step = share_number(group(), step, kSaving);
  SetToWrite set{.sealed = folder_ / name_of(step, options_.format)};
  set.manifest.step = step;
  const std::vector<StatePiece> pieces =
      collect_pieces(state, group(), set.manifest.texts);
  run_on_rank_zero(group(), kSaving, [&] {
    to_text(set.manifest);  // before work that it would refuse
    begin_step(step);
    check_replaces_set(set.sealed);
    set.unsealed = leftover_of(set.sealed);
    make_unsealed(set);
  });
  set.unsealed =
      folder_ / share_path(group(), set.unsealed.filename(), kSaving);
  run_on_all_ranks(group(), kSaving, [&] {
    check_seen(set.unsealed, group().rank());
    writer_->snapshot(pieces);
  });
  being_written_ = set.sealed;
  set.when_sealed = [written = Checkpoint{step, set.sealed},
                     keep = options_.keep, damaged = damaged_] {
    delete_old(written, keep, damaged);
  };
  writer_->start(std::move(set));
}

void CheckpointFolder::finish() {
  if (!writer_) return;
  const fs::path written = std::exchange(being_written_, {});
  writer_->wait();
  damaged_.erase(written);
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
    const fs::path path =
        share_path(group(), found ? found->path : "", kLoading);
    if (path.empty()) return std::nullopt;
    const bool is_set =
        share_number(group(), found && found->set ? 1 : 0, kLoading) == 1;
    if (!is_set) {
      restore_file(group(), state, found, path);
      return path;
    }
    std::optional<CheckpointSet> set;
    if (found) set = std::move(found->set);
    const SetProblem problem = open_set(group(), path, set);
    if (!problem && restore(state, *set, group(), path.string())) return path;
    if (group().rank() == 0 && !problem.damage.empty())
      note_damage(path, problem.damage, damage);
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
  std::vector<fs::path> paths;
  for (Checkpoint& found : checkpoints_in(folder_))
    paths.push_back(std::move(found.path));
  return paths;
}

void CheckpointFolder::check_step(std::int64_t step) const {
  if (step < 0)
    throw InvalidArgument("a checkpoint cannot be of step " +
                          std::to_string(step) + "; the first is 0");
  if (options_.format == CheckpointFormat::kSharded)
    check_no_broken_set(folder_, step);
  const auto later = later_than(step, folder_, damaged_);
  if (later.empty()) return;
  throw InvalidArgument(
      "the folder \"" + folder_.string() + "\" holds \"" +
      later.back().path.filename().string() + "\", of a later step than " +
      std::to_string(step) +
      ", which would count as the newest"
      "\n  next:    save to another folder, or move the later checkpoints "
      "out of this one");
}

std::optional<fs::path> CheckpointFolder::newest() const {
  const auto found = find_newest_and_read(*this, [](FoundCheckpoint& newest) {
    if (newest.set) newest.set->check_shards();
  });
  if (!found) return std::nullopt;
  return found->path;
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
  delete_old({step, path}, folder.options_.keep, folder.damaged_);
  return path;
}

}  // namespace lockstep
