// Starts four ranks of this program from inside, as torch.multiprocessing's
// spawn does, and adds up a number of each.
#include "lockstep/comm/spawn.h"

#include <iostream>
#include <vector>

#include "lockstep/base/buffer.h"
#include "lockstep/comm/groups.h"

void run(int rank, int first) {
  lockstep::init_process_group();
  std::vector<int> data{first + rank};
  lockstep::default_group()
      ->all_reduce(lockstep::view(data), lockstep::ReduceOp::kSum)
      .wait();
  if (rank == 0) std::cout << "the sum is " << data[0] << std::endl;
}

int main() try {
  lockstep::prepare_spawn();
  lockstep::spawn(run, 4, 10);
} catch (const lockstep::Error& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
