// A regression: a network learns a number, not a class, from a table.
//
//     ./regression                             a table that it makes up
//     ./regression houses.csv                  a table of your own
//     lockstep run -n 2 ./regression houses.csv
//
// A table is text: numbers with commas between them, a row per line, and the
// target in the last column; lines that begin with a letter are skipped. (*)
// marks what data parallelism adds.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

constexpr std::int64_t kBatch = 32;  // rows, of all ranks together
constexpr std::size_t kEpochs = 20;

// Rows of float32: features, and one target each, as a column. With a
// vector of targets mse_loss() would compare each prediction with all targets.
struct Table {
  at::Tensor features, targets;  // rows x columns, rows x 1
};

// The numbers of a line; empty for a line without any, such as a header.
std::vector<float> numbers_of(const std::string& line) {
  std::vector<float> row;
  if (line.empty() || std::isalpha(static_cast<unsigned char>(line[0])))
    return row;
  std::istringstream words(line);
  for (std::string word; std::getline(words, word, ',');) {
    char* end = nullptr;
    row.push_back(std::strtof(word.c_str(), &end));
    if (end == word.c_str())
      throw std::runtime_error("\"" + word + "\" is no number");
  }
  return row;
}

// A row per line of the file, all of one length.
at::Tensor read_table(const char* path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  std::vector<at::Tensor> rows;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) try {
      const auto row = numbers_of(line);
      if (row.empty()) continue;
      rows.push_back(torch::tensor(row));
      if (row.size() < 2 || rows.back().numel() != rows.front().numel())
        throw std::runtime_error("the number of columns is " +
                                 std::to_string(row.size()));
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(std::string(path) + ", line " +
                               std::to_string(number) + ": " + error.what());
    }
  if (rows.size() < 10)
    throw std::runtime_error(std::string(path) + " has fewer than 10 rows");
  return torch::stack(rows);
}

// 1,000 rows whose target is a smooth function of three features.
at::Tensor made_up_table() {
  torch::manual_seed(1234);  // the same on every rank
  const at::Tensor x = torch::rand({1000, 3});
  const at::Tensor y = 20 + 10 * torch::sin(6 * x.select(1, 0)) +
                       5 * x.select(1, 1) * x.select(1, 2);
  return torch::cat({x, y.unsqueeze(1)}, 1);
}

// The mean and the deviation of each column: what the network sees, and what it
// says, has mean 0 and deviation 1.
struct Scale {
  explicit Scale(const at::Tensor& columns)
      : mean(columns.mean(0)), deviation(columns.std(0).clamp_min(1e-6)) {}
  at::Tensor operator()(const at::Tensor& columns) const {
    return (columns - mean) / deviation;
  }
  at::Tensor mean, deviation;
};

torch::nn::Sequential make_net(std::int64_t features) {
  return torch::nn::Sequential(torch::nn::Linear(features, 64),
                               torch::nn::Tanh(), torch::nn::Linear(64, 1));
}

// The wrapper's type names the module itself, not its holder Sequential.
using Model = lockstep::DistributedDataParallel<torch::nn::SequentialImpl>;

// The root of the mean square error over all rows, in units of the deviation of
// the targets: 1 for a network that always says their mean. Each rank measures
// its share of the rows; shares may differ by one row.
double error_on(Model& model, const Table& table) {
  const auto& group = model.group();
  const torch::NoGradGuard no_gradients;
  const auto mine = [&](const at::Tensor& rows) {
    return rows.slice(0, group->rank(), std::nullopt, group->size());
  };
  const at::Tensor targets = mine(table.targets);
  lockstep::MeanMetric square;  // (*)
  square.update(
      torch::mse_loss(model(mine(table.features)), targets).item<double>(),
      static_cast<double>(targets.size(0)));
  return std::sqrt(square.compute(*group));  // (*)
}

int main(int count, char** arguments) {
  const auto group = lockstep::init_process_group();  // (*)
  const at::Tensor rows =
      count > 1 ? read_table(arguments[1]) : made_up_table();
  const std::int64_t last = rows.size(1) - 1, cut = rows.size(0) * 4 / 5;
  const at::Tensor features = rows.slice(1, 0, last),
                   target = rows.slice(1, last);
  const Scale scale(features.slice(0, 0, cut)),
      of_target(target.slice(0, 0, cut));
  Table train, test;
  train.features = scale(features.slice(0, 0, cut));
  train.targets = of_target(target.slice(0, 0, cut));
  test.features = scale(features.slice(0, cut));
  test.targets = of_target(target.slice(0, cut));

  torch::manual_seed(0);
  Model model{make_net(last)};  // (*)
  torch::optim::Adam optimizer(model.parameters(), 0.01);
  const lockstep::TensorDataset samples({train.features, train.targets});

  for (std::size_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = lockstep::sampler_sequence(
        samples.size(), {.world_size = group->size(),  // (*)
                         .rank = group->rank(),        // (*)
                         .epoch = epoch});
    lockstep::TensorLoader loader(
        samples, order, {.batch_size = kBatch / group->size()});  // (*)
    while (const auto batch = loader.next(std::chrono::minutes(1))) {
      optimizer.zero_grad();
      torch::mse_loss(model((*batch)[0]), (*batch)[1]).backward();
      optimizer.step();
    }
    const double error = error_on(model, test);
    if (epoch % 5 == 4 && group->rank() == 0)
      std::printf("epoch %zu: error %.4f\n", epoch + 1, error);
  }
  std::printf("rank %d: error %.6f\n", group->rank(), error_on(model, test));
}
