#include "apps/cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <string_view>

#include "apps/job/flags.h"
#include "apps/run/torchrun_flags.h"
#include "lockstep/base/error.h"
#include "src/base/process_environment.h"
#include "src/base/suggest.h"
#include "src/launch/worker/gpu_inventory.h"
#include "src/launch/worker/worker_environment.h"

namespace lockstep {
namespace {

using Arguments = std::span<const char* const>;

// CLI11 leaves two empty lines between groups of flags.
std::string help_of(const CLI::App& command) {
  std::string text = command.help();
  for (std::size_t at = 0; (at = text.find("\n\n\n", at)) != text.npos;)
    text.erase(at, 1);
  return text;
}

// Each command has its own CLI::App. As a subcommand it would take a program
// with the name of another command for that command.
template <class Register, class Finish>
Request parse_command(const char* usage, const char* description,
                      Arguments arguments, Register add_flags, Finish finish) {
  CLI::App command(description, usage);
  command.allow_extras();
  command.set_help_flag("-h,--help", "Print this and exit");
  add_flags(command);
  try {
    parse_flags(command, arguments);
  } catch (const CLI::CallForHelp&) {
    return HelpRequest{help_of(command)};
  }
  return finish(command, command.remaining());
}

struct RunFlags {
  RunOptions options;
  std::string workers = "1";
  PythonFlags python;
};

void add_run_flags(CLI::App& command, RunFlags& flags) {
  command.prefix_command();
  command.footer(
      "The program comes last, with its own flags:\n"
      "  lockstep run -n 2 ./program --its-flag\n"
      "Flags may be written with underscores (--log_dir). The variables in "
      "brackets give defaults, as for torchrun.");
  command
      .add_option("-n,--nproc-per-node", flags.workers,
                  "Workers on this host: a number, cpu or gpu for one per "
                  "core or GPU, or auto for gpu if there are any, else cpu")
      ->capture_default_str()
      ->type_name("N");
  add_node_flags(command, flags.options.nodes);
  command.add_flag("-m,--module", flags.python.module,
                   "The program is a Python module, run by python3 -m");
  command.add_flag("--no-python", flags.python.no_python,
                   "Execute the program itself, also where its name ends in "
                   ".py");
  add_launch_flags(command, flags.options.launch);
  add_reform_flags(command, flags.options.reform);
  add_stream_flags(command, flags.options.streams);
  command.add_option("--role", flags.options.role, "ROLE_NAME for the workers")
      ->capture_default_str()
      ->type_name("NAME");
  command.add_flag("--virtual-local-rank", flags.options.virtual_local_rank,
                   "Give every worker LOCAL_RANK 0, and in "
                   "CUDA_VISIBLE_DEVICES the one GPU of its place on the host");
  command.add_flag("--dry-run", flags.options.dry_run,
                   "Print the ranks of this host with their cores and threads, "
                   "or the hosts of -H, and start nothing");
  add_torchrun_flags(command);
  take_defaults_from_environment(command);
}

void check_program(const CLI::App& command, std::vector<std::string>& program) {
  if (!program.empty() && program.front() == "--")
    program.erase(program.begin());
  if (program.empty())
    throw InvalidArgument("run needs a program: lockstep run -n 2 ./program");
  if (program.front().starts_with('-'))
    throw InvalidArgument(
        unknown_argument(command, "lockstep run", program.front()));
}

// The launchers of the hosts parse the same flags for themselves.
void check_run_on_hosts(const CLI::App& command, const RunOptions& options) {
  if (is_typed(command, "--nproc-per-node") &&
      std::ranges::any_of(options.hosts, &HostSlots::slots))
    throw InvalidArgument(
        "-n is the number of ranks on each host, which -H gives too, as "
        "HOST:RANKS: leave one of them out");
  range_of(options.nodes, options.hosts.size());
  environment_for_hosts(current_environment(), options.nodes.variables);
  join_times_of(options.nodes);
}

// `order`: null, or whose arguments these are.
Request parse_run_alone(Arguments arguments, int cores,
                        const HostOrder* order) {
  RunFlags flags;
  RunOptions& options = flags.options;
  return parse_command(
      "lockstep run",
      "Run a program as several ranks, on this host or on several, with "
      "torchrun's environment.",
      arguments, [&](CLI::App& command) { add_run_flags(command, flags); },
      [&](const CLI::App& command, std::vector<std::string> rest) -> Request {
        check_program(command, rest);
        options.arguments.assign(arguments.begin(), arguments.end());
        if (order != nullptr) {
          obey(*order, options.nodes);
          if (order->slots > 0) flags.workers = std::to_string(order->slots);
        }
        const StreamPlan streams = streams_of(options.streams);
        check_file_to_write("--error-file", options.streams.error_file);
        options.hosts = hosts_of(options.nodes);
        if (!options.hosts.empty()) {
          check_reform_flags(options.reform, options.nodes, 0);
          check_run_on_hosts(command, options);
          return options;
        }
        options.workers = parse_workers(flags.workers, cores, [] {
          return visible_gpus(environment_variable);
        });
        if (!nodes_of(options.nodes, environment_variable))
          check_shown_ranks(streams, options.workers);
        check_reform_flags(options.reform, options.nodes, options.workers);
        options.command =
            command_of(std::move(rest), flags.python, environment_variable);
        return options;
      });
}

// An error may be about a default that the user did not type.
Request parse_run_flags(Arguments arguments, int cores,
                        const HostOrder* order) try {
  return parse_run_alone(arguments, cores, order);
} catch (const InvalidArgument& error) {
  const auto variables = variables_with_defaults(environment_variable);
  if (variables.empty()) throw;
  throw InvalidArgument(fmt::format("{} (defaults in the environment: {})",
                                    error.what(), fmt::join(variables, ", ")));
}

Request parse_run(Arguments arguments, int cores) {
  return parse_run_flags(arguments, cores, nullptr);
}

Request parse_train(Arguments arguments, int cores) {
  TrainRequest request;
  request.arguments.assign(arguments.begin(), arguments.end());
  return parse_command(
      "lockstep train",
      "Train an image classifier over all ranks of this host.", arguments,
      [&](CLI::App& command) {
        add_train_options(command, request.options);
        add_launch_flags(command, request.launch, kTrainLogs);
      },
      [&](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, "lockstep train");
        complete_train_options(
            request.options,
            {.cores = cores, .lookup = environment_variable, .gpus = [] {
               return visible_gpus(environment_variable);
             }});
        return request;
      });
}

Request parse_with_model(ModelVerb verb, const char* description,
                         Arguments arguments, int cores) {
  EvaluateRequest request;
  const std::string name = fmt::format("lockstep {}", name_of(verb));
  request.options.verb = verb;
  request.arguments = {std::string(name_of(verb))};
  request.arguments.insert(request.arguments.end(), arguments.begin(),
                           arguments.end());
  return parse_command(
      name.c_str(), description, arguments,
      [&](CLI::App& command) {
        add_evaluate_options(command, request.options);
        add_launch_flags(command, request.launch);
      },
      [&](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, name);
        complete_evaluate_options(request.options,
                                  {.cores = cores, .gpus = [] {
                                     return visible_gpus(environment_variable);
                                   }});
        return request;
      });
}

