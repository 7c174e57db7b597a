// Finds the tensors in a module's arguments and outputs: in tensors, tuples,
// pairs, arrays, vectors, optionals and maps of them, and in types with a
// for_each_tensor(value, visit) in their namespace. It skips all other values,
// and undefined tensors.
//
// Threads: any, as far as `visit` allows.
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

// Replaces the tensors in `value` by `tensors`, of the same number.
template <class Value>
void replace_tensors(Value& value, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  for_each_tensor(value, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
}

}  // namespace lockstep
