// The note in which a rank tells its launcher that it fails because of another
// rank, so that the launcher blames the other one.
//
// A rank writes the note before an error that another rank has caused leaves a
// call of Lockstep, and removes it when it goes on: in a new default group, or,
// if the error has not ended the group, with a further operation. The launcher
// reads it when the rank has ended. docs/formats/fault_note.md describes the
// file.
//
// Threads: any thread; one process at a time writes a file.
// Errors:  none: without a note the launcher judges by the ends of the
//          processes alone, and a file that is not such a note counts as none.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

struct FaultNote {
  enum class Kind {
    kPeerGone,   // the culprit's process ended, or left the group
    kPeerError,  // the culprit lives, and has told of an error of its own
  };

  Kind kind = Kind::kPeerGone;
  int culprit = -1;         // its rank in the job, or -1: unknown
  std::string operation{};  // what failed: "all_reduce", "saving a checkpoint"

  friend bool operator==(const FaultNote&, const FaultNote&) = default;
};

// An empty `file` means that no launcher reads notes: nothing is written. A
// note that the file holds already stays, since the first error is the cause of
// later ones. Returns whether the file has this note.
bool write_fault_note(const std::filesystem::path& file,
                      const FaultNote& note) noexcept;

// Removes the note, if there is one.
void remove_fault_note(const std::filesystem::path& file) noexcept;

std::optional<FaultNote> read_fault_note(const std::filesystem::path& file);

}  // namespace lockstep
