#include "lockstep/torch/tensor_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kCallers = 3;

// The memory layout of a 4 x 3 tensor.
enum class Layout { kContiguous, kTransposed, kEverySecondColumn, kLarge };

// The input elements of rank `rank`.
at::Tensor brought_by(int rank) { return wave({4, 3}, rank); }

at::Tensor laid_out(const at::Tensor& values, Layout layout) {
  at::Tensor tensor;
  switch (layout) {
    case Layout::kContiguous:
      return values.clone();
    case Layout::kTransposed:
      tensor = torch::full({3, 4}, -7.0).t();
      break;
    case Layout::kEverySecondColumn:
      tensor = torch::full({4, 6}, -7.0).slice(1, 0, 6, 2);
      break;
    case Layout::kLarge:
      tensor = torch::full({4, 3, 30'000}, -7.0).select(2, 1);
      break;
  }
  return tensor.copy_(values);
}

// A place for a result.
at::Tensor blank(Layout layout) {
  return laid_out(torch::full({4, 3}, 99.0), layout);
}

struct LayoutCase {
  std::string backend;
  Layout layout = Layout::kContiguous;
};

class TensorCollectives : public testing::TestWithParam<LayoutCase> {
 protected:
  // Runs `body` on every rank, with the group and this rank's input.
  void on_ranks(
      const std::function<void(ProcessGroup&, const at::Tensor&)>& body) {
    run_ranks(GetParam().backend, kCallers, [&](const Group& group) {
      body(*group, laid_out(brought_by(group->rank()), layout()));
    });
  }
  Layout layout() const { return GetParam().layout; }

  std::vector<at::Tensor> blanks() const {
    return {blank(layout()), blank(layout()), blank(layout())};
  }

  // One tensor per rank: 100 * `rank` + its index.
  std::vector<at::Tensor> blocks_of(int rank) const {
    std::vector<at::Tensor> blocks;
    for (int to = 0; to < kCallers; ++to)
      blocks.push_back(
          laid_out(torch::full({4, 3}, 100.0 * rank + to), layout()));
    return blocks;
  }
};

void expect_equal(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_TRUE(got.equal(expected)) << got << "\nexpected\n" << expected;
}
void expect_value(const at::Tensor& got, double value) {
  expect_equal(got, torch::full_like(got, value));
}

at::Tensor sum_of_all() {
  return brought_by(0) + brought_by(1) + brought_by(2);
}

TEST_P(TensorCollectives, BroadcastTheRootsElements) {
  on_ranks([](ProcessGroup& group, const at::Tensor& tensor) {
    broadcast(group, tensor, 1).wait();
    expect_equal(tensor, brought_by(1));
  });
}

TEST_P(TensorCollectives, ReduceInPlace) {
  on_ranks([](ProcessGroup& group, const at::Tensor& tensor) {
    const at::Tensor other = tensor.clone();
    all_reduce(group, tensor).wait();
    EXPECT_TRUE(tensor.allclose(sum_of_all()));
    reduce(group, other, 2, ReduceOp::kMax).wait();
    expect_equal(other,
                 group.rank() == 2
                     ? brought_by(0).max(brought_by(1)).max(brought_by(2))
                     : brought_by(group.rank()));
  });
}

TEST_P(TensorCollectives, GatherIntoAListAndIntoOneTensor) {
  on_ranks([&](ProcessGroup& group, const at::Tensor& tensor) {
    const auto list = blanks();
    all_gather(group, list, tensor).wait();
    const auto at_root = group.rank() == 1 ? blanks() : decltype(blanks()){};
    gather(group, tensor, at_root, 1).wait();
    const at::Tensor rows = torch::empty({12, 3});
    all_gather_into_tensor(group, rows, tensor).wait();
    for (int r = 0; r < kCallers; ++r) {
      const auto i = static_cast<std::size_t>(r);
      expect_equal(list[i], brought_by(r));
      if (group.rank() == 1) expect_equal(at_root[i], brought_by(r));
      expect_equal(rows.narrow(0, 4 * r, 4), brought_by(r));
    }
  });
}

TEST_P(TensorCollectives, GatherWhatDiffersInShape) {
  on_ranks([](ProcessGroup& group, const at::Tensor& tensor) {
    const std::vector<at::Tensor> list{
        torch::empty({1, 3}), torch::empty({2, 3}), torch::empty({3, 3})};
    all_gather(group, list, tensor.narrow(0, 0, group.rank() + 1)).wait();
    for (int r = 0; r < kCallers; ++r)
      expect_equal(list[static_cast<std::size_t>(r)],
                   brought_by(r).narrow(0, 0, r + 1));
  });
}

TEST_P(TensorCollectives, ScatterAndExchangeBlocks) {
  on_ranks([&](ProcessGroup& group, const at::Tensor& tensor) {
    const auto mine = blocks_of(group.rank());
    scatter(group, tensor, group.rank() == 2 ? mine : decltype(blanks()){}, 2)
        .wait();
    expect_value(tensor, 200 + group.rank());
    reduce_scatter(group, tensor, mine).wait();
    expect_value(tensor, 300 + 3 * group.rank());
    const auto received = blanks();
    all_to_all(group, received, mine).wait();
    for (int r = 0; r < kCallers; ++r)
      expect_value(received[static_cast<std::size_t>(r)],
                   100 * r + group.rank());
  });
}

TEST_P(TensorCollectives, ScatterAndExchangePartsOfOneTensor) {
  on_ranks([&](ProcessGroup& group, const at::Tensor& tensor) {
    const at::Tensor all = torch::cat(blocks_of(group.rank()));
    reduce_scatter_tensor(group, tensor, all, ReduceOp::kAverage).wait();
    expect_value(tensor, 100 + group.rank());
    const at::Tensor received = torch::empty({12, 3});
    all_to_all_single(group, received, all).wait();
    for (int r = 0; r < kCallers; ++r)
      expect_value(received.narrow(0, 4 * r, 4), 100 * r + group.rank());
  });
}

TEST_P(TensorCollectives, ExchangeUnevenNumbersOfRows) {
  on_ranks([&](ProcessGroup& group, const at::Tensor&) {
    // Rank r sends 1 + to rows to rank `to`.
    const at::Tensor input = torch::full({6, 2}, 1.0 * group.rank());
    const std::int64_t rows = 1 + group.rank();
    const at::Tensor output = torch::full({2, 3 * rows}, 99.0).t();
    all_to_all_single(group, output, input,
                      {.output = {rows, rows, rows}, .input = {1, 2, 3}})
        .wait();
    for (int r = 0; r < kCallers; ++r)
      expect_value(output.narrow(0, r * rows, rows), r);
  });
}

TEST_P(TensorCollectives, TakeAListAsOneOperation) {
  on_ranks([&](ProcessGroup& group, const at::Tensor& tensor) {
    const at::Tensor ranks = torch::full({5}, 1.0 * group.rank());
    const at::Tensor all_ranks = torch::empty({15});
    const auto rows = torch::empty({kCallers, 4, 3});
    all_gather_into_tensor_coalesced(group, {rows, all_ranks}, {tensor, ranks})
        .wait();
    expect_equal(rows[2], brought_by(2));
    expect_value(all_ranks.narrow(0, 5, 5), 1);
    all_reduce_coalesced(group, {tensor, ranks}).wait();
    EXPECT_TRUE(tensor.allclose(sum_of_all()));
    expect_value(ranks, 3);
    broadcast_coalesced(group, {rows.select(1, 0), ranks}, 0).wait();
    reduce_coalesced(group, {tensor, ranks}, 1).wait();
    expect_value(ranks, group.rank() == 1 ? 9 : 3);
    reduce_scatter_tensor_coalesced(group, {ranks}, {all_ranks}).wait();
    expect_value(ranks, 3 * group.rank());
  });
}

TEST(TensorCollectivesOfObjects, GatherAndScatter) {
  run_ranks(kBackend, kCallers, [](const Group& group) {
    const int me = group->rank();
    const auto object_of = [](int rank) {
      c10::Dict<std::string, at::Tensor> object;
      object.insert("values", wave({rank, 2}, rank));
      return c10::IValue(object);
    };
    const auto is_of = [](const c10::IValue& found, int rank) {
      return found.toGenericDict().at("values").toTensor().equal(
          wave({rank, 2}, rank));
    };
    const auto found = gather_object(*group, object_of(me), 1);
    EXPECT_EQ(found.size(), me == 1 ? 3U : 0U);
    for (std::size_t rank = 0; rank < found.size(); ++rank)
      EXPECT_TRUE(is_of(found[rank], static_cast<int>(rank)));

    std::vector<c10::IValue> objects;
    for (int rank = 0; me == 2 && rank < kCallers; ++rank)
      objects.push_back(object_of(rank));
    EXPECT_TRUE(is_of(scatter_object_list(*group, objects, 2), me));
  });
}

// Issue 43, point 19.
TEST(TensorCollectivesOfObjects, CarryOfAViewItsOwnElements) {
  run_ranks(kBackend, kCallers, [](const Group& group) {
    const at::Tensor large = wave({200, 300}, group->rank());
    const at::Tensor row = large.select(0, 7).requires_grad_();
    const at::Tensor whole = wave({5}, 0);
    c10::Dict<std::string, at::Tensor> views;
    views.insert("column", large.detach().select(1, 7).slice(0, 0, 9, 2));
    views.insert("whole", whole);
    const c10::IValue object(c10::ivalue::Tuple::create(
        {c10::List<at::Tensor>({row, row}), views, std::int64_t{3}}));
    for (const c10::IValue& got : gather_object(*group, object, 0)) {
      const auto& parts = got.toTuple()->elements();
      const auto rows = parts[0].toTensorList();
      const auto named = parts[1].toGenericDict();
      const at::Tensor first = rows.get(0);
      EXPECT_TRUE(first.requires_grad());
      EXPECT_TRUE(at::Tensor(rows.get(1)).is_alias_of(first));
      for (const at::Tensor& tensor :
           {first, named.at("column").toTensor(), named.at("whole").toTensor()})
        EXPECT_EQ(tensor.storage().nbytes(), tensor.nbytes());
      EXPECT_EQ(parts[2].toInt(), 3);
    }
    const at::Tensor kept =
        scatter_object_list(*group, std::vector<c10::IValue>(kCallers, row), 1)
            .toTensor();
    EXPECT_EQ(kept.storage().nbytes(), kept.nbytes());
    EXPECT_TRUE(kept.equal(wave({200, 300}, 1).select(0, 7)));
    EXPECT_TRUE(large.select(0, 7).is_alias_of(row));
  });
}

TEST(TensorCollectivesOfObjects, TellEveryRankOfWhatCannotTravel) {
  run_ranks(kBackend, kCallers, [](const Group& group) {
    const c10::IValue good(std::int64_t{3});
    const c10::IValue bad(
        c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get()));
    const bool is_second = group->rank() == 1;
    const auto gather = [&] {
      gather_object(*group, is_second ? bad : good, 0);
    };
    if (is_second)
      EXPECT_ANY_THROW(gather());
    else if (group->rank() == 0)
      EXPECT_THAT(message_of(gather), HasSubstr("object of rank 1 could not"));
    else
      EXPECT_NO_THROW(gather());
    EXPECT_ANY_THROW(scatter_object_list(*group, {good, bad, good}, 2));
    EXPECT_THAT(message_of([&] {
                  scatter_object_list(*group, {good, good}, 0);
                }),
                HasSubstr("pass as many objects as ranks on the root"));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

TEST_P(TensorCollectives, SendAndReceive) {
  on_ranks([&](ProcessGroup& group, const at::Tensor& tensor) {
    const int right = (group.rank() + 1) % kCallers;
    const int left = (group.rank() + 2) % kCallers;
    const at::Tensor received = blank(layout());
    // The batch owns its tensor: the sender has forgotten it.
    const auto works = batch_isend_irecv(
        group, std::vector<TensorMessage>{
                   {Message::Direction::kReceive, received, left, 3},
                   {Message::Direction::kSend, tensor.clone(), right, 3}});
    for (const Work& work : works) work.wait();
    expect_equal(received, brought_by(left));
    EXPECT_EQ(works[0].source_rank(), left);
    if (group.rank() == 0) {
      send(group, tensor, 1);
    } else if (group.rank() == 1) {
      EXPECT_EQ(recv(group, received), 0);
      expect_equal(received, brought_by(0));
    }
  });
}

std::vector<LayoutCase> cases() {
  std::vector<LayoutCase> all;
  for (const char* backend : {"reference", "shm"})
    for (const Layout layout : {Layout::kContiguous, Layout::kTransposed,
                                Layout::kEverySecondColumn, Layout::kLarge})
      all.push_back({backend, layout});
  return all;
}
std::string name_of_case(const testing::TestParamInfo<LayoutCase>& info) {
  constexpr const char* kNames[] = {"Contiguous", "Transposed",
                                    "EverySecondColumn", "FarApart"};
  return info.param.backend + kNames[static_cast<int>(info.param.layout)];
}
INSTANTIATE_TEST_SUITE_P(Everywhere, TensorCollectives,
                         testing::ValuesIn(cases()), name_of_case);

TEST(TensorCollectivesTypes, AreAllOfTheMission) {
  run_ranks("shm", 2, [](const Group& group) {
    for (const DataType type : kAllDataTypes) {
      const at::Tensor tensor =
          torch::full({2, 5}, group->rank(), scalar_type_of(type)).t();
      all_reduce(*group, tensor).wait();
      EXPECT_TRUE(tensor.equal(torch::ones_like(tensor))) << tensor;
    }
  });
}

TEST(TensorCollectivesInFlight, KeepTheTensorsThatTheCallerForgot) {
  run_ranks("shm", 2, [](const Group& group) {
    constexpr std::int64_t kElements = 1 << 20;  // far beyond the buffers
    std::vector<Work> works;
    for (int i = 0; group->rank() == 0 && i < 4; ++i)
      works.push_back(isend(*group, torch::full({kElements}, 1.0 * i), 1));
    const at::Tensor reuses_freed_memory = torch::full({kElements}, -1.0);
    group->barrier().wait();
    for (int i = 0; group->rank() == 1 && i < 4; ++i) {
      const at::Tensor received = torch::empty({kElements});
      recv(*group, received, 0);
      EXPECT_TRUE(received.eq(i).all().item<bool>()) << "message " << i;
    }
    for (const Work& work : works) work.wait();
  });
}

// Issue 43, point 5. The destructor of a Work asks whether it is done.
TEST(TensorCollectivesInFlight, BelongToTheParentOfAForkedChild) {
  run_ranks("shm", 2, [](const Group& group) {
    const at::Tensor columns = torch::zeros({2, 3}).t();
    std::optional<Work> work;
    if (group->rank() == 0) {
      work = irecv(*group, columns, 1);
      const pid_t child = ::fork();
      if (child == 0) {
        const bool refused = message_of([&] { work->wait(); }).find("forked") !=
                             std::string::npos;
        work.reset();
        ::_exit(refused ? 0 : 1);
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
    group->barrier().wait();
    if (work)
      work->wait();
    else
      send(*group, torch::full({3, 2}, 4.0), 0);
    EXPECT_EQ(columns.eq(4).all().item<bool>(), group->rank() == 0);
  });
}

// The error of `body` on rank 1 of 2; rank 0 makes no call.
std::string refusal(const std::function<void(ProcessGroup&)>& body) {
  std::string message;
  run_ranks("shm", 2, [&](const Group& group) {
    if (group->rank() != 1) return;
    EXPECT_THROW(body(*group), InvalidArgument);
    message = message_of([&] { body(*group); });
  });
  return message;
}

TEST(TensorCollectivesRefusals, NameTheTensorThatCannotTravel) {
  const auto of = [](const at::Tensor& tensor) {
    return refusal(
        [&](ProcessGroup& group) { std::ignore = all_reduce(group, tensor); });
  };
  EXPECT_THAT(of({}), HasSubstr("all_reduce: tensor is an undefined tensor"));
  EXPECT_THAT(of(torch::empty({2}, at::kMeta)),
              HasSubstr("tensor is on the meta device, without elements"));
  EXPECT_THAT(of(torch::empty({2}, at::kComplexFloat)),
              AllOf(HasSubstr("of complex type ComplexFloat"),
                    HasSubstr("view_as_real")));
  EXPECT_THAT(of(torch::empty({2}, at::kShort)), HasSubstr("of type Short"));
  EXPECT_THAT(of(wave({3}, 0).to_sparse()), HasSubstr("is sparse"));
  EXPECT_THAT(of(torch::zeros({1}).expand({4})),
              HasSubstr("share memory: shape [4], strides [0]"));
  EXPECT_THAT(of(torch::zeros({6}).unfold(0, 3, 1)), HasSubstr("share memory"));
}

TEST(TensorCollectivesRefusals, SayWhatWasExpectedAndWhatCame) {
  const at::Tensor two = torch::zeros({2, 3}), three = torch::zeros({3, 3});
  EXPECT_THAT(
      refusal([&](auto& group) {
        std::ignore = all_gather(group, {three, three}, two);
      }),
      HasSubstr("all_gather: outputs[1] has shape [3, 3], expected [2, 3] as "
                "input (rank 1 of 2, group \"test\")"));
  EXPECT_THAT(refusal([&](auto& group) {
                std::ignore = all_gather(group, {two}, two);
              }),
              HasSubstr("outputs has 1 tensors, expected 2, one per rank"));
  EXPECT_THAT(
      refusal([&](auto& group) {
        std::ignore = all_gather(group, {two.to(at::kInt), two.clone()}, two);
      }),
      HasSubstr("outputs[1] is of type Float, expected Int as outputs[0]"));
  EXPECT_THAT(
      refusal([&](auto& group) {
        std::ignore = all_gather_into_tensor(group, three, two);
      }),
      AllOf(HasSubstr("output has shape [3, 3], 9 elements, expected 12"),
            HasSubstr("shape [4, 3]")));
  EXPECT_THAT(
      refusal([&](auto& group) { std::ignore = gather(group, two, {two}, 0); }),
      HasSubstr("outputs is not empty on rank 1"));
  EXPECT_THAT(
      refusal([&](auto& group) {
        std::ignore = scatter(group, two, {two, three}, 1);
      }),
      HasSubstr("inputs[1] has shape [3, 3], expected [2, 3] as output"));
  EXPECT_THAT(refusal([&](auto& group) {
                std::ignore = all_reduce_coalesced(group, {two, two});
              }),
              HasSubstr("tensors[1] begins where another tensor"));
}

TEST(TensorCollectivesRefusals, SaySplitSizesThatDoNotFit) {
  const at::Tensor rows = torch::zeros({3, 2}), other = torch::zeros({3, 2});
  const auto of = [&](const SplitSizes& splits) {
    return refusal([&](auto& group) {
      std::ignore = all_to_all_single(group, rows, other, splits);
    });
  };
  EXPECT_THAT(of({}), HasSubstr("3 rows 2 ranks cannot share evenly"));
  EXPECT_THAT(of({.output = {1, 2}, .input = {1, 1}}),
              HasSubstr("input has 3 rows, but its split sizes add up to 2"));
  EXPECT_THAT(of({.output = {1, 2}, .input = {4, -1}}),
              HasSubstr("split sizes are [4, -1]"));
  EXPECT_THAT(of({.output = {1, 2}, .input = {3}}),
              HasSubstr("input has 1 split sizes, expected 2"));
}

TEST(TensorCollectivesAutograd, WriteToLeavesAndSaySoToABackwardPass) {
  run_ranks("shm", 2, [](const Group& group) {
    const at::Tensor leaf =
        torch::full({3}, 1.0 + group->rank()).requires_grad_();
    const at::Tensor loss = (leaf * leaf).sum();
    all_reduce(*group, leaf).wait();
    EXPECT_TRUE(leaf.is_leaf() && leaf.requires_grad());
    expect_value(leaf.detach(), 3);
    EXPECT_THAT(message_of([&] { loss.backward(); }),
                HasSubstr("modified by an inplace operation"));
    const at::Tensor columns =
        torch::full({3, 2}, 1.0 + group->rank()).requires_grad_();
    all_reduce(*group, columns.t()).wait();
    expect_value(columns.detach(), 3);
  });
}

TEST(TensorCollectivesNeighbours, StayAsTheyWere) {
  run_ranks("shm", 2, [](const Group& group) {
    const at::Tensor whole = torch::full({4, 6}, 5.0);
    all_reduce(*group, whole.slice(1, 0, 6, 2)).wait();
    expect_value(whole.slice(1, 0, 6, 2), 10);
    expect_value(whole.slice(1, 1, 6, 2), 5);
  });
}

}  // namespace
}  // namespace lockstep
