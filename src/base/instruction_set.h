// Which vector instructions this CPU has.
//
// Kernels are compiled from one source for each of these and chosen at run
// time; see comm/reduce and src/planning/update_kernels.h.
#pragma once

#include <string_view>

namespace lockstep {

enum class InstructionSet { kPortable, kAvx2, kAvx512 };

// The best instruction set that this CPU has.
InstructionSet best_instruction_set();
std::string_view name_of(InstructionSet set);

}  // namespace lockstep
