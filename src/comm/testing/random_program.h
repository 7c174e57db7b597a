// Random programs over groups: valid sequences of operations, which are the
// same on every rank.
//
// Each rank makes the program from its seed and carries out its part (see
// program_rank.h); two backends must give the same results.
//
// Threads: an object belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lockstep/comm/groups.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

struct Step {
  enum class What {
    kCollective,
    kMessages,
    kFromAnySource,
    kObjects,
    kNewGroup,
    kSplit,
    kDropGroup,
    kWait,  // each rank for some of what it has in flight
  };
  enum class Finish { kAtOnce, kLater };
  // Whether this rank's own block lies within the list of all blocks.
  enum class Own { kApart, kInPlace };
  struct Envelope {
    int from = 0;
    int to = 0;
    int tag = 0;
    std::int64_t count = 0;
  };

  What what = What::kCollective;
  std::size_t index = 0;   // within the program
  int group = 0;           // its number within the program; 0 is of all ranks
  std::uint64_t seed = 0;  // of contents
  Finish finish = Finish::kAtOnce;

  DataType type = DataType::kFloat32;
  OperationKind kind = OperationKind::kBarrier;
  Division division = Division::kEven;
  ReduceOp reduction = ReduceOp::kSum;
  int root = 0;
  Own own = Own::kApart;
  // A rank's own elements, buffer by buffer; if uneven, the most that one rank
  // has for another.
  std::vector<std::int64_t> counts{};
  std::vector<Envelope> envelopes{};

  std::vector<int> ranks{};     // of a new group
  std::vector<Color> colors{};  // by rank
  std::vector<int> made{};      // numbers of new groups; of a split, by color
};

std::string describe(const Step& step);

class RandomProgram {
 public:
  RandomProgram(std::uint64_t seed, int ranks);

  Step next();

  // The ranks in group 0 of the members of `group`, by their rank in it.
  const std::vector<int>& members(int group) const {
    return members_.at(group);
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  int int_below(std::size_t bound) { return static_cast<int>(below(bound)); }
  bool one_in(std::uint64_t chances) { return below(chances) == 0; }
  int any_group();
  std::int64_t any_count();
  Step::What any_kind_of_step();
  void fill_collective(Step& step);
  void fill_envelopes(Step& step);
  void fill_envelopes_to_one(Step& step);
  void fill_new_group(Step& step);
  void fill_split(Step& step);

  std::mt19937_64 random_;
  std::size_t steps_ = 0;
  int groups_made_ = 1;
  std::map<int, std::vector<int>> members_;  // of the existing groups
};

}  // namespace lockstep