Request parse_evaluate(Arguments arguments, int cores) {
  return parse_with_model(
      ModelVerb::kEvaluate,
      "Measure a trained model: loss, accuracy, and which classes it confuses.",
      arguments, cores);
}

Request parse_predict(Arguments arguments, int cores) {
  return parse_with_model(
      ModelVerb::kPredict,
      "Write a trained model's prediction for each image, as CSV.", arguments,
      cores);
}

Request parse_bench(Arguments arguments, int cores) {
  BenchRequest request;
  request.arguments.assign(arguments.begin(), arguments.end());
  return parse_command(
      "lockstep bench",
      "Time a collective over the ranks of this host, and verify its results.",
      arguments,
      [&](CLI::App& command) {
        add_bench_options(command, request.options);
        add_launch_flags(command, request.launch);
      },
      [&](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, "lockstep bench");
        complete_bench_options(request.options,
                               {.cores = cores, .gpus = [] {
                                  return visible_gpus(environment_variable);
                                }});
        return request;
      });
}

Request parse_scale(Arguments arguments, int cores) {
  ScaleRequest request{.options = {}, .job = {}, .cores = cores};
  return parse_command(
      "lockstep scale",
      "Train on 1, 2, 4, ... ranks, and report how that scales.", arguments,
      [&](CLI::App& command) { add_scale_options(command, request.options); },
      [&](const CLI::App&, std::vector<std::string> rest) -> Request {
        complete_scale_options(request.options, cores);
        request.job = std::move(rest);
        return request;
      });
}

