// The smallest outside project without LibTorch.
#include <lockstep/base/settings.h>

int main() {
  const auto settings =
      lockstep::Settings::read([](const std::string&) { return std::nullopt; });
  return settings.backend == "auto" ? 0 : 1;
}
