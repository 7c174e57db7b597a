#include "src/comm/group/same_job.h"

#include <string>
#include <vector>

#include "src/comm/group/same_text.h"

namespace lockstep {

void check_same_job(ProcessGroup& group, std::span<const JobField> fields) {
  const auto texts = texts_if_different(group, text_of(fields));
  if (texts.empty()) return;
  std::vector<FieldsOfRank> ranks;
  for (const std::string& text : texts)
    ranks.push_back(
        {.rank = static_cast<int>(ranks.size()), .fields = fields_of(text)});
  const std::vector<std::string> differences = differences_in(ranks);
  throw DifferentJobs(
      "the ranks were started for different jobs: " +
      (differences.empty() ? "the order of their fields differs"
                           : join_differences(differences)) +
      "\n  likely:  the ranks were started with different flags or data, or "
      "two jobs use one MASTER_PORT"
      "\n  next:    start every rank with the same flags, and each job with a "
      "port of its own");
}

}  // namespace lockstep
