#include "src/checkpoint/checkpoint_search.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/log.h"
#include "src/checkpoint/checkpoint_seal.h"
#include "src/checkpoint/rank_zero.h"
#include "src/checkpoint/shared_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

FoundCheckpoint open_whole(const fs::path& path) {
  FoundCheckpoint found{.path = path};
  if (CheckpointSet::is_at(path)) {
    found.set.emplace(path);
    return found;
  }
  found.bytes = read_bytes(path);
  found.archive = parse_archive(found.bytes, path.string());
  check_seal(found.archive, path.string());
  return found;
}

// As find_newest(), of `files`, oldest first.
std::optional<FoundCheckpoint> find_newest_of(
    const std::vector<fs::path>& files, Damage& damage) {
  std::string problems;
  for (auto path = files.rbegin(); path != files.rend(); ++path) {
    try {
      if (!damage.contains(*path)) return open_whole(*path);
    } catch (const NewerCheckpoint&) {
      throw;
    } catch (const InvalidArgument& error) {
      note_damage(*path, error.what(), damage);
    }
    problems += "\n  " + damage.at(*path);
  }
  if (!problems.empty())
    throw InvalidArgument("none of the checkpoints can be used:" + problems +
                          "\n  next:    delete them to train from the start, "
                          "or name another folder");
  return std::nullopt;
}

std::vector<std::string> all_gather_texts(ProcessGroup& group,
                                          const std::string& own) {
  std::vector<std::string> texts;
  for (const Bytes& told : all_gather_bytes(
           group, std::as_bytes(std::span(own)), {.label = kLoading}))
    texts.emplace_back(reinterpret_cast<const char*>(told.data()), told.size());
  return texts;
}

// Throws unless all ranks have read the same manifest.
void check_same_set(ProcessGroup& group, const fs::path& path,
                    const std::string& checksum) {
  const auto all = all_gather_texts(group, checksum);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      refuse_unshared("ranks 0 and " + std::to_string(rank) +
                      " see different checkpoints at \"" + path.string() +
                      "\"");
}

}  // namespace

bool has_shards(const fs::path& folder) {
  return std::ranges::any_of(entries_of(folder), [](const fs::path& path) {
    return path.filename().string().starts_with("shard-");
  });
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

void note_damage(const fs::path& path, const std::string& problem,
                 Damage& damage) {
  log(LogLevel::kWarn, "skipping a checkpoint that cannot be used: " + problem);
  damage.emplace(path, problem);
}

// A file that cannot be read now may be complete, so an older one must not
// replace it. But a running writer may delete a file between the listing and
// the reading: then newer files exist, and the search starts again.
std::optional<FoundCheckpoint> find_newest(const CheckpointFolder& folder,
                                           Damage& damage) {
  for (auto files = folder.files();;) {
    try {
      return find_newest_of(files, damage);
    } catch (const SystemError& error) {
      auto now = folder.files();
      if (error.error_number() != ENOENT || now == files) throw;
      files = std::move(now);
    }
  }
}

std::optional<FoundCheckpoint> find_newest_and_read(
    const CheckpointFolder& folder,
    const std::function<void(FoundCheckpoint&)>& read) {
  for (Damage damage;;) {
    auto found = find_newest(folder, damage);
    if (!found) return std::nullopt;
    try {
      read(*found);
      return found;
    } catch (const InvalidArgument& error) {
      note_damage(found->path, error.what(), damage);
    } catch (const SystemError& error) {
      if (!CheckpointSet::is_gone(found->path, error)) throw;
    }
  }
}

std::optional<FoundCheckpoint> find_at(const fs::path& path, Damage& damage) {
  std::error_code error;
  if (!fs::is_directory(path, error) || CheckpointSet::is_at(path)) {
    if (const auto known = damage.find(path); known != damage.end())
      throw InvalidArgument(known->second);
    return open_whole(path);
  }
  if (has_shards(path))
    throw InvalidArgument("the folder \"" + path.string() +
                          "\" is no checkpoint: it holds shards, but no " +
                          kManifestName +
                          "\n  likely:  its writer ended before it was "
                          "complete\n  next:    use an earlier checkpoint");
  auto newest = find_newest(CheckpointFolder(path), damage);
  if (!newest)
    throw InvalidArgument("the folder \"" + path.string() +
                          "\" holds no checkpoint to resume from");
  return newest;
}

SetProblem open_set(ProcessGroup& group, const fs::path& path,
                    std::optional<CheckpointSet>& set) {
  constexpr std::string_view kGone = "gone";
  std::string problem;
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
      problem = error.what();
    } catch (const SystemError& error) {
      if (!CheckpointSet::is_gone(path, error)) throw;
      problem = kGone;
    }
  });
  const std::vector<std::string> problems = all_gather_texts(group, problem);
  const auto first = std::ranges::find_if_not(problems, &std::string::empty);
  if (first == problems.end()) {
    check_same_set(group, path, set->manifest().checksum);
    return {};
  }
  if (*first != kGone) return {.damage = *first};
  run_on_rank_zero(group, kLoading, [&] {
    if (CheckpointSet::is_at(path))
      refuse_unshared("rank " + std::to_string(first - problems.begin()) +
                      " does not see the checkpoint \"" + path.string() +
                      "\", which rank 0 sees");
  });
  return {.is_gone = true};
}

}  // namespace lockstep
