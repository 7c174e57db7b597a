// Files that several ranks write: a table of all ranks, and a log of each.
//
//     ./rank_files                       alone
//     lockstep run -n 4 ./rank_files     all ranks write to the table
//
// Your own program uses a permanent folder: a restart then appends to the
// files.
#include <lockstep/comm/groups.h>
#include <lockstep/comm/run_files.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

int main() {
  const auto group = lockstep::init_process_group();
  std::vector<std::int64_t> job{::getpid()};
  group->broadcast(lockstep::view(job), 0).wait();
  const auto folder = std::filesystem::temp_directory_path() /
                      ("rank_files-" + std::to_string(job[0]));

  std::filesystem::create_directories(folder);  // on every rank
  lockstep::AppendedFile table(folder / "losses.csv");
  lockstep::AppendedFile log(folder /
                             lockstep::rank_path("train-%r.log", *group));
  for (int step = 1; step <= 100; ++step) {
    const double loss = 1.0 / step;
    table.append_line(std::to_string(step) + "," +
                      std::to_string(group->rank()) + "," +
                      std::to_string(loss));
    if (step % 50 == 0) log.append_line("step " + std::to_string(step));
  }
  group->barrier().wait();

  if (group->rank() != 0) return 0;
  int lines = 0;
  std::ifstream written(table.path());
  for (std::string line; std::getline(written, line);) ++lines;
  std::printf("%d lines from %d ranks; the log of rank 0 was in %s\n", lines,
              group->size(), log.path().filename().c_str());
  std::filesystem::remove_all(folder);
  return lines == 100 * group->size() ? 0 : 1;
}
