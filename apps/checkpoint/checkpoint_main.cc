// lockstep-checkpoint: what `lockstep checkpoint` executes, with its arguments.
//
//     lockstep-checkpoint merge SET OUT
//     lockstep-checkpoint show SET
//
// Exit codes: 0 when the checkpoint is complete and, for merge, written; 2 when
// it is not a complete checkpoint; 1 for all other errors.
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/main_function.h"
#include "src/base/report_text.h"
#include "src/checkpoint/checkpoint_set.h"

namespace lockstep {
namespace {

CheckpointSet open_set(const std::filesystem::path& path) {
  if (CheckpointSet::is_at(path)) return CheckpointSet(path);
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  throw InvalidArgument(
      "\"" + path.string() + "\" is no checkpoint in shards: " +
      (is_folder                                ? "it has no manifest.json"
       : std::filesystem::exists(path, ignored) ? "it is one file"
                                                : "it does not exist") +
      "\n  next:    name a folder such as checkpoint-000700, which a run with "
      "--checkpoint-format sharded has completed");
}

// The exit code. Throws on damage, after the text.
int show(const CheckpointSet& set) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : set.tensors())
    bytes += tensor.elements() * size_of(tensor.type);
  std::vector<std::vector<std::string>> facts{
      {"step", std::to_string(set.manifest().step)},
      {"ranks", std::to_string(set.manifest().shards.size())}};
  // Programs of users need not name them.
  const auto line_of_text = [&](const char* what, const char* key) {
    const auto& texts = set.manifest().texts;
    const auto found = texts.find(key);
    if (found != texts.end()) facts.push_back({what, found->second});
  };
  line_of_text("optimizer", "lockstep.optimizer");
  line_of_text("model", "lockstep.job.model");
  facts.push_back(
      {"tensors", with_thousands(std::ssize(set.tensors())) + ", " +
                      with_thousands(static_cast<std::int64_t>(bytes)) +
                      " bytes"});
  std::vector<std::vector<std::string>> rows;
  std::string damage;
  for (std::size_t shard = 0; shard < set.manifest().shards.size(); ++shard) {
    const ShardFile& file = set.manifest().shards[shard];
    std::string state = "checksum right";
    try {
      set.check_shard(shard);
    } catch (const InvalidArgument& error) {
      state = "damaged";
      if (damage.empty()) damage = error.what();
    }
    rows.push_back(
        {file.file,
         with_thousands(static_cast<std::int64_t>(file.bytes)) + " bytes",
         state});
  }
  const int exit_code = print_report(aligned_table(facts, {.left_aligned = 2}) +
                                     aligned_table(rows, {.left_aligned = 1}));
  if (!damage.empty()) throw InvalidArgument(damage);
  return exit_code;
}

int run(std::span<const char* const> given) {
  const std::vector<std::string> arguments(given.begin(), given.end());
  const auto asks = [&](const char* action, std::size_t count) {
    return arguments.size() == count && arguments[0] == action;
  };
  if (!asks("show", 2) && !asks("merge", 3))
    throw InvalidArgument(
        "usage: lockstep-checkpoint merge SET OUT | show SET");
  const CheckpointSet set = open_set(arguments[1]);
  if (asks("show", 2)) return show(set);
  merge_checkpoint(set, arguments[2]);
  return print_report("the checkpoint of step " +
                      std::to_string(set.manifest().step) + " is in " +
                      arguments[2] + "\n");
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run_main(count, arguments, lockstep::run);
}
