// The error of a new run whose folder for checkpoints holds those of another
// run. The command tells before ranks start; the ranks tell of a folder that
// only they see.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

// `newest`: the name of the last checkpoint in `folder`.
inline std::string describe_used_folder(const std::filesystem::path& folder,
                                        const std::string& newest) {
  return "the folder \"" + folder.string() +
         "\" holds checkpoints of a run already, up to \"" + newest +
         "\""
         "\n  next:    resume it with --resume auto, or name another folder";
}

}  // namespace lockstep
