// The plug-ins that move messages between hosts. Each is a folder
// src/comm/NAME/plugin/, and a backend of that name.
#pragma once

#include <array>
#include <string_view>

namespace lockstep {

struct TransportName {
  std::string_view name;
  std::string_view packages;  // Debian's, required to build it
  std::string_view use;       // for lockstep doctor
};

inline constexpr std::array<TransportName, 2> kTransports{{
    {"gloo", "libgloo-dev", "between hosts, over TCP"},
    {"mpi", "libopenmpi-dev and openmpi-bin",
     "between hosts, started by mpirun or srun"},
}};

// Null for an unknown name.
constexpr const TransportName* find_transport(std::string_view name) {
  for (const TransportName& transport : kTransports)
    if (transport.name == name) return &transport;
  return nullptr;
}

}  // namespace lockstep
