#include "src/faults/fault_note.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

class FaultNoteFile : public testing::Test {
 protected:
  void put(const std::string& text) { std::ofstream(file_) << text; }

  TestDirectory folder_;
  const std::filesystem::path file_ = folder_.path() / "fault-0.json";
  const FaultNote note_{.kind = FaultNote::Kind::kPeerError,
                        .culprit = 3,
                        .operation = "saving \"a\"\n\xff"};
};

TEST_F(FaultNoteFile, HoldsWhatWasWritten) {
  FaultNote note = note_;
  note.operation = "saving \"a\"\n";
  write_fault_note(file_, note);
  EXPECT_EQ(read_fault_note(file_), note);
}

TEST_F(FaultNoteFile, ReplacesBytesThatAreNoText) {
  write_fault_note(file_, note_);
  EXPECT_EQ(read_fault_note(file_)->operation, "saving \"a\"\n\xef\xbf\xbd");
}

TEST_F(FaultNoteFile, NeedNotNameTheCulprit) {
  write_fault_note(file_, {});
  EXPECT_EQ(read_fault_note(file_), FaultNote{});
}

TEST_F(FaultNoteFile, KeepsTheFirstNote) {
  write_fault_note(file_, {.culprit = 1});
  write_fault_note(file_, {.culprit = 2});
  EXPECT_EQ(read_fault_note(file_)->culprit, 1);
  remove_fault_note(file_);
  EXPECT_EQ(read_fault_note(file_), std::nullopt);
  write_fault_note(file_, {.culprit = 2});
  EXPECT_EQ(read_fault_note(file_)->culprit, 2);
}

TEST_F(FaultNoteFile, IsNotNeeded) {
  write_fault_note("", note_);
  remove_fault_note("");
  write_fault_note(folder_.path() / "none" / "fault-0.json", note_);
  EXPECT_EQ(read_fault_note(folder_.path() / "none" / "fault-0.json"),
            std::nullopt);
}

TEST_F(FaultNoteFile, IsNoNoteWithOtherContents) {
  for (const char* text :
       {"", "{", "[]", "null", "{}", R"({"format": 1})",
        R"({"format": "lockstep record", "version": 1, "kind": "peer_gone"})",
        R"({"format": "lockstep fault note", "version": 2,
            "kind": "peer_gone"})",
        R"({"format": "lockstep fault note", "version": 1, "kind": "bored"})",
        R"({"format": "lockstep fault note", "version": 1,
            "kind": "peer_gone", "culprit": "one"})"}) {
    put(text);
    EXPECT_EQ(read_fault_note(file_), std::nullopt) << text;
  }
  put(std::string(std::size_t{1} << 20U, ' '));
  EXPECT_EQ(read_fault_note(file_), std::nullopt);
}

TEST_F(FaultNoteFile, IsReadFromNoPipeAndNoLink) {
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  EXPECT_EQ(read_fault_note(file_), std::nullopt);
  write_fault_note(folder_.path() / "other", note_);
  std::filesystem::remove(file_);
  std::filesystem::create_symlink(folder_.path() / "other", file_);
  EXPECT_EQ(read_fault_note(file_), std::nullopt);
}

}  // namespace
}  // namespace lockstep
