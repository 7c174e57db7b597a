#include "apps/doctor/doctor_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/doctor/doctor_findings.h"
#include "src/base/version.h"
#include "src/launch/worker/gpu_inventory.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

std::string_view mark(Health health) {
  switch (health) {
    case Health::kGood:
      return "ok";
    case Health::kLimited:
      return "--";
    case Health::kBad:
      return "NO";
  }
  return "??";
}

}  // namespace

std::string_view name_of(Health health) {
  switch (health) {
    case Health::kGood:
      return "good";
    case Health::kLimited:
      return "limited";
    case Health::kBad:
      return "bad";
  }
  return "unknown";
}

bool DoctorReport::can_train() const {
  return std::ranges::none_of(findings, [](const Finding& finding) {
    return finding.health == Health::kBad;
  });
}

DoctorReport examine(const EnvironmentLookup& lookup) {
  const Settings settings = Settings::read(lookup);
  DoctorReport report{
      {try_shared_memory(), try_heap(settings), examine_process_handles()}};
  for (Finding& plugin : examine_plugins(settings))
    report.findings.push_back(std::move(plugin));
  for (Finding& gpu : list_gpus(look_at_gpus()))
    report.findings.push_back(std::move(gpu));
  for (Finding& finding : std::vector<Finding>{
           examine_mpi_launchers(lookup), examine_network(settings),
           examine_ports(settings), examine_cores(), examine_vector_units(),
           examine_memory(), examine_memory_limits(), examine_limits(),
           examine_trainer(lookup)})
    report.findings.push_back(std::move(finding));
  return report;
}

std::string to_text(const DoctorReport& report) {
  std::size_t width = 0;
  for (const Finding& finding : report.findings)
    width = std::max(width, finding.topic.size());
  std::string text = fmt::format("lockstep {}\n", version());
  for (const Finding& finding : report.findings) {
    text += fmt::format("  {}  {:<{}}  {}\n", mark(finding.health),
                        finding.topic, width, finding.text);
    if (!finding.next.empty())
      text += fmt::format("      {:<{}}  next: {}\n", "", width, finding.next);
  }
  return text + (report.can_train() ? "Training on this host works.\n"
                                    : "Training on this host does not work.\n");
}

std::string to_json(const DoctorReport& report) {
  Json object;
  object["version"] = version();
  object["can_train"] = report.can_train();
  object["findings"] = Json::array();
  for (const Finding& finding : report.findings)
    object["findings"].push_back({{"topic", finding.topic},
                                  {"health", name_of(finding.health)},
                                  {"text", finding.text},
                                  {"next", finding.next}});
  return object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
