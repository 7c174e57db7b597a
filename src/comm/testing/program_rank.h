// One rank's part in a random program.
//
// Threads: an object belongs to one thread.
// Errors:  those of the operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/comm/testing/random_elements.h"
#include "src/comm/testing/random_program.h"

namespace lockstep {

class ProgramRank {
 public:
  // `world` is of all ranks of the program.
  ProgramRank(std::shared_ptr<ProcessGroup> world, std::uint64_t seed,
              Elements elements = Elements::kMixed);
  ~ProgramRank();

  // Carries out `steps` steps and waits for all operations in flight. Returns
  // one hash per step, of all contents of this rank's buffers after it.
  std::vector<std::uint64_t> run(std::size_t steps);

 private:
  class Memory;
  struct InFlight;

  void carry_out(const Step& step);
  void start_collective(const Step& step, ProcessGroup& group);
  void start_envelopes(const Step& step, ProcessGroup& group);
  void take_from_any_source(const Step& step, ProcessGroup& group);
  void exchange_objects(const Step& step, ProcessGroup& group);
  void make_groups(const Step& step);
  void keep(const Step& step, Work work, std::unique_ptr<Memory> memory);
  void wait_for_some(std::uint64_t seed);
  void wait_for_messages();
  void wait_for_group(int group);
  void wait_for(std::size_t position);
  void add_result(std::size_t step, std::uint64_t hash);

  const int rank_;
  const Elements elements_;
  RandomProgram program_;
  std::map<int, std::shared_ptr<ProcessGroup>> groups_;  // that this rank is in
  std::vector<InFlight> in_flight_;                      // in start order
  std::vector<std::uint64_t> results_;
};

}  // namespace lockstep
