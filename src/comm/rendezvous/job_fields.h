// Inputs in which all ranks of a job agree, such as flags and settings, and the
// text that names those in which they differ.
//
// Threads: any thread.
// Errors:  none.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// An input in which all ranks of a job agree: {"--lr", "0.1"}.
struct JobField {
  std::string name;
  std::string value;
};

// To a text of one line per field, and back. Control characters become '?'.
std::string text_of(std::span<const JobField> fields);
std::vector<JobField> fields_of(std::string_view text);

struct FieldsOfRank {
  int rank = 0;
  std::string host{};  // named beside the rank, unless it is empty
  std::vector<JobField> fields{};
};

// One text per field that differs, in the order in which the ranks name them:
// "--lr is 0.1 on ranks 0, 1 (host0) and 0.001 on rank 2 (host1)". Each name
// occurs once in a rank's fields; the ranks' lists may have different names.
std::vector<std::string> differences_in(std::span<const FieldsOfRank> ranks);

// The first differences as the rest of a line and further lines of an error
// message.
std::string join_differences(const std::vector<std::string>& differences);

}  // namespace lockstep
