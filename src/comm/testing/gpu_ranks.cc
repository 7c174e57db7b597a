#include "src/comm/testing/gpu_ranks.h"

#include <string>
#include <vector>

#include "src/comm/nccl/gpu_plugin.h"

namespace lockstep {
namespace {

struct TableInUse {
  explicit TableInUse(const LockstepGpuTable& table) { use_gpu_table(&table); }
  ~TableInUse() { use_gpu_table(nullptr); }
  TableInUse(const TableInUse&) = delete;
  TableInUse& operator=(const TableInUse&) = delete;
};

}  // namespace

void run_gpu_ranks(const LockstepGpuTable& table, int ranks,
                   const RankBody& body) {
  const std::vector<std::string> one_host(static_cast<std::size_t>(ranks),
                                          "one host");
  const TableInUse in_use(table);
  run_ranks_on(one_host, "hybrid", body);
}

}  // namespace lockstep
