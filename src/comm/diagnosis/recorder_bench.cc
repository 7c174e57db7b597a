// Measures the recorder's cost per operation: the same operations with and
// without the recorder, on a backend that does nothing.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <string_view>

#include "src/comm/group/group_core.h"
#include "src/comm/rendezvous/world.h"

namespace lockstep {
namespace {

// Operations complete at their start, or when a caller waits for them.
class IdleBackend : public Backend,
                    public PendingWork,
                    public std::enable_shared_from_this<IdleBackend> {
 public:
  enum class Completion { kAtOnce, kInWait };
  explicit IdleBackend(Completion completion) : completion_(completion) {}

  std::string_view name() const override { return "idle"; }
  bool supports(const Operation&) const override { return true; }
  Work start(const Operation&) override {
    if (completion_ == Completion::kAtOnce) return {};
    return Work(shared_from_this(), ++tickets_);
  }
  void abort(std::string_view) noexcept override {}
  void leave() noexcept override {}

  void wait(std::uint64_t, std::optional<Deadline>) override {}
  bool done(std::uint64_t) override { return true; }
  std::vector<int> missing(std::uint64_t) override { return {}; }

 private:
  const Completion completion_;
  std::uint64_t tickets_ = 0;
};

enum class Record { kNone, kKept };

void run(benchmark::State& state, Record record,
         IdleBackend::Completion completion, std::string_view label) {
  const auto world =
      record == Record::kKept
          ? std::make_shared<World>(open_store("memory:"), Settings())
          : nullptr;
  ProcessGroup group(std::make_unique<GroupCore>(
      std::make_shared<IdleBackend>(completion), GroupIdentity{.size = 2},
      ProcessGroup::kDefaultTimeout, world));
  for ([[maybe_unused]] auto _ : state) group.barrier({.label = label}).wait();
}

void declare(const char* name, IdleBackend::Completion completion,
             std::string_view label) {
  for (const Record record : {Record::kNone, Record::kKept})
    benchmark::RegisterBenchmark(
        (std::string(name) + (record == Record::kKept ? "/kept" : "/none"))
            .c_str(),
        [=](benchmark::State& state) {
          run(state, record, completion, label);
        });
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using Completion = lockstep::IdleBackend::Completion;
  lockstep::declare("complete at once", Completion::kAtOnce, "");
  lockstep::declare("waited for", Completion::kInWait, "");
  lockstep::declare("waited for, with a label", Completion::kInWait,
                    "the gradients of the model's last layer");
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
