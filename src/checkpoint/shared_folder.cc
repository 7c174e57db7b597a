#include "src/checkpoint/shared_folder.h"

#include <memory>
#include <span>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/secret.h"
#include "src/checkpoint/rank_zero.h"

namespace lockstep {

namespace fs = std::filesystem;

void refuse_unshared(const std::string& problem) {
  throw InvalidArgument(
      problem +
      "\n  likely:  the ranks' hosts share no file system there"
      "\n  next:    name a folder that all ranks see, or save checkpoints in "
      "one file");
}

void check_seen(const fs::path& path, int rank) {
  std::error_code error;
  if (fs::exists(path, error)) return;
  refuse_unshared("rank " + std::to_string(rank) + " does not see \"" +
                  path.string() + "\", which rank 0 has made" +
                  (error ? ": " + error.message() : ""));
}

fs::path share_path(ProcessGroup& group, const fs::path& own,
                    std::string_view label) {
  const std::string text = own.string();
  const Bytes name = broadcast_bytes(group, std::as_bytes(std::span(text)), 0,
                                     {.label = label});
  return std::string(reinterpret_cast<const char*>(name.data()), name.size());
}

void check_shared(ProcessGroup& group, const fs::path& folder) {
  constexpr std::string_view kPreparing = "preparing to save checkpoints";
  // A killed rank leaves a folder that counts as a leftover.
  fs::path probe;
  const std::shared_ptr<void> removed(nullptr, [&](void*) {
    std::error_code ignored;
    if (group.rank() == 0) fs::remove(probe, ignored);
  });
  run_on_rank_zero(group, kPreparing, [&] {
    probe = folder / (".checkpoint-probe-" + random_hex(8) + ".tmp");
    std::error_code error;
    if (!fs::create_directory(probe, error))
      throw SystemError("cannot make \"" + probe.string() + "\"",
                        error.value());
  });
  const fs::path seen =
      folder / share_path(group, probe.filename(), kPreparing);
  run_on_all_ranks(group, kPreparing, [&] { check_seen(seen, group.rank()); });
}

}  // namespace lockstep
