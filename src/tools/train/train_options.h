// The flags of `lockstep train`, parsed twice: by the command, which refuses
// bad input before it launches anything and chooses the number of ranks, and
// again by each lockstep-train that it launches.
//
// Errors:  InvalidArgument with one line that names the flag, the given value
//          and the accepted ones.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/tools/job/device_flags.h"
#include "src/tools/job/rank_place.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct TrainOptions {
  std::string dataset = "fashion-mnist";  // or mnist
  std::string data_dir;                   // empty: the dataset's usual place
  bool augment = false;
  bool hints = true;  // print next commands at the end

  std::string model = "convnet";  // see train/model/models.h
  std::vector<int> hidden;        // mlp: sizes of its hidden layers
  std::optional<double> dropout;  // nothing: the model's own
  std::string weights;            // a file of initial weights; empty: random

  int epochs = 5;
  // Batch sizes of all ranks and of one rank; complete_train_options() makes
  // them consistent.
  std::optional<std::int64_t> global_batch_size;
  std::optional<std::int64_t> batch_size;
  std::string optimizer = "sgd";        // or adam
  std::optional<double> learning_rate;  // never scaled by the number of ranks
  std::string schedule = "one-cycle";   // of the learning rate
  // The schedule's; see ScheduleOptions in train/trainer/learning_rate.h.
  std::optional<int> lr_step_size;
  std::optional<double> lr_gamma;
  std::optional<double> lr_min;
  std::optional<double> lr_warmup_epochs;
  std::optional<double> lr_warmup_decay;
  double momentum = 0.9;  // sgd's
  double weight_decay = 0;
  std::uint64_t seed = 0;
  int accumulate = 1;               // micro-batches per rank and step
  std::optional<double> clip_norm;  // nothing: gradients are not clipped
  bool sharded = false;             // shards the optimizer's state and work
  bool find_unused = false;
  std::optional<int> logical_shards;  // nothing: bits depend on the world size
  std::string precision = "float32";  // or bfloat16, float16
  ComputeFlags compute;
  bool cuda_graph = false;               // captures passes, on GPUs
  std::string hook = "none";             // communication hook
  bool sync_bn = false;                  // normalizes over all ranks' samples
  int check_consistency = 0;             // the first steps to check
  std::vector<std::string> show_values;  // parameters to print in those steps
  std::optional<std::int64_t> fingerprint_every;  // steps; nothing: never

  std::string output;                   // where rank 0 saves the trained model
  std::string checkpoint_dir;           // nothing: no checkpoints
  std::optional<int> checkpoint_every;  // steps; nothing: once per epoch
  std::optional<int> keep;  // checkpoints; complete_train_options() sets it
  std::string resume;       // auto, or a checkpoint; empty: start anew
  std::string log_dir;      // for curves and metrics; empty: none
  int evaluate_every = 1;   // epochs; the last epoch is always evaluated
  int log_interval = 10;    // steps between two progress records

  std::string strategy = "ddp";  // the frontend: see train/trainer/strategies.h
  DeviceFlags devices;
  std::optional<int> ranks;    // the world size
  std::optional<int> threads;  // per rank; nothing: from OMP_NUM_THREADS
};

// Adds the flags, with their help, to `command`. `options` must outlive its
// parsing.
void add_train_options(CLI::App& command, TrainOptions& options);

// Fills in defaults (except data_dir, dropout and threads) and refuses
// contradictory options.
void complete_train_options(TrainOptions& options, const RankPlace& place);

// The help on what --log-dir keeps of `lockstep train` besides ranks' output.
inline constexpr std::string_view kTrainLogs =
    "; and the run's metrics, for TensorBoard and as JSON lines";

// Does both steps for a worker; `arguments` are those after the program's name.
// Skips the flags that only concern launching, but fills in log_dir from
// --log-dir.
TrainOptions parse_train_options(std::span<const char* const> arguments,
                                 const RankPlace& place);

}  // namespace lockstep
