// The flags of `lockstep train`, parsed twice: by the command, which refuses
// bad input before it launches anything and chooses the number of ranks, and
// again by each lockstep-train that it launches.
//
// Errors:  InvalidArgument with one line that names the flag, what was given
//          and what would do.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tools/device_flags.h"
#include "lockstep/tools/rank_place.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct TrainOptions {
  std::string dataset = "fashion-mnist";  // or mnist
  std::string data_dir;                   // empty: the dataset's usual place
  bool augment = false;
  bool hints = true;  // commands to go on with, at the end

  std::string model = "convnet";  // see train/models.h
  std::vector<int> hidden;        // mlp: sizes of its hidden layers
  std::optional<double> dropout;  // nothing: the model's own
  std::string weights;            // a file to begin with; empty: random ones

  int epochs = 5;
  // Of all ranks together, and of one; complete_train_options() makes them
  // agree.
  std::optional<std::int64_t> global_batch_size;
  std::optional<std::int64_t> batch_size;
  std::string optimizer = "sgd";        // or adam
  std::optional<double> learning_rate;  // never scaled by the number of ranks
  std::string schedule = "one-cycle";   // of the learning rate
  // Of the schedule, see ScheduleOptions in train/learning_rate.h.
  std::optional<int> lr_step_size;
  std::optional<double> lr_gamma;
  std::optional<double> lr_min;
  std::optional<double> lr_warmup_epochs;
  std::optional<double> lr_warmup_decay;
  double momentum = 0.9;  // sgd's
  double weight_decay = 0;
  std::uint64_t seed = 0;
  int accumulate = 1;               // micro-batches of a rank in a step
  std::optional<double> clip_norm;  // nothing: gradients are not clipped
  bool sharded = false;             // the optimizer's state and work
  bool find_unused = false;
  std::optional<int> logical_shards;  // nothing: bits follow the ranks
  std::string precision = "float32";  // or bfloat16, float16
  ComputeFlags compute;
  bool cuda_graph = false;    // passes, on GPUs
  std::string hook = "none";  // what travels in the place of gradients
  bool sync_bn = false;       // statistics over all ranks' samples
  int check_consistency = 0;  // first steps that are looked at
  std::vector<std::string> show_values;  // of these parameters, in those steps
  std::optional<std::int64_t> fingerprint_every;  // steps; nothing: never

  std::string output;                   // where rank 0 saves the trained model
  std::string checkpoint_dir;           // nothing: no checkpoints
  std::optional<int> checkpoint_every;  // steps; nothing: those of an epoch
  std::optional<int> keep;  // checkpoints; complete_train_options() says how
                            // many
  std::string resume;       // auto, or where to go on from; nothing: begin
  std::string log_dir;      // for curves and metrics; nothing: none are kept
  int evaluate_every = 1;   // epochs between two passes over the test set; the
                            // last epoch always has one
  int log_interval = 10;    // steps between two progress records

  std::string strategy = "ddp";  // the way in: see train/strategies.h
  DeviceFlags devices;
  std::optional<int> ranks;    // the world size
  std::optional<int> threads;  // compute threads of a rank; nothing: what
                               // OMP_NUM_THREADS says
};

// Adds the flags, with their help, to `command`. `options` must outlive its
// parsing.
void add_train_options(CLI::App& command, TrainOptions& options);

// Fills in what was left open (but for data_dir, dropout and threads) and
// refuses what does not fit together.
void complete_train_options(TrainOptions& options, const RankPlace& place);

// What --log-dir keeps of `lockstep train` besides ranks' output, for its help.
inline constexpr std::string_view kTrainLogs =
    "; and what the run comes to, for TensorBoard and as JSON lines";

// Both steps for a worker: `arguments` are those after the program's name.
// Skips the flags that only concern launching. Of --log-dir, which concerns
// both, it fills in log_dir.
TrainOptions parse_train_options(std::span<const char* const> arguments,
                                 const RankPlace& place);

}  // namespace lockstep
