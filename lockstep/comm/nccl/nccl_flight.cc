#include "lockstep/comm/nccl/nccl_flight.h"

namespace lockstep {

NcclFlight::NcclFlight(const Operation& given, const Gpu& gpu)
    : inputs(given.inputs.begin(), given.inputs.end()),
      outputs(given.outputs.begin(), given.outputs.end()),
      place(given.place),
      operation(given),
      deadline(given.timeout),
      begins(gpu),
      ends(gpu) {
  operation.inputs = inputs;
  operation.outputs = outputs;
  operation.place = place;
}

}  // namespace lockstep
