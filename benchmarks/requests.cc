#include "benchmarks/requests.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <stdexcept>

namespace lockstep {
namespace {

// The number after `name` in a file of /proc, in MiB. std::runtime_error
// without one.
double proc_mib(const std::string& path, const std::string& name) {
  std::ifstream lines(path);
  std::string line;
  while (std::getline(lines, line))
    if (line.rfind(name + ":", 0) == 0)
      return std::stod(line.substr(name.size() + 1)) / 1024;
  throw std::runtime_error("cannot read " + name + " in " + path);
}

}  // namespace

void answer_requests(const std::string& prefix, int rank,
                     const Answer& answer) {
  const std::string path = prefix + "." + std::to_string(rank);
  std::ifstream pipe(path);
  if (!pipe) throw std::runtime_error("cannot open " + path);
  std::string request;
  while (std::getline(pipe, request)) {
    const std::string line = answer(request);
    if (rank == 0) std::cout << line << std::endl;
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double own_mib() { return proc_mib("/proc/self/smaps_rollup", "Pss"); }

double peak_mib() {
  const double peak = proc_mib("/proc/self/status", "VmHWM");
  const double now = proc_mib("/proc/self/status", "VmRSS");
  return peak - now + own_mib();
}

}  // namespace lockstep
