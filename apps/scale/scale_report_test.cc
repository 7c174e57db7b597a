#include "apps/scale/scale_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/job/gnuplot.h"
#include "apps/scale/scale_plot.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

ScaleSeries ours() {
  return {
      .name = "Lockstep",
      .rows = {{.ranks = 1,
                .threads = 1,
                .global_batch = 128,
                .batch_per_rank = 128,
                .runs = {{1000, 6.0, 1.5}, {1100, 5.5, 1.7}, {990, 6.1, 1.6}}},
               {.ranks = 4,
                .threads = 1,
                .global_batch = 128,
                .batch_per_rank = 32,
                .runs = {{2500, 2.5, 3.9}, {2300, 2.7, 3.7}}}}};
}

ScaleSeries theirs() {
  return {.name = "torchrun 'a b'.py",
          .rows = {{.ranks = 1, .runs = {{800, std::nullopt, 1.0}}},
                   {.ranks = 4, .runs = {{1600, std::nullopt, 3.0}}}}};
}

TEST(ScaleFigures, AreMediansAndComparedWithTheFirstRow) {
  const ScaleSeries series = ours();
  const ScaleFigures one = figures_of(series, series.rows[0]);
  EXPECT_EQ(one.images_per_second, 1000);
  EXPECT_EQ(one.epoch_seconds, 6.0);
  EXPECT_EQ(one.cores_busy, 1.6);
  EXPECT_EQ(one.speed_up, 1);
  EXPECT_EQ(one.efficiency, 1);
  EXPECT_DOUBLE_EQ(one.spread, 0.11);
  const ScaleFigures four = figures_of(series, series.rows[1]);
  EXPECT_EQ(four.images_per_second, 2400);
  EXPECT_DOUBLE_EQ(four.speed_up, 2.4);
  EXPECT_DOUBLE_EQ(four.efficiency, 0.6);
}

TEST(ScaleFigures, CountEfficiencyFromAFirstRowOfSeveralRanks) {
  ScaleSeries series = ours();
  series.rows[0].ranks = 2;
  EXPECT_DOUBLE_EQ(figures_of(series, series.rows[1]).efficiency, 1.2);
}

TEST(ScaleReport, AlignsItsColumns) {
  EXPECT_EQ(to_text({.cores = 4, .series = {ours()}}),
            "Lockstep, on 4 cores\n"
            "\n"
            "ranks  threads  global batch  batch per rank  epoch s  images/s  "
            "speed-up  efficiency  spread  cores busy\n"
            "    1        1           128             128     6.00     1,000  "
            "    1.00       100 %    11 %        1.60\n"
            "    4        1           128              32     2.60     2,400  "
            "    2.40        60 %     8 %        3.80\n"
            "\n");
}

TEST(ScaleReport, ShowsHowManyGpusWereBusyWhereItIsKnown) {
  ScaleReport report{.cores = 4, .series = {ours()}};
  report.series[0].rows[1].runs[0].gpus_busy = 3.5;
  report.series[0].rows[1].runs[1].gpus_busy = 3.0;
  EXPECT_THAT(to_text(report), AllOf(HasSubstr("cores busy  GPUs busy\n"),
                                     HasSubstr("      1.60          -\n"),
                                     HasSubstr("      3.80       3.25\n")));
  EXPECT_THAT(to_markdown(report), HasSubstr("|       3.80 |      3.25 |\n"));
  const auto rows = nlohmann::json::parse(to_json(report))["series"][0]["rows"];
  EXPECT_FALSE(rows[0].contains("gpus_busy"));
  EXPECT_EQ(rows[1]["gpus_busy"], 3.25);
  EXPECT_EQ(rows[1]["runs"][0]["gpus_busy"], 3.5);
}

TEST(ScaleFigures, CountEfficiencyByThread) {
  ScaleSeries series = ours();
  series.rows[0].threads = 4;
  EXPECT_DOUBLE_EQ(figures_of(series, series.rows[1]).efficiency, 2.4);
}

TEST(ScaleReport, SaysWhatWasTrainedAndWhere) {
  ScaleReport report{.cores = 4,
                     .machine = "an Imaginary 9000",
                     .job = "mlp on mnist, global batch 128",
                     .series = {ours(), theirs()}};
  const char* title =
      "Lockstep: mlp on mnist, global batch 128, on 4 cores of an Imaginary "
      "9000";
  EXPECT_THAT(to_text(report),
              AllOf(StartsWith(title),
                    HasSubstr("\ntorchrun 'a b'.py, on 4 cores of an Imag")));
  EXPECT_THAT(gnuplot_script(report, "p"),
              HasSubstr(std::string("layout 1,2 title '") + title + "'"));
}

