// A set of a heap's pages, to which pages are only added.
//
// After construction it takes no lock and allocates nothing, so that a forked
// child may query it right after fork.
//
// Threads: every method may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace lockstep {

class PageSet {
 public:
  explicit PageSet(std::size_t pages)
      // The kernel backs them with zero pages until they are written to.
      : words_(static_cast<Word*>(std::calloc(pages / 64 + 1, sizeof(Word)))) {
    if (!words_) throw std::bad_alloc();
  }

  bool empty() const { return empty_.load(); }

  bool has(std::size_t page) const {
    return (words_.get()[page / 64].load() >> page % 64 & 1) != 0;
  }

  // Whether any page of [begin, end) is in it.
  bool has_any(std::size_t begin, std::size_t end) const {
    return !empty() && (has(begin) || end_of_run(begin, end) < end);
  }

  // The end of the run of pages from `begin` on, at most to `end`, that are all
  // in the set or all outside it.
  std::size_t end_of_run(std::size_t begin, std::size_t end) const {
    const bool in = has(begin);
    const std::uint64_t whole_word = in ? ~std::uint64_t{0} : 0;
    std::size_t page = begin;
    while (page < end) {
      if (page % 64 == 0 && end - page >= 64 &&
          words_.get()[page / 64].load() == whole_word)
        page += 64;
      else if (has(page) == in)
        ++page;
      else
        break;
    }
    return page;
  }

  void add(std::size_t begin, std::size_t end) {
    empty_ = false;
    for (std::size_t page = begin; page < end; ++page)
      words_.get()[page / 64].fetch_or(std::uint64_t{1} << page % 64);
  }

 private:
  using Word = std::atomic<std::uint64_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == 8);
  struct Free {
    void operator()(Word* words) const { std::free(words); }
  };

  std::unique_ptr<Word, Free> words_;
  std::atomic<bool> empty_{true};
};

}  // namespace lockstep
