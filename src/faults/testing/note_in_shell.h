// A worker of a test that is a shell leaves the note of a rank.
#pragma once

#include <string>

namespace lockstep {

// The shell's command by which it notes that it fails because of `culprit`;
// `kind` is a word of docs/formats/fault_note.md.
inline std::string note_in_shell(const std::string& kind, int culprit) {
  return R"(echo '{"format": "lockstep fault note", "version": 1, "kind": ")" +
         kind + R"(", "culprit": )" + std::to_string(culprit) +
         "}' >$LOCKSTEP_FAULT_FILE";
}

}  // namespace lockstep