Request parse_version(Arguments arguments, int /*cores*/) {
  return parse_command(
      "lockstep version", "Print the version.", arguments, [](CLI::App&) {},
      [](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, "lockstep version");
        return VersionRequest{};
      });
}

void add_json_flag(CLI::App& command, ReportFormat& format) {
  command.add_flag_callback(
      "--json", [&format] { format = ReportFormat::kJson; },
      "Print it as JSON, for programs");
}

Request parse_checkpoint(Arguments arguments, int /*cores*/) {
  CheckpointOptions options;
  return parse_command(
      "lockstep checkpoint",
      "Look at a checkpoint in shards, or write it to one file.", arguments,
      [&](CLI::App& command) { add_checkpoint_options(command, options); },
      [&](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, "lockstep checkpoint");
        check_checkpoint_options(options);
        return options;
      });
}

Request parse_download(Arguments arguments, int /*cores*/) {
  DownloadDataRequest request;
  request.arguments.assign(arguments.begin(), arguments.end());
  return parse_command(
      "lockstep data download",
      "Fetch the files of a known dataset to where training finds them.",
      arguments,
      [&](CLI::App& command) {
        add_download_data_options(command, request.options);
      },
      [&](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, "lockstep data download");
        complete_download_data_options(request.options);
        return request;
      });
}

Request parse_make_images(Arguments arguments, int cores) {
  MakeImagesOptions options;
  return parse_command(
      "lockstep data make-images",
      "Make a folder of synthetic images with labels, for trying out training.",
      arguments,
      [&](CLI::App& command) { add_make_images_options(command, options); },
      [&](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, "lockstep data make-images");
        complete_make_images_options(options, cores);
        return options;
      });
}

Request parse_show_data(Arguments arguments, int cores) {
  ShowDataOptions options;
  return parse_command(
      "lockstep data show", "Show what is in a dataset.", arguments,
      [&](CLI::App& command) { add_show_data_options(command, options); },
      [&](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, "lockstep data show");
        complete_show_data_options(options, cores);
        return options;
      });
}

// The help of all verbs of `lockstep data`.
HelpRequest data_help() {
  constexpr std::array kHelp{"--help"};
  std::string text = "Fetch and make datasets, and look at them.\n";
  for (const auto& parse : {parse_download, parse_make_images, parse_show_data})
    text += "\n" + std::get<HelpRequest>(parse(kHelp, 1)).text;
  return {text};
}

Request parse_data(Arguments arguments, int cores) {
  constexpr std::array<std::string_view, 3> kVerbs{"download", "make-images",
                                                   "show"};
  const std::string_view verb = arguments.empty() ? "" : arguments.front();
  if (verb == "--help" || verb == "-h") return data_help();
  if (verb == "download") return parse_download(arguments.subspan(1), cores);
  if (verb == "make-images")
    return parse_make_images(arguments.subspan(1), cores);
  if (verb == "show") return parse_show_data(arguments.subspan(1), cores);
  if (verb.empty())
    throw InvalidArgument(
        "data needs a verb: lockstep data download mnist, lockstep data "
        "make-images DIR, or lockstep data show DIR");
  throw InvalidArgument(unknown_name("verb", verb, kVerbs));
}

Request parse_blame(Arguments arguments, int /*cores*/) {
  BlameOptions options;
  return parse_command(
      "lockstep blame",
      "Name the ranks at fault, from the records of a job's ranks.", arguments,
      [&](CLI::App& command) {
        command.footer(
            "Exits with 0 when it names a fault, 3 when the records show none, "
            "2 when\nthe folder cannot be used.");
        command
            .add_option("DIR", options.folder,
                        "The folder with the records: a failure report names "
                        "it, and LOCKSTEP_DUMP_DIR chooses it. SIGUSR1 to "
                        "`lockstep run` requests the records of a hanging job")
            ->type_name("");
        add_json_flag(command, options.format);
      },
      [&](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, "lockstep blame");
        if (options.folder.empty())
          throw InvalidArgument(
              "blame needs the folder with the records: lockstep blame DIR");
        return options;
      });
}

Request parse_doctor(Arguments arguments, int /*cores*/) {
  DoctorOptions options;
  return parse_command(
      "lockstep doctor",
      "Show what this machine has for training; as the ranks of a job, what "
      "each host has, and what lies between the hosts.",
      arguments,
      [&](CLI::App& command) {
        add_json_flag(command, options.format);
        command.add_flag("--host-only", options.host_only,
                         "Examine this host alone, also where WORLD_SIZE says "
                         "that it is a rank of a job: do not wait for the "
                         "other ranks");
      },
      [&](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, "lockstep doctor");
        return options;
      });
}

