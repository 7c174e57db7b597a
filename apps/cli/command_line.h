// Parses the arguments after `lockstep` into a request.
//
// Threads: any thread; a strategy that uses TF_CONFIG reads the environment.
// Errors:  InvalidArgument with one line for a usage error.
#pragma once

#include <span>
#include <string>
#include <variant>

#include "apps/bench/bench_command.h"
#include "apps/blame/blame_command.h"
#include "apps/checkpoint/checkpoint_command.h"
#include "apps/data/download_data.h"
#include "apps/data/make_images.h"
#include "apps/data/show_data.h"
#include "apps/doctor/doctor_command.h"
#include "apps/evaluate/evaluate_command.h"
#include "apps/run/run_command.h"
#include "apps/scale/scale_command.h"
#include "apps/status/status_command.h"
#include "apps/train/train_command.h"

namespace lockstep {

// --help: of the command, or of one of its commands. Wraps `text` at blanks to
// lines of at most `columns`. A continuation line is indented below the
// description of its flag.
std::string wrap_help(const std::string& text, std::size_t columns);

struct HelpRequest {
  std::string text;
};

struct VersionRequest {};

// `lockstep host-launcher`, which `lockstep run -H` starts on each host.
struct HostLauncherRequest {};

using Request =
    std::variant<HelpRequest, VersionRequest, HostLauncherRequest, RunOptions,
                 TrainRequest, EvaluateRequest, ScaleRequest, BenchRequest,
                 CheckpointOptions, DownloadDataRequest, MakeImagesOptions,
                 ShowDataOptions, BlameOptions, DoctorOptions, StatusOptions>;

// `arguments` are those after the program's name; `cores` is the number of
// cores that the process may use.
Request parse_command_line(std::span<const char* const> arguments, int cores);

// What a host's launcher does on `order`; `cores` as above.
RunOptions parse_order(const HostOrder& order, int cores);

}  // namespace lockstep
