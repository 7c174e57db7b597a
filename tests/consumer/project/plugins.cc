// plugins FOLDER: two ranks add over gloo, which fails unless the library loads
// gloo's plug-in; and that it must do from this folder without a setting.
#include <lockstep/comm/groups.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace {

// Whether the loader has taken gloo's plug-in from `folder`.
bool loaded_from(const std::string& folder) {
  const auto plugin =
      std::filesystem::canonical(folder) / "liblockstep_gloo.so";
  std::ifstream maps("/proc/self/maps");
  const std::string text(std::istreambuf_iterator<char>(maps), {});
  return text.find(plugin) != std::string::npos;
}

int run_rank(int rank, const std::string& store, const std::string& folder) {
  lockstep::init_process_group({.backend = "gloo",
                                .init_method = "file://" + store,
                                .world_size = 2,
                                .rank = rank});
  std::vector<float> values{1, 2, 3, 4};
  lockstep::default_group()
      ->all_reduce(lockstep::view(values), lockstep::ReduceOp::kSum)
      .wait(std::chrono::seconds(60));
  const bool right = values == std::vector<float>{2, 4, 6, 8};
  const bool found = loaded_from(folder);
  if (!right) std::cerr << "rank " << rank << ": the sum is wrong\n";
  if (!found)
    std::cerr << "rank " << rank << ": gloo is not of " << folder << '\n';
  lockstep::destroy_process_group();
  return right && found ? 0 : 1;
}

}  // namespace

int main(int count, char** values) try {
  if (count != 2) return 2;
  const std::string store = std::filesystem::temp_directory_path() /
                            ("lockstep_consumer_" + std::to_string(getpid()));
  const pid_t child = fork();
  const int rank = child == 0 ? 1 : 0;
  int status = run_rank(rank, store, values[1]);
  if (child == 0) return status;
  int of_child = 1;
  waitpid(child, &of_child, 0);
  std::filesystem::remove(store);
  return status != 0 ? status : of_child;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
