#include <ATen/core/Formatting.h>
#include <c10/util/StringUtil.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/operation/current_stream.h"
#include "src/torch/device/device_streams.h"
#include "src/torch/tensor/tensor_fault.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const at::Tensor& tensor, const TensorFault& fault) {
  const std::string kind =
      tensor.defined()
          ? c10::str("of ", tensor.scalar_type(), " ", tensor.sizes(), " that ")
          : "that ";
  throw InvalidArgument(c10::str("a collective cannot work on a tensor ", kind,
                                 fault.why, "\n  next:    ", fault.next));
}

void* stream_of_libtorch(Device device) {
  const at::Device on(at::kCUDA, static_cast<at::DeviceIndex>(device.index));
  return current_stream_on(on).native_handle();
}

}  // namespace

Device buffer_device(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return {};
  if (const auto fault = fault_of_moved(tensor)) refuse(tensor, *fault);
  [[maybe_unused]] static const bool streams_are_libtorchs = [] {
    set_current_stream(&stream_of_libtorch);
    return true;
  }();
  return {DeviceKind::kCuda, tensor.get_device()};
}

DataType data_type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kChar:
      return DataType::kInt8;
    case at::kByte:
      return DataType::kUInt8;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    case at::kBool:
      return DataType::kBool;
    default:  // LibTorch's own enum, which may grow
      const TensorFault fault = fault_of_type(type);
      throw InvalidArgument("a collective cannot work on a tensor that " +
                            fault.why + "\n  next:    " + fault.next);
  }
}

at::ScalarType scalar_type_of(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return at::kFloat;
    case DataType::kFloat64:
      return at::kDouble;
    case DataType::kFloat16:
      return at::kHalf;
    case DataType::kBFloat16:
      return at::kBFloat16;
    case DataType::kInt8:
      return at::kChar;
    case DataType::kUInt8:
      return at::kByte;
    case DataType::kInt32:
      return at::kInt;
    case DataType::kInt64:
      return at::kLong;
    case DataType::kBool:
      return at::kBool;
  }
  throw InternalError("a data type without a tensor type");
}

Buffer view(const at::Tensor& tensor) {
  if (const auto fault = fault_of_moved(tensor)) refuse(tensor, *fault);
  if (!tensor.is_contiguous())
    refuse(tensor, {"has elements that are not contiguous",
                    "pass tensor.contiguous(), and copy the result back"});
  if (!holds_its_elements(tensor))
    refuse(tensor,
           {"is negated, conjugated or zero without memory: its memory does "
            "not hold its elements",
            "pass tensor.clone(), and copy the result back"});
  return {tensor.data_ptr(), tensor.numel(), data_type_of(tensor.scalar_type()),
          buffer_device(tensor)};
}

std::vector<Buffer> views(at::TensorList tensors) {
  std::vector<Buffer> buffers;
  buffers.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) buffers.push_back(view(tensor));
  return buffers;
}

}  // namespace lockstep