Request parse_status(Arguments arguments, int /*cores*/) {
  StatusOptions options;
  return parse_command(
      "lockstep status",
      "Show how busy this host is: its cores, its memory, each GPU with the "
      "processes on it, and your running jobs: how far and how fast each rank "
      "is, and which ranks hold up the others.",
      arguments,
      [&](CLI::App& command) {
        command
            .add_option("JOB", options.job,
                        "Show this job alone: the number of its launcher")
            ->check(whole_number(1, std::numeric_limits<pid_t>::max()))
            ->type_name("");
        command.add_flag_callback(
            "--all", [&options] { options.whose = JobsOf::kAllUsers; },
            "Show the jobs of other users too, as root");
        add_json_flag(command, options.format);
      },
      [&](const CLI::App& command, const auto& /*rest*/) -> Request {
        refuse_extras(command, "lockstep status");
        return options;
      });
}

struct Command {
  std::string_view name;
  std::string_view summary;
  Request (*parse)(Arguments, int cores);
};

constexpr std::array<Command, 12> kCommands{{
    {"train", "train an image classifier on every core", parse_train},
    {"evaluate", "measure a trained model", parse_evaluate},
    {"predict", "write what a trained model predicts", parse_predict},
    {"checkpoint", "look at a checkpoint in shards, or merge it",
     parse_checkpoint},
    {"data", "fetch or make a dataset of images, or look at one", parse_data},
    {"run", "run a program as several ranks", parse_run},
    {"scale", "train on 1, 2, 4, ... ranks and compare", parse_scale},
    {"bench", "time a collective and verify its results", parse_bench},
    {"blame", "name the ranks at fault when a job failed", parse_blame},
    {"doctor", "show what this machine has for training", parse_doctor},
    {"status", "show the running jobs, and how busy this host is",
     parse_status},
    {"version", "print the version", parse_version},
}};

HelpRequest general_help() {
  std::string text =
      "Lockstep: data-parallel training for C++ on LibTorch\n\n"
      "Usage: lockstep COMMAND [flags]\n\nCommands:\n";
  for (const Command& command : kCommands)
    text += fmt::format("  {:<12}{}\n", command.name, command.summary);
  return {text + "\nlockstep COMMAND --help lists a command's flags.\n"};
}

// The column of a flag's description, after two blanks or more. Other lines
// continue at their beginning.
std::size_t description_column(std::string_view line) {
  const std::size_t flag = line.find_first_not_of(' ');
  if (flag == std::string_view::npos) return 0;
  const std::size_t gap = flag == 0 ? line.npos : line.find("  ", flag);
  const std::size_t text = line.find_first_not_of(' ', gap);
  return gap == line.npos || text == line.npos ? flag : text;
}

}  // namespace

std::string wrap_help(const std::string& text, std::size_t columns) {
  constexpr std::size_t kNarrowest = 20;
  std::istringstream lines(text);
  std::string wrapped;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t indent = description_column(line);
    while (line.size() > columns && indent + kNarrowest <= columns) {
      const std::size_t blank = line.rfind(' ', columns);
      if (blank == std::string::npos || blank <= indent) break;
      wrapped += line.substr(0, blank) + "\n";
      line = std::string(indent, ' ') + line.substr(blank + 1);
    }
    wrapped += line + "\n";
  }
  return wrapped;
}

RunOptions parse_order(const HostOrder& order, int cores) {
  std::vector<const char*> arguments;
  for (const std::string& argument : order.arguments)
    arguments.push_back(argument.c_str());
  return std::get<RunOptions>(parse_run_flags(arguments, cores, &order));
}

Request parse_command_line(Arguments arguments, int cores) {
  if (arguments.empty())
    throw InvalidArgument("a command is missing: lockstep --help lists them");
  const std::string_view name = arguments.front();
  if (name == "--help" || name == "-h" || name == "help") return general_help();
  if (name == "--version") return VersionRequest{};
  if (name == kHostLauncher && arguments.size() == 1)
    return HostLauncherRequest{};
  std::vector<std::string_view> known;
  for (const Command& command : kCommands) {
    if (command.name == name) return command.parse(arguments.subspan(1), cores);
    known.push_back(command.name);
  }
  throw InvalidArgument(unknown_name("command", name, known));
}

}  // namespace lockstep