TEST(ScaleReport, SaysWhichNumbersAreOfNoUse) {
  ScaleReport report{.cores = 4, .series = {ours()}};
  EXPECT_THAT(to_text(report), Not(HasSubstr("unsteady")));
  report.series[0].rows[1].runs[0].images_per_second = 3500;
  EXPECT_THAT(
      to_text(report),
      HasSubstr("unsteady: runs of Lockstep on 4 ranks differ by 41 %"));
}

TEST(ScaleReport, NamesTheFastestLayouts) {
  ScaleReport report{.cores = 4, .layouts = true, .series = {ours()}};
  report.series[0].rows[0].threads = 4;
  EXPECT_THAT(to_text(report), HasSubstr("fastest: 4 ranks x 1 thread\n"));
  for (ScaleRun& run : report.series[0].rows[0].runs)
    run.images_per_second = 2350;
  EXPECT_THAT(to_text(report),
              HasSubstr("fastest: 4 ranks x 1 thread; 1 rank x 4 threads is as "
                        "fast\n"));
}

TEST(ScaleReport, ComparesWithWhatIsPutBesideIt) {
  const ScaleReport report{.cores = 4, .series = {ours(), theirs()}};
  const char* comparison =
      "Lockstep's images/s over those of torchrun 'a b'.py: 1.25 on 1 rank, "
      "1.50 on 4 ranks\n";
  EXPECT_THAT(to_text(report), HasSubstr(comparison));
}

TEST(ScaleReport, ShowsACommandInMarkdownAsItIs) {
  ScaleReport report{.cores = 4, .series = {ours(), theirs()}};
  report.series[1].name = "a `*`\n<b>";
  EXPECT_THAT(to_markdown(report),
              AllOf(HasSubstr("\n`` a `*` <b> ``, on 4 cores\n"),
                    HasSubstr("over those of `` a `*` <b> ``: 1.25 on")));
}

TEST(ScaleReport, HoldsBytesOfAnyEncoding) {
  ScaleReport report{.cores = 4, .series = {ours(), theirs()}};
  report.series[1].name = "caf\xe9 {ranks}";
  EXPECT_THAT(to_json(report), HasSubstr("caf\xef\xbf\xbd {ranks}"));
}

TEST(ScaleReport, IsAMarkdownTable) {
  const std::string text = to_markdown({.cores = 4, .series = {ours()}});
  EXPECT_THAT(text, AllOf(HasSubstr("\n\n| ranks | threads | global batch |"),
                          HasSubstr(" |\n|  ---: |    ---: |"),
                          HasSubstr(" |\n|     4 |       1 |"),
                          HasSubstr("|       3.80 |\n\n")));
}

TEST(ScaleReport, LeavesOutOfJsonWhatIsNotKnown) {
  const auto document = nlohmann::json::parse(
      to_json({.cores = 4, .series = {ours(), theirs()}}));
  const auto& series = document.at("series");
  const auto& row = series.at(0).at("rows").at(1);
  EXPECT_EQ(row.at("ranks"), 4);
  EXPECT_EQ(row.at("batch_per_rank"), 32);
  EXPECT_EQ(row.at("images_per_second"), 2400);
  EXPECT_EQ(row.at("runs").at(1).at("epoch_seconds"), 2.7);
  EXPECT_FALSE(series.at(1).at("rows").at(0).contains("epoch_seconds"));
  EXPECT_FALSE(series.at(1).at("rows").at(0).contains("threads"));
}

TEST(ScalePlot, LetsNoNameEndItsText) {
  const std::string script =
      gnuplot_script({.cores = 4, .series = {ours(), theirs()}}, "it's");
  EXPECT_THAT(script, AllOf(HasSubstr("title 'torchrun ''a b''.py'"),
                            HasSubstr("set output 'it''s.svg'"),
                            HasSubstr("set output 'it''s.png'"),
                            Not(HasSubstr("'a b'.py'"))));
}

TEST(ScalePlot, SaysWhatToInstallWhereThereIsNoGnuplot) {
  const auto no_path = [](const std::string&) {
    return std::optional<std::string>("/nonexistent");
  };
  EXPECT_THAT([&] { require_gnuplot(no_path, "--report"); },
              testing::ThrowsMessage<std::exception>(
                  HasSubstr("apt-get install gnuplot-nox")));
}

}  // namespace
}  // namespace lockstep
