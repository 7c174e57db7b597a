// The tensors in a module's arguments and outputs, whatever those are: tensors,
// tuples, pairs, arrays, vectors, optionals and maps of them, and what else has
// a for_each_tensor(value, visit) in its namespace. All other values hold none;
// nor does an undefined tensor, which stays what it is.
//
// Threads: pure functions, but for what `visit` does.
// Errors:  what `visit` throws.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

// Calls visit(tensor) for each tensor, in order; it may replace them.
template <class Value, class Visit>
void for_each_tensor(Value& /*value*/, const Visit& /*visit*/) {}

template <class Visit>
void for_each_tensor(at::Tensor& tensor, const Visit& visit) {
  if (tensor.defined()) visit(tensor);
}

template <class Value, class Visit>
void for_each_tensor(std::vector<Value>& values, const Visit& visit);
template <class Value, std::size_t kCount, class Visit>
void for_each_tensor(std::array<Value, kCount>& values, const Visit& visit);
template <class Key, class Value, class Visit>
void for_each_tensor(std::map<Key, Value>& values, const Visit& visit);
template <class Value, class Visit>
void for_each_tensor(std::optional<Value>& value, const Visit& visit);
template <class... Values, class Visit>
void for_each_tensor(std::tuple<Values...>& values, const Visit& visit);
template <class First, class Second, class Visit>
void for_each_tensor(std::pair<First, Second>& values, const Visit& visit);

template <class Value, class Visit>
void for_each_tensor(std::vector<Value>& values, const Visit& visit) {
  if constexpr (!std::is_same_v<Value, bool>)
    for (Value& value : values) for_each_tensor(value, visit);
}

template <class Value, std::size_t kCount, class Visit>
void for_each_tensor(std::array<Value, kCount>& values, const Visit& visit) {
  for (Value& value : values) for_each_tensor(value, visit);
}

template <class Key, class Value, class Visit>
void for_each_tensor(std::map<Key, Value>& values, const Visit& visit) {
  for (auto& [key, value] : values) for_each_tensor(value, visit);
}

template <class Value, class Visit>
void for_each_tensor(std::optional<Value>& value, const Visit& visit) {
  if (value) for_each_tensor(*value, visit);
}

template <class... Values, class Visit>
void for_each_tensor(std::tuple<Values...>& values, const Visit& visit) {
  std::apply([&](Values&... each) { (for_each_tensor(each, visit), ...); },
             values);
}

template <class First, class Second, class Visit>
void for_each_tensor(std::pair<First, Second>& values, const Visit& visit) {
  for_each_tensor(values.first, visit);
  for_each_tensor(values.second, visit);
}

template <class Value>
std::vector<at::Tensor> tensors_in(Value& value) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(value,
                  [&](at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// Puts `tensors`, as many as there are, in the places of those in `value`.
template <class Value>
void replace_tensors(Value& value, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  for_each_tensor(value, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
}

}  // namespace lockstep
