#include "apps/options/training_conflicts.h"

#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// A flag, with its value if that matters, and whether the options have it.
struct Use {
  std::string flag;
  bool is_used = false;
};

struct Conflict {
  Use one;
  Use other;
  const char* why;  // about `other`
  const char* instead;
};

using Conflicts = std::vector<Conflict>;

constexpr const char* kLeaveOut = "leave out one of the two";

bool is_hook_of_horovod(const std::string& hook) {
  return hook == "fp16" || hook == "bf16";
}

void exclude(Conflicts& all, const std::vector<Use>& uses, const Use& other,
             const char* why, const char* instead = kLeaveOut) {
  for (const Use& one : uses) all.push_back({one, other, why, instead});
}

Use strategy_of(const TrainerOptions& options, bool is_meant) {
  return {"--strategy " + options.strategy, is_meant};
}

std::vector<Use> checks_of(const TrainerOptions& options) {
  return {{"--check-consistency", options.checks.consistency_steps > 0},
          {"--fingerprint-every", options.checks.fingerprint_every > 0}};
}

Use hook_of(const TrainerOptions& options) {
  return {"--hook " + options.hook, options.hook != "none"};
}

void add_strategies(const TrainerOptions& options, Conflicts& all) {
  constexpr const char* kUseDdp = "use --strategy ddp, or leave it out";
  const Use strategy = strategy_of(options, options.strategy != "ddp");
  const Use horovod = strategy_of(options, options.strategy == "horovod");
  const Use slots = strategy_of(options, options.strategy == "data-parallel");
  exclude(all,
          {{"--sharded", options.sharded},
           {"--logical-shards", options.logical_shards.has_value()}},
          strategy, "which averages gradients itself", kUseDdp);
  auto of_ranks = checks_of(options);
  of_ranks.push_back({"--sync-bn", options.sync_batch_norm});
  exclude(all, of_ranks, slots, "whose device slots are not ranks",
          "use --strategy mirrored");
  if (horovod.is_used && is_hook_of_horovod(options.hook)) return;
  exclude(all, {hook_of(options)}, horovod,
          "whose compressions are fp16 and bf16",
          "use one of them, or --strategy ddp");
  exclude(all, {hook_of(options)}, strategy,
          "because hooks belong to DistributedDataParallel", kUseDdp);
}

void add_gradients(const TrainerOptions& options, Conflicts& all) {
  const Use shards{"--logical-shards", options.logical_shards.has_value()};
  const Use local{"--hook post-local-sgd", options.hook == "post-local-sgd"};
  for (const Use& other : {Use{"--sharded", options.sharded}, shards})
    exclude(all, {hook_of(options)}, other, "which averages gradients itself");
  exclude(all, {{"--sync-bn", options.sync_batch_norm}}, shards,
          "whose bits would depend on the number of ranks");
  exclude(all, {{"--accumulate", options.accumulate != 1}}, shards,
          "which are micro-batches already",
          "use more of them if memory is short");
  exclude(all, checks_of(options), local, "with which ranks differ on purpose");
  exclude(all,
          {{"--checkpoint-dir", !options.checkpoint_dir.empty()},
           {"--resume", !options.resume.empty()}},
          local,
          "with which ranks have different models between two averages, and a "
          "checkpoint holds one");
}

void add_graphs(const TrainerOptions& options, Conflicts& all) {
  auto uses = checks_of(options);
  uses.insert(uses.end(),
              {strategy_of(options, options.strategy != "ddp"),
               {"--sharded", options.sharded},
               {"--logical-shards", options.logical_shards.has_value()},
               {"--accumulate", options.accumulate != 1},
               {"--precision float16", options.precision == "float16"},
               {"--hook power-sgd", options.hook == "power-sgd"},
               {"--hook post-local-sgd", options.hook == "post-local-sgd"},
               {"--find-unused", options.find_unused},
               {"--sync-bn", options.sync_batch_norm}});
  exclude(all, uses, {"--cuda-graph", options.cuda_graph},
          "which replays one pass, the same each time and without the host");
}

}  // namespace

void check_conflicts(const TrainerOptions& options) {
  Conflicts all;
  add_graphs(options, all);
  add_strategies(options, all);
  add_gradients(options, all);
  for (const Conflict& each : all)
    if (each.one.is_used && each.other.is_used)
      throw InvalidArgument(each.one.flag + " is not for " + each.other.flag +
                            ", " + each.why + ": " + each.instead);
}

}  // namespace lockstep
