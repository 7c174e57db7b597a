// One rank of ours in the benchmark of collectives, started with the
// environment of a launcher:
//
//   lockstep_collectives REQUESTS     answers the driver
//   (measure_collectives.h) lockstep_collectives death        waits for what
//   rank VICTIM never
//                                     does; says when it learns that VICTIM
//                                     died
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

#include "benchmarks/measure_collectives.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

class LockstepEngine : public Engine {
 public:
  explicit LockstepEngine(std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  std::shared_ptr<float> allocate(std::size_t count, Memory memory) override {
    if (memory == Memory::kPlain) return allocate_plain(count);
    auto block = group_->allocate(count * sizeof(float));
    return {block, reinterpret_cast<float*>(block.get())};
  }

  void barrier() override { group_->barrier().wait(); }
  void all_reduce(float* data, std::size_t count) override {
    group_->all_reduce(buffer(data, count), ReduceOp::kSum).wait();
  }
  void broadcast(float* data, std::size_t count) override {
    group_->broadcast(buffer(data, count), 0).wait();
  }
  void all_gather(const float* input, float* output,
                  std::size_t count) override {
    group_
        ->all_gather(buffer(const_cast<float*>(input), count),
                     buffer(output, count * static_cast<std::size_t>(size())))
        .wait();
  }
  std::vector<double> gather(double value) override {
    std::vector<double> own{value}, all(static_cast<std::size_t>(size()));
    group_->all_gather(view(own), view(all)).wait();
    return all;
  }

 private:
  static Buffer buffer(float* data, std::size_t count) {
    return {.data = data, .count = static_cast<std::int64_t>(count)};
  }

  std::shared_ptr<ProcessGroup> group_;
};

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The driver kills the victim while the survivor waits.
void see_death(ProcessGroup& group) {
  const char* text = std::getenv("VICTIM");
  const int victim = text == nullptr ? 1 : std::atoi(text);
  std::vector<float> data(1 << 20, 1.0F);
  group.barrier().wait();
  if (group.rank() == victim) {
    while (true) ::pause();
  }
  const Work work = group.all_reduce(view(data), ReduceOp::kSum);
  std::cout << R"({"waiting": true})" << std::endl;
  try {
    work.wait();
  } catch (const PeerFailure& failure) {
    std::cout << R"({"seen_at_ns": )" << now_ns() << R"(, "rank": )"
              << failure.rank() << "}" << std::endl;
  }
}

void run(const std::string& argument) {
  const auto group = init_process_group();
  if (argument == "death") return see_death(*group);
  LockstepEngine engine(group);
  answer_requests(engine, argument);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: lockstep_collectives REQUESTS | death\n";
    return 2;
  }
  try {
    lockstep::run(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
