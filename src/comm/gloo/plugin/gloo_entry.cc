// The exported function of liblockstep_gloo.so.
#include "src/comm/gloo/plugin/gloo_transport.h"

extern "C" __attribute__((visibility("default"))) const LockstepTransportTable*
lockstep_transport() {
  static constexpr auto kTable =
      lockstep::TransportEntry<lockstep::GlooTransport>::table();
  return &kTable;
}
