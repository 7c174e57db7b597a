// Starts the ranks of a job from inside a program, as torch.multiprocessing's
// spawn does.
//
//     void train(int rank, double learning_rate) {
//       lockstep::init_process_group();
//       …
//     }
//
//     int main() {
//       lockstep::prepare_spawn();
//       lockstep::spawn(train, 4, 0.1);
//     }
//
// Each rank is a process. It runs `function(rank, arguments…)`, with the
// environment that a launcher gives to a worker, and its standard input is
// empty. The arguments travel as bytes, and so each is a number, an enum, a
// struct without pointers, a std::string, or a std::vector of these. The
// function is a plain one: a closure does not exist in another process.
//
// A process that has threads cannot be forked safely. So prepare_spawn() forks
// a process when the program begins, and later that one forks the ranks.
// Without prepare_spawn(), each rank executes the program anew with the same
// arguments: main() runs again up to its first spawn(), which there runs the
// rank and ends the process. Code before that spawn() thus runs once more per
// rank.
//
// Threads: spawn() may be called on any thread, and on several at once after
//          prepare_spawn(). No thread may change the environment meanwhile.
// Errors:  RankFailure for the first rank that fails; InvalidArgument for an
//          invalid number of ranks, under a launcher and in a rank;
//          SystemError and NetworkError where the system refuses processes,
//          sockets or memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <ranges>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

// A rank of spawn() threw an exception or ended before its function returned.
class RankFailure : public Error {
 public:
  RankFailure(int rank, int exit_code, int signal, const std::string& message)
      : Error(message), rank_(rank), exit_code_(exit_code), signal_(signal) {}

  // The rank that is blamed: of those that did not fail for the loss of another
  // rank, the first.
  int rank() const { return rank_; }
  // 1 after an exception; 128 + signal() if a signal ended the rank; 0 if the
  // rank called exit(0) before its function returned.
  int exit_code() const { return exit_code_; }
  // The signal that ended the rank, or 0.
  int signal() const { return signal_; }

 private:
  int rank_;
  int exit_code_;
  int signal_;
};

struct SpawnOptions {
  int ranks = 1;  // 1 … 1024
  // After one rank has failed, the others get SIGTERM, and those that still run
  // after this time SIGKILL.
  std::chrono::nanoseconds grace = std::chrono::seconds(30);
};

// Forks the process that will fork the ranks of spawn(). main() should call it
// first. InvalidArgument where this process has threads or has used a GPU
// already. A second call does nothing, nor does a call under a launcher or in a
// rank. The forked process keeps no descriptor of this one but standard output
// and error, and ends with it.
void prepare_spawn();

namespace internal {

// The elements of a std::vector<bool> have no addresses.
template <class T>
inline constexpr bool kIsPlain =
    std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
    !std::is_member_pointer_v<T> && !std::ranges::view<T>;
template <class T>
inline constexpr bool kIsBlock = kIsPlain<T> && !std::is_same_v<T, bool>;
template <class T>
inline constexpr bool kIsVector = false;
template <class T, class A>
inline constexpr bool kIsVector<std::vector<T, A>> = true;

class ArgumentWriter {
 public:
  template <class T>
  void write(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      write(value.size());
      append(std::as_bytes(std::span(value)));
    } else if constexpr (kIsVector<T>) {
      write(value.size());
      using Element = typename T::value_type;
      if constexpr (kIsBlock<Element>)
        append(std::as_bytes(std::span(value)));
      else
        for (const Element& element : value) write(element);
    } else {
      static_assert(kIsPlain<T>,
                    "an argument of spawn() travels as bytes: use numbers, "
                    "structs without pointers, std::string, or vectors");
      append(std::as_bytes(std::span(&value, 1)));
    }
  }

  std::vector<std::byte> bytes;

 private:
  void append(std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
};

class ArgumentReader {
 public:
  explicit ArgumentReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T read() {
    if constexpr (std::is_same_v<T, std::string>) {
      const auto text = take(read<std::size_t>());
      return T(reinterpret_cast<const char*>(text.data()), text.size());
    } else if constexpr (kIsVector<T>) {
      return read_vector<T>(read<std::size_t>());
    } else {
      alignas(T) std::byte storage[sizeof(T)];
      std::memcpy(storage, take(sizeof(T)).data(), sizeof(T));
      return *reinterpret_cast<const T*>(storage);
    }
  }

  std::span<const std::byte> rest() const { return bytes_; }

 private:
  template <class T>
  T read_vector(std::size_t size) {
    using Element = typename T::value_type;
    T values;
    if constexpr (kIsBlock<Element>) {
      values.resize(size);
      const auto bytes = take(size * sizeof(Element));
      if (size > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      values.reserve(size);
      for (std::size_t i = 0; i < size; ++i) values.push_back(read<Element>());
    }
    return values;
  }

  std::span<const std::byte> take(std::size_t count) {
    LOCKSTEP_CHECK(count <= bytes_.size(), "spawn's arguments end early");
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  std::span<const std::byte> bytes_;
};

using AnyFunction = void (*)();
// Reads the arguments and calls the function.
using RankEntry = void (*)(AnyFunction function, int rank,
                           ArgumentReader& arguments);

struct SpawnCall {
  RankEntry entry;
  AnyFunction function;
  std::vector<std::byte> arguments;
};

template <class... Parameters>
void enter_rank(AnyFunction function, int rank, ArgumentReader& arguments) {
  // Braces, because they order the reads.
  std::tuple<std::remove_cvref_t<Parameters>...> values{
      arguments.read<std::remove_cvref_t<Parameters>>()...};
  const auto typed = reinterpret_cast<void (*)(int, Parameters...)>(function);
  std::apply(
      [&](auto&... value) { typed(rank, static_cast<Parameters>(value)...); },
      values);
}

void spawn_ranks(const SpawnCall& call, const SpawnOptions& options);

}  // namespace internal

// Runs `function(rank, arguments…)` in options.ranks processes and returns once
// all have returned. The arguments convert to the function's parameters here,
// and each rank gets copies. A rank that returns leaves the default group. It
// then ends without destructors of static objects if it was forked.
template <class... Parameters, class... Arguments>
void spawn(void (*function)(int rank, Parameters...),
           const SpawnOptions& options, const Arguments&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "spawn() needs one argument for each parameter after the rank");
  internal::ArgumentWriter writer;
  (writer.write<std::remove_cvref_t<Parameters>>(arguments), ...);
  internal::spawn_ranks({&internal::enter_rank<Parameters...>,
                         reinterpret_cast<internal::AnyFunction>(function),
                         std::move(writer.bytes)},
                        options);
}

template <class... Parameters, class... Arguments>
void spawn(void (*function)(int rank, Parameters...), int ranks,
           const Arguments&... arguments) {
  spawn(function, SpawnOptions{.ranks = ranks}, arguments...);
}

}  // namespace lockstep
