#include "benchmarks/requests.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <stdexcept>

namespace lockstep {

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

}  // namespace lockstep
